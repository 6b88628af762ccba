"""How do winners reach production code? One file an exporter; the file's name is the consumer's, on the command line too.

An exporter turns entries into text and touches nothing; `write_atomically` puts the text where it belongs.
"""

from __future__ import annotations

import hashlib
import importlib
import importlib.metadata
import os
import pkgutil
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from search_spaces.errors import UserError
from search_spaces.problem import Problem
from search_spaces.schedule import Schedule


@dataclass(frozen=True, kw_only=True)
class Entry:
    """A problem and the schedule to run it with.

    library_ratio: the library's time over this schedule's, above 1 where the library is slower. provenance: GPU, Triton and day, in words.
    A schedule that was never measured has no time.
    """

    problem: Problem
    schedule: Schedule
    median_us: float | None = None
    library_ratio: float | None = None
    provenance: str = ""

    @property
    def remark(self) -> str:
        """`35.41 us, 1.049x the library`."""
        if self.median_us is None:
            return "not measured"
        ratio = "" if self.library_ratio is None else f", {self.library_ratio:.3f}x the library"
        return f"{self.median_us:.4g} us{ratio}"


@dataclass(frozen=True, kw_only=True)
class ExportSettings:
    """rename: the consumer's name for a parameter of ours."""

    rename: Mapping[str, str] = field(default_factory=dict)


class Export(Protocol):
    def __call__(self, entries: Sequence[Entry], settings: ExportSettings | None = None) -> str: ...


@dataclass(frozen=True, kw_only=True)
class Exporter:
    """summary: the first line of what its file says of itself."""

    name: str
    summary: str
    export: Export


def exporter_names() -> tuple[str, ...]:
    return tuple(sorted(module.name for module in pkgutil.iter_modules(__path__)))


def load_exporter(name: str) -> Exporter:
    if name not in exporter_names():
        raise UserError(f"no exporter named {name!r}; known: {', '.join(exporter_names())}")
    module = importlib.import_module(f"{__name__}.{name}")
    return Exporter(name=name, summary=(module.__doc__ or "").partition("\n")[0], export=module.export)


def in_stable_order(entries: Sequence[Entry]) -> list[Entry]:
    """One entry a problem, sorted, whatever the order they came in. Of several for one problem the fastest is kept."""
    if not entries:
        raise UserError("0 schedules to export; `tuner search` finds some")
    best: dict[tuple[str | int, ...], Entry] = {}
    for entry in sorted(entries, key=_speed):
        best.setdefault(_key(entry.problem), entry)
    return [best[key] for key in sorted(best)]


def _key(p: Problem) -> tuple[str | int, ...]:
    """What a consumer can tell apart: it looks up shapes, types and layouts, not the gaps between rows."""
    return (p.dtype, p.out_dtype, p.layout, p.n, p.k, p.m)


def _speed(entry: Entry) -> tuple[bool, float, str]:
    """Sorts packed problems first, then by time; never measured comes last."""
    p = entry.problem
    packed = (p.lda, p.ldb, p.ldc) == (p.a_columns, p.b_columns, p.n)
    return (not packed, float("inf") if entry.median_us is None else entry.median_us, str(entry.schedule))


def origin(entries: Sequence[Entry], table: str) -> str:
    """Lines that say where a table of these entries comes from; the hash is of the table's text."""
    known = sorted({entry.provenance for entry in entries if entry.provenance}) or ["not stated"]
    digest = hashlib.sha256(table.encode()).hexdigest()[:16]
    return "\n".join([f"Written by tuner {tool_version()}.", *(f"Source: {words}" for words in known), f"SHA-256 of the table: {digest}"])


def tool_version() -> str:
    try:
        return importlib.metadata.version("tuner")
    except importlib.metadata.PackageNotFoundError:
        return "(from its source tree)"


def write_atomically(path: Path, text: str) -> None:
    """All of the text or, whatever happens meanwhile, what was there before. A file that was there keeps its permissions."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.{secrets.token_hex(4)}")
    try:
        with temporary.open("x", encoding="utf-8", newline="\n") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        if path.exists():
            temporary.chmod(path.stat().st_mode & 0o777)
        os.replace(temporary, path)
    except OSError as error:
        raise UserError(f"cannot write {path}: {error.strerror}; what was there is as before") from None
    finally:
        temporary.unlink(missing_ok=True)
