"""Where a benchmark's result goes, and what it says it was taken with."""

from __future__ import annotations

import importlib.metadata
import platform
from datetime import UTC, datetime
from pathlib import Path

from tuner.code_version import code_version
from tuner.files import write_file


def publish(output: Path, text: str) -> None:
    """Into the file, whose folder is made, and to stdout; with the code that it was taken with under its title."""
    output.parent.mkdir(parents=True, exist_ok=True)
    whole = with_header(text)
    write_file(output, whole)
    print(whole)


def with_header(text: str) -> str:
    """The text with a line on the code and the versions at work: after its title, or first where it has none."""
    title, _, rest = text.partition("\n")
    return f"{title}\n\n{taken_with()}\n{rest}" if title.startswith("#") else f"{taken_with()}\n\n{text}"


def taken_with() -> str:
    versions = ", ".join(f"{name} {_version(name)}" for name in ("torch", "triton", "numpy"))
    return f"Taken with tuner {code_version()}, Python {platform.python_version()}, {versions}, {datetime.now(UTC):%Y-%m-%d}."


def _version(package: str) -> str:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return "missing"
