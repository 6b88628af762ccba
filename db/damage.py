"""What each column may hold. SQLite takes any value in any column, and a database may be someone else's: every row passes `typed` on its
way in, which makes of each value what its column is for, or refuses the row.

Text comes in as text that can be printed; prose that is long is cut. `written` is the way out: what it lets through comes back the same.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Mapping
from datetime import datetime
from functools import cache
from typing import Any, NoReturn, get_args

from db.records import RunStatus, Status
from search_spaces.errors import UserError
from search_spaces.plain_text import LARGEST, shown, visible
from search_spaces.problem import DTYPE_BYTES, LAYOUTS, MAX_EXTENT
from search_spaces.schedule import AXES, LARGEST_VALUE

Row = Mapping[str, Any]
Rule = Callable[[Any], Any]

LONGEST_NAME, LONGEST_PROSE, LONGEST_LOG = 300, 10_000, 100_000  # characters
LONGEST_JSON = 4_000_000
MOST_SAMPLES, MOST_TERMS = 100_000, 1000
_INT32 = 2**31 - 1
_IDENTIFIER = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,63}", re.ASCII)
_CAPABILITY = re.compile(r"[0-9]{1,3}\.[0-9]{1,3}", re.ASCII)


class DamagedRow(UserError):
    """A row that this program does not write."""


class _Wrong(Exception):
    """A value that its column may not hold; the text says what it may hold."""


def _shown(value: object) -> str:
    if value is None:
        return "NULL"
    return shown(value[:100] if isinstance(value, bytes) else value, quotes=isinstance(value, str))


# rules: from a column's value to what the program works with


def _whole(most: int = _INT32, least: int = 0) -> Rule:
    def read(value: Any) -> int:
        if type(value) is not int or not least <= value <= most:
            raise _Wrong(f"a whole number from {least} to {most}")
        return value

    return read


def _real(*, above_zero: bool = False, infinite: bool = False) -> Rule:
    wanted = f"a{'' if infinite else ' finite'} number {'above' if above_zero else 'of at least'} 0"

    def read(value: Any) -> float:
        if type(value) not in (int, float) or not (value > 0 if above_zero else value >= 0) or (value == math.inf and not infinite):
            raise _Wrong(wanted)
        return float(value)

    return read


def _name(pattern: re.Pattern[str] | None = None, what: str = "") -> Rule:
    """A text of one line."""

    def read(value: Any) -> str:
        if type(value) is not str or len(value) > LONGEST_NAME or (pattern and not pattern.fullmatch(value)):
            raise _Wrong(what or f"a text of at most {LONGEST_NAME} characters")
        return visible(value).replace("\n", "\\n").replace("\t", "\\t")

    return read


def _prose(most: int = LONGEST_PROSE) -> Rule:
    """A text for a person, which may be cut."""

    def read(value: Any) -> str:
        if type(value) is not str:
            raise _Wrong("a text")
        return visible(value if len(value) <= most else f"{value[:most]}... ({len(value)} characters)")

    return read


def _one_of(known: tuple[str, ...]) -> Rule:
    def read(value: Any) -> str:
        if type(value) is not str or value not in known:
            raise _Wrong(f"one of {', '.join(known)}")
        return value

    return read


def _flag(value: Any) -> bool:
    if type(value) not in (int, bool) or value not in (0, 1):  # SQLite has no truth values
        raise _Wrong("0 or 1")
    return bool(value)


def _time(value: Any) -> datetime:
    try:
        found = datetime.fromisoformat(value) if type(value) is str else None
    except ValueError:
        found = None
    if found is None or found.tzinfo is None:
        raise _Wrong("a time in ISO 8601 with its zone")
    return found


def _json(value: Any) -> Any:
    """None for what is no JSON, or too long."""
    if type(value) is not str or len(value) > LONGEST_JSON:
        return None
    try:
        return json.loads(value, parse_constant=_no_number)
    except (ValueError, RecursionError):
        return None


def _no_number(text: str) -> NoReturn:
    raise ValueError(text)


def _samples(value: Any) -> tuple[float, ...]:
    found, each = _json(value), _real(above_zero=True)
    if not isinstance(found, list) or len(found) > MOST_SAMPLES:
        raise _Wrong("a JSON list of times")
    return tuple(map(each, found))


def _terms(value: Any) -> dict[str, float]:
    found, name, seconds = _json(value), _name(), _real()
    if not isinstance(found, dict) or len(found) > MOST_TERMS:
        raise _Wrong("a JSON object of names with seconds")
    return {name(key): seconds(term) for key, term in found.items()}


def _request(value: Any) -> str:
    if not isinstance(_json(value), dict):
        raise _Wrong("a JSON object")
    return str(value)


def _maybe(rule: Rule) -> Rule:
    return lambda value: None if value is None else rule(value)


_ID = _whole(LARGEST, 1)
_AXIS = _whole(LARGEST_VALUE)

# table -> column -> rule; a test holds them and the schema together
COLUMNS: Mapping[str, Mapping[str, Rule]] = {
    "run": {
        **dict.fromkeys(("id", "environment_id"), _ID),
        "request": _request,
        "status": _one_of(get_args(RunStatus)),
        "started": _time,
        "finished": _maybe(_time),
        "host": _maybe(_name()),
        "pid": _maybe(_whole(least=1)),
        "process_started": _maybe(_real()),
    },
    "environment": {
        "id": _ID,
        **dict.fromkeys(("gpu", "triton", "python", "code_version"), _name()),
        **dict.fromkeys(("device_name", "device_uuid", "driver", "cuda", "torch", "gpu_figures"), _maybe(_name())),
        "sms": _maybe(_whole()),
        "device_memory_bytes": _maybe(_whole(LARGEST)),
        "compute_capability": _maybe(_name(_CAPABILITY, "a compute capability such as 9.0")),
        **dict.fromkeys(("sm_clock_mhz", "memory_clock_mhz", "power_limit_w"), _maybe(_real())),
    },
    "trial": {
        **dict.fromkeys(("id", "run_id", "environment_id"), _ID),
        "recorded": _time,
        **dict.fromkeys(("gpu", "kernel_hash", "protocol", "strategy", "model"), _name()),
        **dict.fromkeys("mnk", _whole(MAX_EXTENT)),
        **dict.fromkeys(("dtype", "out_dtype"), _one_of(tuple(DTYPE_BYTES))),
        "layout": _one_of(LAYOUTS),
        **dict.fromkeys(("lda", "ldb", "ldc"), _whole(LARGEST, 1)),
        "alignment_bytes": _whole(least=1),
        "family": _name(_IDENTIFIER, "a family's name"),
        **dict.fromkeys(AXES, _AXIS),
        **dict.fromkeys((f"{level}_{axis}" for level in ("warp", "mma") for axis in "mnk"), _AXIS),
        "predicted_seconds": _real(above_zero=True),
        "predicted_limiter": _name(),
        **dict.fromkeys(("predicted_registers", "predicted_shared_memory_bytes"), _maybe(_whole())),
        "predicted_waves": _maybe(_real()),
        "predicted_terms": _terms,
        "status": _one_of(get_args(Status)),
        "message": _prose(),
        "samples_us": _samples,
        "median_us": _maybe(_real(above_zero=True)),
        **dict.fromkeys(("relative_error", "error_bound"), _maybe(_real(infinite=True))),
        **dict.fromkeys(("registers", "spill_slots", "shared_memory_bytes", "operand_sets"), _maybe(_whole())),
        **dict.fromkeys(("mma_instruction", "binary_hash"), _maybe(_name())),
        **dict.fromkeys(("compile_seconds", "sm_clock_mhz", "operands_over_l2"), _maybe(_real())),
        **dict.fromkeys(("throttle_reasons", "operands"), _maybe(_prose())),
        "compile_log": _maybe(_prose(LONGEST_LOG)),
    },
    "finalist": {
        **dict.fromkeys(("run_id", "trial_id"), _ID),
        "rank": _whole(least=1),
        **dict.fromkeys(("ratio", "ratio_low", "ratio_high", "median_us", "library_us"), _real(above_zero=True)),
        **dict.fromkeys(("tied", "winner"), _flag),
        **dict.fromkeys(("hot_l2_us", "eager_us"), _maybe(_real(above_zero=True))),
    },
}
_ALIASES: Mapping[str, Rule] = {"trial_id": _ID, "finals_run": _ID, "amount": _whole(LARGEST)}


@cache
def _rules(table: str) -> dict[str, Rule]:
    """A table's own columns, and by the names that questions give them those of its environment and counts."""
    place = {f"environment_{name}": rule for name, rule in COLUMNS["environment"].items()}
    return {**_ALIASES, **place, **COLUMNS[table]}


def typed(table: str, row: Row) -> dict[str, Any]:
    """The row with each value as what its column is for. Raises DamagedRow."""
    rules, found, name = _rules(table), {}, ""
    try:
        for name, value in row.items():
            found[name] = rules[name](value)
    except _Wrong as wrong:
        raise damaged_row(table, row, f"{name} is {_shown(row[name])}, not {wrong}") from None
    return found


def damaged_row(table: str, row: Row, why: str) -> DamagedRow:
    number = row.get("trial_id", row.get("id"))
    where = f"{'trial' if table == 'finalist' else table} {number}" if type(number) is int else table
    place = "'s place in the finals" if table == "finalist" and where != table else ""
    return DamagedRow(f"{where}{place}: {why}")


def written(row: Row) -> dict[str, Any]:
    """The row with text that every database takes: no NUL, nothing that is no character."""
    return {name: visible(value) if isinstance(value, str) else value for name, value in row.items()}
