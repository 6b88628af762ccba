"""How do winners reach production code? One file an exporter; the file's name is the consumer's, on the command line too.

An exporter turns entries into text and touches nothing. What it writes of an entry goes through `literal`, `comment` or `docstring`, since
the text will be run, and the database that the entry is from may be someone else's.
"""

from __future__ import annotations

import hashlib
import importlib
import json
import math
import pkgutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Protocol

from search_spaces.errors import UserError, did_you_mean
from search_spaces.families import families
from search_spaces.plain_text import shown, visible
from search_spaces.problem import DTYPE_BYTES, LAYOUTS, Problem
from search_spaces.schedule import AXES, LARGEST_VALUE, Schedule
from tuner.code_version import code_version

Key = tuple[str | int, ...]
AXIS_DEFAULTS = {axis.name: axis.default for axis in fields(Schedule)}
LONGEST_COMMENT = 400  # characters


@dataclass(frozen=True, kw_only=True)
class Entry:
    """A problem and the schedule to run it with.

    library_ratio: the library's time over this schedule's, above 1 where the library is slower. provenance: GPU, driver, Triton, torch and
    day, in words. cautions: why the time may not be today's, such as another Triton. A schedule that was never measured has no time.
    """

    problem: Problem
    schedule: Schedule
    median_us: float | None = None
    library_ratio: float | None = None
    provenance: str = ""
    cautions: tuple[str, ...] = ()

    @property
    def remark(self) -> str:
        """`35.41 us, 1.049x the library`."""
        ratio = "" if self.library_ratio is None else f", {self.library_ratio:.3f}x the library"
        time = "not measured" if self.median_us is None else f"{self.median_us:.4g} us{ratio}"
        return "; ".join((time, *self.cautions))


@dataclass(frozen=True, kw_only=True)
class ExportSettings:
    """rename: the consumer's name for a parameter of ours."""

    rename: Mapping[str, str] = field(default_factory=dict)


class Export(Protocol):
    def __call__(self, entries: Sequence[Entry], settings: ExportSettings | None = None) -> str: ...


def whole_problem(problem: Problem) -> Key:
    """The key of an exporter whose consumers tell all problems apart."""
    return (problem.text,)


def no_obstacle(entry: Entry) -> str | None:
    return None


@dataclass(frozen=True, kw_only=True)
class Exporter:
    """summary: the first line of what its file says of itself. key: what its consumers can tell apart; of several problems with one key the
    fastest is exported. obstacle: why an entry cannot be in the text, None where it can."""

    name: str
    summary: str
    export: Export
    key: Callable[[Problem], Key] = whole_problem
    obstacle: Callable[[Entry], str | None] = no_obstacle


def exporter_names() -> tuple[str, ...]:
    return tuple(sorted(module.name for module in pkgutil.iter_modules(__path__) if not module.name.startswith("_")))


def load_exporter(name: str) -> Exporter:
    """Raises UserError for a name that no file has, and for a file that is no exporter."""
    names = exporter_names()
    if not name:
        raise UserError(f"export needs --to, which says who takes the schedules: give {' or '.join(f'--to {known}' for known in names)}")
    if name not in names:
        raise UserError(f"no exporter named {shown(name)}; known: {', '.join(names)}{did_you_mean(name, names)}")
    try:
        module = importlib.import_module(f"{__name__}.{name}")
    except Exception as error:  # a file of anyone's: whatever it raises, the others are to go on
        what = f"{type(error).__name__}: {shown(error, quotes=False)}"
        raise UserError(f"exporter {name} cannot be loaded ({what}); mend its file") from error
    given = {part: getattr(module, part) for part in ("export", "key", "obstacle") if hasattr(module, part)}
    wrong = [part for part in ("export", *given) if not callable(given.get(part))]
    if wrong:
        raise UserError(f"exporter {name} has no function `{wrong[0]}`; {module.__file__} has to define it as `tuner/exporters` says")
    return Exporter(name=name, summary=(module.__doc__ or "").partition("\n")[0], **given)


