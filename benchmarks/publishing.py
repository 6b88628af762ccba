"""Where a benchmark's result goes."""

from __future__ import annotations

from pathlib import Path

from tuner.exporters import write_atomically


def publish(output: Path, text: str) -> None:
    """Into the file, whose folder is made, and to stdout."""
    output.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(output, text)
    print(text)
