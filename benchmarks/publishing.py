"""Where a benchmark's result goes."""

from __future__ import annotations

from pathlib import Path

from tuner.files import write_file


def publish(output: Path, text: str) -> None:
    """Into the file, whose folder is made, and to stdout."""
    output.parent.mkdir(parents=True, exist_ok=True)
    write_file(output, text)
    print(text)
