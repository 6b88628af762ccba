"""Between nouns and rows. Columns are named after fields and axes, so that no list of them is copied; types are the schema's.

Rows come here typed, by `damage.typed`; what remains to be refused is what no column shows on its own, such as a success without a time.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields
from datetime import UTC, datetime
from typing import Any, TypeVar

from db.damage import Row, damaged_row, written
from db.records import Environment, Estimated, Finalist, Landscape, Measurement, Record, RunInfo
from search_spaces.errors import UserError
from search_spaces.plain_text import visible
from search_spaces.problem import Problem
from search_spaces.schedule import AXES, Schedule, Tile

Noun = TypeVar("Noun")


def _names(noun: type) -> tuple[str, ...]:
    return tuple(field.name for field in fields(noun))


PROBLEM_COLUMNS = _names(Problem)
SCHEDULE_COLUMNS = ("family", *AXES)
ENVIRONMENT_COLUMNS = _names(Environment)
MEASUREMENT_COLUMNS = _names(Measurement)
FINALIST_COLUMNS = _names(Finalist)
RUN_COLUMNS = _names(RunInfo)
_ESTIMATE_FIELDS = _names(Estimated)
_TILE_COLUMNS = tuple(f"{level}_{axis}" for level in ("warp", "mma") for axis in "mnk")
_OWN_COLUMNS = ("gpu", "kernel_hash", "protocol", "strategy", "model")
_STORE_COLUMNS = ("run_id", "recorded")
TRIAL_COLUMNS = (
    *_STORE_COLUMNS,
    *_OWN_COLUMNS,
    *PROBLEM_COLUMNS,
    *SCHEDULE_COLUMNS,
    *_TILE_COLUMNS,
    *(f"predicted_{name}" for name in _ESTIMATE_FIELDS),
    *MEASUREMENT_COLUMNS,
)


def now() -> str:
    return datetime.now(UTC).isoformat(timespec="milliseconds")


def problem_row(problem: Problem) -> dict[str, Any]:
    return {name: getattr(problem, name) for name in PROBLEM_COLUMNS}


def environment_row(environment: Environment) -> dict[str, Any]:
    return written({name: getattr(environment, name) for name in ENVIRONMENT_COLUMNS})


def finalist_row(finalist: Finalist) -> dict[str, Any]:
    return {name: getattr(finalist, name) for name in FINALIST_COLUMNS}


def trial_row(record: Record) -> dict[str, Any]:
    """All columns of a trial but those that the store fills in."""
    row = {name: getattr(record, name) for name in _OWN_COLUMNS}
    row |= problem_row(record.problem)
    row |= {name: getattr(record.schedule, name) for name in SCHEDULE_COLUMNS}
    row |= dict(zip(_TILE_COLUMNS, (*record.warp_tile, *record.mma_tile), strict=True))
    row |= {f"predicted_{name}": getattr(record.estimate, name) for name in _ESTIMATE_FIELDS}
    row |= {name: getattr(record.measurement, name) for name in MEASUREMENT_COLUMNS}
    row["predicted_terms"] = json.dumps(dict(record.estimate.terms))
    row["samples_us"] = json.dumps(list(record.measurement.samples_us))
    return written(row)


def _made(noun: Callable[..., Noun], table: str, row: Row, values: Mapping[str, Any]) -> Noun:
    try:
        return noun(**values)
    except (UserError, ValueError) as error:
        raise damaged_row(table, row, f"it is no {noun.__name__} ({visible(str(error))})") from None


def read_problem(row: Row) -> Problem:
    return _made(Problem, "trial", row, {name: row[name] for name in PROBLEM_COLUMNS})


def read_schedule(row: Row) -> Schedule:
    return Schedule(**{name: row[name] for name in SCHEDULE_COLUMNS})


def read_measurement(row: Row) -> Measurement:
    return _made(Measurement, "trial", row, {name: row[name] for name in MEASUREMENT_COLUMNS})


def read_finalist(row: Row) -> Finalist:
    return _made(Finalist, "finalist", row, {name: row[name] for name in FINALIST_COLUMNS})


def read_run(row: Row) -> RunInfo:
    return RunInfo(**{name: row[name] for name in RUN_COLUMNS})


def read_environment(row: Row, prefix: str = "") -> Environment:
    return Environment(**{name: row[f"{prefix}{name}"] for name in ENVIRONMENT_COLUMNS})


def read_landscape(rows: Sequence[Row]) -> Landscape:
    """From timed trials of one problem in one place, oldest first, with columns as `read_record` takes them."""
    newest = rows[-1]
    return Landscape(
        problem=read_problem(newest),
        environment=read_environment(newest, "environment_"),
        protocol=newest["protocol"],
        median_us={read_schedule(row): row["median_us"] for row in rows},
        recorded=newest["recorded"],
    )


def read_record(row: Row) -> Record:
    """From a trial's columns, `trial_id`, and its environment's columns with `environment_` before their names."""
    tiles = [row[name] for name in _TILE_COLUMNS]
    return Record(
        problem=read_problem(row),
        schedule=read_schedule(row),
        warp_tile=Tile(*tiles[:3]),
        mma_tile=Tile(*tiles[3:]),
        estimate=Estimated(**{name: row[f"predicted_{name}"] for name in _ESTIMATE_FIELDS}),
        environment=read_environment(row, "environment_"),
        measurement=read_measurement(row),
        trial_id=row["trial_id"],
        **{name: row[name] for name in (*_STORE_COLUMNS, *_OWN_COLUMNS)},
    )
