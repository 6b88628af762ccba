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
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from search_spaces.errors import UserError
from search_spaces.problem import Problem
from search_spaces.schedule import Schedule


@dataclass(frozen=True, kw_only=True)
class Entry:
    """A problem, the schedule to run it with, and where that is known from.

    library_ratio: the library's time over this schedule's, so above 1 where it beats the library. gpu: the name of its file. device_name: what the
    driver calls it. A schedule that was never measured has no time and no date.
    """

    problem: Problem
    schedule: Schedule
    median_us: float | None = None
    library_ratio: float | None = None
    gpu: str
    device_name: str = ""
    triton_version: str = ""
    date: str = ""

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


Export = Callable[[Sequence[Entry], ExportSettings], str]


def exporter_names() -> tuple[str, ...]:
    return tuple(sorted(module.name for module in pkgutil.iter_modules(__path__)))


def load_exporter(name: str) -> Export:
    if name not in exporter_names():
        raise UserError(f"no exporter named {name!r}; known: {', '.join(exporter_names())}")
    export: Export = importlib.import_module(f"{__name__}.{name}").export
    return export


def in_stable_order(entries: Sequence[Entry]) -> list[Entry]:
    """One entry a problem, sorted, whatever the order they came in. Of several for one problem the fastest is kept; all are of one GPU."""
    if not entries:
        raise UserError("no schedule to export; `tuner search` finds some")
    gpus = sorted({entry.gpu for entry in entries})
    if len(gpus) > 1:
        raise UserError(f"schedules of {len(gpus)} GPUs ({', '.join(gpus)}) for 1 export; export them one by one")
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


def provenance(entries: Sequence[Entry], table: str) -> list[str]:
    """Lines that say where a table of these entries comes from; the hash is of the table's text."""
    devices = sorted({entry.device_name for entry in entries if entry.device_name})
    tritons = sorted({entry.triton_version for entry in entries if entry.triton_version})
    dates = sorted({entry.date for entry in entries if entry.date})
    return [
        f"Written by tuner {tool_version()}.",
        f"GPU: {entries[0].gpu}" + (f" ({', '.join(devices)})" if devices else ""),
        f"Triton: {', '.join(tritons) or 'unknown'}",
        f"Measured: {'never' if not dates else dates[0] if len(dates) == 1 else f'{dates[0]} to {dates[-1]}'}",
        f"SHA-256 of the table: {hashlib.sha256(table.encode()).hexdigest()[:16]}",
    ]


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