def damage(entry: Entry) -> str | None:
    """What in an entry is of another kind than it must be, in words; None where all is as it must be."""
    p, schedule = entry.problem, entry.schedule
    if type(schedule.family) is not str or schedule.family not in families():
        return f"family {shown(schedule.family)} is none of {', '.join(families())}"
    for axis in AXES:
        least = 0 if AXIS_DEFAULTS[axis] == 0 else 1
        if type(value := getattr(schedule, axis)) is not int or not least <= value <= LARGEST_VALUE:
            return f"{axis} is {shown(value)}, which is no whole number from {least} to {LARGEST_VALUE}"
    for name, known in (("dtype", DTYPE_BYTES), ("out_dtype", DTYPE_BYTES), ("layout", LAYOUTS)):
        if type(word := getattr(p, name)) is not str or word not in known:
            return f"{name} is {shown(word)}, which is none of {', '.join(known)}"
    for name in ("m", "n", "k", "lda", "ldb", "ldc", "alignment_bytes"):
        if type(value := getattr(p, name)) is not int:
            return f"{name} is {shown(value)}, which is no whole number"
    for name in ("median_us", "library_ratio"):
        number = getattr(entry, name)
        if number is not None and (type(number) not in (int, float) or not math.isfinite(number) or number <= 0):
            return f"{name} is {shown(number)}, which is no time or ratio above 0"
    return None


def select(entries: Sequence[Entry], exporter: Exporter) -> tuple[list[Entry], list[str]]:
    """Those of the entries that the exporter's text will hold, and a sentence on each that it will not. Whatever order they came in."""
    notes, sound = [], []
    for entry in entries:
        why = damage(entry) or exporter.obstacle(entry)
        if why:
            notes.append(f"{entry.problem.text}: left out: {why}")
        else:
            sound.append(entry)
    kept = fastest(sound, exporter.key)
    held = {exporter.key(entry.problem): entry for entry in kept}
    for entry in sound:
        other = held[exporter.key(entry.problem)]
        if other is not entry:
            same = f"{exporter.name} cannot tell it from {other.problem.text}, which is kept ({other.remark})"
            notes.append(f"{entry.problem.text}: left out ({entry.remark}): {same}")
    return kept, notes


def fastest(entries: Sequence[Entry], key: Callable[[Problem], Key]) -> list[Entry]:
    """One entry a key, in the order of the keys. Of several the fastest is kept; what was never measured comes last."""
    best: dict[Key, Entry] = {}
    for entry in sorted(entries, key=_speed):
        best.setdefault(key(entry.problem), entry)
    return [best[one] for one in sorted(best)]


def _speed(entry: Entry) -> tuple[float, str, str]:
    return (float("inf") if entry.median_us is None else entry.median_us, entry.problem.text, str(entry.schedule))


def some(entries: Sequence[Entry]) -> Sequence[Entry]:
    if not entries:
        raise UserError("0 schedules to export; `tuner search` finds some")
    return entries


def origin(entries: Sequence[Entry], table: str) -> str:
    """Lines of a docstring that say where a table of these entries comes from; the hash is of the table's text."""
    known = sorted({entry.provenance for entry in entries if entry.provenance}) or ["not stated"]
    cautions = sorted({caution for entry in entries for caution in entry.cautions})
    digest = hashlib.sha256(table.encode()).hexdigest()[:16]
    lines = [f"Written by tuner {code_version()}.", *(f"Source: {words}" for words in known), *(f"Caution: {words}" for words in cautions)]
    return "\n".join([*map(docstring, lines), f"SHA-256 of the table: {digest}"])


def literal(value: object) -> str:
    """A whole number or a text as Python source that is this value and nothing else. Raises UserError for anything else."""
    if type(value) is int:
        return str(value)
    if type(value) is str:
        return json.dumps(value) if value.isascii() and value.isprintable() else repr(value)
    raise UserError(f"{shown(value)} is neither a whole number nor a text, and is not written into code")


def comment(text: str) -> str:
    """The text as the rest of a line of source after `#`: one line, with nothing in it that ends a line."""
    line = visible(text[: LONGEST_COMMENT + 1]).replace("\n", " ").replace("\t", " ")
    return line if len(line) <= LONGEST_COMMENT else f"{line[:LONGEST_COMMENT]}..."


def docstring(text: str) -> str:
    """The text as one line within a string of three double quotes, which it cannot end."""
    return comment(text).replace("\\", "\\\\").replace('"', '\\"')
