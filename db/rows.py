"""Between nouns and rows. Columns are named after fields and axes, so that no list of them is copied; types are the schema's."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import fields, replace
from datetime import UTC, datetime
from typing import Any

from db.damage import DamagedRow, made, moment, named_numbers, numbers
from db.records import Environment, Estimated, Finalist, Landscape, Measurement, Record, RunInfo
from search_spaces.plain_text import shown
from search_spaces.problem import Problem
from search_spaces.schedule import AXES, Schedule, Tile

Row = Mapping[str, Any]


def _names(noun: type) -> tuple[str, ...]:
    return tuple(field.name for field in fields(noun))


PROBLEM_COLUMNS = _names(Problem)
SCHEDULE_COLUMNS = ("family", *AXES)
ENVIRONMENT_COLUMNS = _names(Environment)
MEASUREMENT_COLUMNS = _names(Measurement)
FINALIST_COLUMNS = _names(Finalist)
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
    return {name: getattr(environment, name) for name in ENVIRONMENT_COLUMNS}


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
    return row


def read_problem(row: Row) -> Problem:
    return made(Problem, {name: row[name] for name in PROBLEM_COLUMNS})


def read_schedule(row: Row) -> Schedule:
    return made(Schedule, {name: row[name] for name in SCHEDULE_COLUMNS})


def read_measurement(row: Row) -> Measurement:
    values = {name: row[name] for name in MEASUREMENT_COLUMNS}
    return made(Measurement, values | {"samples_us": tuple(numbers(values["samples_us"], "samples_us"))})


def read_finalist(row: Row) -> Finalist:
    found = made(Finalist, {name: row[name] for name in FINALIST_COLUMNS})
    return replace(found, tied=bool(found.tied), winner=bool(found.winner))


def read_run(row: Row) -> RunInfo:
    times = {name: moment(row[name], name) for name in ("started", "finished")}
    return RunInfo(id=row["id"], request=row["request"], status=row["status"], **times)  # type: ignore[arg-type]


def read_landscape(rows: Sequence[Row]) -> Landscape:
    """From timed trials of one problem in one place, oldest first, with columns as `read_record` takes them."""
    newest = rows[-1]
    recorded = moment(newest["recorded"], "recorded")
    assert recorded is not None  # the schema says so
    return Landscape(
        problem=read_problem(newest),
        environment=_read_environment(newest),
        protocol=newest["protocol"],
        median_us={read_schedule(row): row["median_us"] for row in rows},
        recorded=recorded,
    )


def _read_environment(row: Row) -> Environment:
    return made(Environment, {name: row[f"environment_{name}"] for name in ENVIRONMENT_COLUMNS})


def read_record(row: Row) -> Record:
    """From a trial's columns, `trial_id`, and its environment's columns with `environment_` before their names."""
    tiles = [row[name] for name in _TILE_COLUMNS]
    if not all(type(extent) is int for extent in tiles):
        raise DamagedRow(f"the warp and MMA tiles of a row of the database are {shown(tiles)}, not all of them whole numbers")
    estimate = {name: row[f"predicted_{name}"] for name in _ESTIMATE_FIELDS}
    return Record(
        problem=read_problem(row),
        schedule=read_schedule(row),
        warp_tile=Tile(*tiles[:3]),
        mma_tile=Tile(*tiles[3:]),
        estimate=made(Estimated, estimate | {"terms": named_numbers(estimate["terms"], "predicted_terms")}),
        environment=_read_environment(row),
        measurement=read_measurement(row),
        trial_id=row["trial_id"],
        run_id=row["run_id"],
        recorded=moment(row["recorded"], "recorded"),
        **{name: row[name] for name in _OWN_COLUMNS},
    )
