"""The one reader of text files that people give: regular files of a known size only, as UTF-8, and every refusal in a sentence."""

from __future__ import annotations

import os
import stat
from pathlib import Path

from search_spaces.errors import UserError
from search_spaces.plain_text import visible

MOST_BYTES = 2**20


def named(path: Path | str) -> str:
    """A path as a sentence names it: whole, in one line, and safe to print."""
    return visible(str(path)).replace("\n", "\\n")


def read_text_file(path: Path, what: str, how: str, most_bytes: int = MOST_BYTES) -> str:
    """The file's text without a byte order mark; line ends stay as they are. `what` names the file in sentences ("the gpu file"),
    `how` says what to give in its place.

    Raises UserError for what is no regular file (a pipe would wait for ever, a device has no end), for more than `most_bytes`, which is
    asked before anything is read, and for what is no UTF-8 text.
    """
    name = f"{what} {named(path)}"
    try:
        file = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        try:
            status = os.fstat(file)
            if not stat.S_ISREG(status.st_mode):
                raise UserError(f"{name} is {_kind(status.st_mode)}, no regular file; {how}")
            content = _read(file, most_bytes + 1) if status.st_size <= most_bytes else b""
        finally:
            os.close(file)
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else str(error)
        raise UserError(f"cannot read {name}: {reason}; {how}") from None
    size = max(status.st_size, len(content))
    if size > most_bytes:
        raise UserError(f"{name} has {size} bytes, more than the {most_bytes} that are read; {how}")
    try:
        text = content.decode("utf-8").removeprefix("\ufeff")
    except UnicodeDecodeError as error:
        raise UserError(f"cannot read {name}: not UTF-8 text (byte {error.start} is 0x{content[error.start]:02x}); {how}") from None
    if "\0" in text:
        raise UserError(f"cannot read {name}: it holds a NUL character at {text.index(chr(0))}, so it is no text; {how}")
    return text


def _read(file: int, most: int) -> bytes:
    """Up to `most` bytes: a file may grow, or say that it has none, between its size and its end."""
    parts: list[bytes] = []
    while most > 0 and (part := os.read(file, most)):
        parts.append(part)
        most -= len(part)
    return b"".join(parts)


def _kind(mode: int) -> str:
    kinds = {stat.S_IFDIR: "a folder", stat.S_IFIFO: "a pipe", stat.S_IFCHR: "a device", stat.S_IFBLK: "a device"}
    return kinds.get(stat.S_IFMT(mode), "a special file")
