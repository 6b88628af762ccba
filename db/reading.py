"""What is known: measurements that still hold, the best schedule for a problem, its neighbours, all records.

Plain SQL that SQLite and PostgreSQL both take, and for a file the standard library's sqlite3: importing SQLAlchemy alone takes
longer than `tuner best` may.
"""

from __future__ import annotations

import os
import sqlite3
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from db.best import Scope, best_known, nearest, tuned_problems
from db.faults import BUSY_TIMEOUT_SECONDS, VERSION_TABLE, check_file, check_version, faults_of, no_database, resolve
from db.records import REMEMBERED, BestAnswer, Environment, Finalist, Landscape, MeasuredOn, Measurement, Record, RunInfo, Stats
from db.rows import (
    ENVIRONMENT_COLUMNS,
    FINALIST_COLUMNS,
    MEASUREMENT_COLUMNS,
    PROBLEM_COLUMNS,
    SCHEDULE_COLUMNS,
    TRIAL_COLUMNS,
    Row,
    problem_row,
    read_finalist,
    read_landscape,
    read_measurement,
    read_problem,
    read_record,
    read_run,
    read_schedule,
)
from search_spaces.problem import Problem
from search_spaces.schedule import Schedule

_COMPARABLE = (*MeasuredOn._fields, "driver", "cuda", "torch")  # what has to agree for times to be compared
_PLACE = ("protocol", *(f"environment_{name}" for name in _COMPARABLE))
PAGE = 500  # records fetched at a time, so that a slow reader holds no transaction open


def _columns(names: tuple[str, ...], table: str = "trial") -> str:
    return ", ".join(f"{table}.{name}" for name in names)


def _same(names: tuple[str, ...], table: str = "trial") -> str:
    return " AND ".join(f"{table}.{name} = :{name}" for name in names)


_FROM = "FROM trial JOIN environment ON environment.id = trial.environment_id"
_RECORD = (
    f"SELECT trial.id AS trial_id, {_columns(TRIAL_COLUMNS)}, "
    + ", ".join(f"environment.{name} AS environment_{name}" for name in ENVIRONMENT_COLUMNS)
    + f" {_FROM}"
)
_PROBLEM = _same(PROBLEM_COLUMNS)


class Reader(ABC):
    """The questions. `location` is for printing: a file's path, or a URL without its password."""

    location: str

    @abstractmethod
    def rows(self, sql: str, values: Mapping[str, Any]) -> list[Row]: ...

    @abstractmethod
    def close(self) -> None: ...

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    def known(
        self, problem: Problem, environment: Environment, kernel_hashes: Mapping[str, str], protocol: str
    ) -> dict[Schedule, tuple[int, Measurement]]:
        """Attempts that hold in this environment, failures among them, with their trial ids; the newest of each schedule.

        kernel_hashes: family -> hash. What befell the machine and not the schedule is not among them: it is to be tried again.
        """
        same_place, given = _in_place(environment, _COMPARABLE)
        if environment.gpu_figures is not None:  # rows of before there was a hash have none
            same_place += " AND (environment.gpu_figures IS NULL OR environment.gpu_figures = :place_figures)"
            given["place_figures"] = environment.gpu_figures
        sql = (
            f"SELECT trial.id AS trial_id, trial.kernel_hash, {_columns(SCHEDULE_COLUMNS + MEASUREMENT_COLUMNS)}"
            f" {_FROM} WHERE {_PROBLEM} AND trial.gpu = :place_gpu AND {same_place} AND trial.protocol = :protocol"
            f" AND trial.status IN ({', '.join(map(repr, REMEMBERED))}) ORDER BY trial.id"
        )
        rows = self.rows(sql, problem_row(problem) | given | {"protocol": protocol})
        current = (row for row in rows if row["kernel_hash"] == kernel_hashes.get(row["family"]))
        return {read_schedule(row): (row["trial_id"], read_measurement(row)) for row in current}

    def best(self, problem: Problem, scope: Scope) -> BestAnswer | None:
        """What is known to be best, by the rule of `db.best`."""
        return best_known(self, problem, scope)

    def tuned_problems(self, scope: Scope) -> tuple[Problem, ...]:
        return tuned_problems(self, scope)

    def nearest(self, problem: Problem, scope: Scope) -> tuple[Problem, ...]:
        return nearest(self, problem, scope)

    def records(self, *, problem: Problem | None = None, gpu: str | None = None, run_id: int | None = None) -> Iterator[Record]:
        """Every attempt that fits, oldest first."""
        where, values = "WHERE trial.id > :last", {} if problem is None else problem_row(problem)
        if problem is not None:
            where += f" AND {_PROBLEM}"
        for column, value in (("gpu", gpu), ("run_id", run_id)):
            if value is not None:
                where, values = f"{where} AND trial.{column} = :{column}", values | {column: value}
        last = 0
        while rows := self.rows(f"{_RECORD} {where} ORDER BY trial.id LIMIT {PAGE}", values | {"last": last}):
            yield from map(read_record, rows)
            last = rows[-1]["trial_id"]

    def landscapes(self, gpu: str, *, sms: int | None, least: int = 1) -> tuple[Landscape, ...]:
        """What was timed on this GPU, a landscape a problem, in a fixed order.

        Times taken with different drivers, libraries or protocols are not mixed: of a problem's places the one with the newest time
        counts, among those that have at least `least` times.
        """
        where, values = _on_sms("WHERE trial.gpu = :gpu AND trial.median_us IS NOT NULL", {"gpu": gpu}, sms)
        columns = ", ".join(f"environment.{name} AS environment_{name}" for name in ENVIRONMENT_COLUMNS)
        names = _columns(("protocol", "recorded", "median_us", *PROBLEM_COLUMNS, *SCHEDULE_COLUMNS))
        found: dict[tuple[Any, ...], dict[tuple[Any, ...], list[Row]]] = {}
        for row in self.rows(f"SELECT {names}, {columns} {_FROM} {where} ORDER BY {_columns(PROBLEM_COLUMNS)}, trial.id", values):
            places = found.setdefault(tuple(row[name] for name in PROBLEM_COLUMNS), {})
            places.setdefault(tuple(row[name] for name in _PLACE), []).append(row)
        newest = (max(places.values(), key=lambda rows: (len(rows) >= least, rows[-1]["recorded"])) for places in found.values())
        return tuple(read_landscape(rows) for rows in newest)

    def trial(self, trial_id: int) -> Record:
        (row,) = self.rows(f"{_RECORD} WHERE trial.id = :trial_id", {"trial_id": trial_id})
        return read_record(row)

    def finalists(self, run_id: int) -> tuple[Finalist, ...]:
        columns = _columns(FINALIST_COLUMNS, "finalist")
        rows = self.rows(f"SELECT {columns} FROM finalist WHERE run_id = :run_id ORDER BY finalist.rank", {"run_id": run_id})
        return tuple(read_finalist(row) for row in rows)

    def runs(self) -> tuple[RunInfo, ...]:
        return tuple(read_run(row) for row in self.rows("SELECT id, request, status, started, finished FROM run ORDER BY id", {}))

    def finished_runs(self, request: str, environment: Environment) -> tuple[RunInfo, ...]:
        """Runs of this very request that came to their end with the same GPU, driver and libraries, newest first."""
        same_place, given = _in_place(environment, _COMPARABLE)
        sql = (
            "SELECT run.id, run.request, run.status, run.started, run.finished FROM run"
            " JOIN environment ON environment.id = run.environment_id"
            f" WHERE run.status = 'finished' AND run.request = :request AND {same_place} ORDER BY run.id DESC"
        )
        return tuple(read_run(row) for row in self.rows(sql, given | {"request": request}))

    def stats(self) -> Stats:
        problems = self._count("trial", ", ".join(("gpu", *PROBLEM_COLUMNS)))
        return Stats(
            runs={row["status"]: row["amount"] for row in self._count("run", "status")},
            trials={row["status"]: row["amount"] for row in self._count("trial", "status")},
            shapes={(row["gpu"], read_problem(row).text): row["amount"] for row in problems},
            finalists=sum(row["amount"] for row in self._count("finalist", "run_id")),
            environments=sum(row["amount"] for row in self._count("environment", "gpu")),
        )

    def _count(self, table: str, by: str) -> list[Row]:
        return self.rows(f"SELECT {by}, COUNT(*) AS amount FROM {table} GROUP BY {by} ORDER BY {by}", {})


def _in_place(environment: Environment, names: tuple[str, ...]) -> tuple[str, dict[str, Any]]:
    """The condition that these fields of a row's environment are this one's, and the values it names."""
    wanted = {name: getattr(environment, name) for name in names}
    sql = " AND ".join(f"environment.{name} " + ("IS NULL" if v is None else f"= :place_{name}") for name, v in wanted.items())
    return sql, {f"place_{name}": value for name, value in wanted.items() if value is not None}


def _on_sms(where: str, values: dict[str, Any], sms: int | None) -> tuple[str, dict[str, Any]]:
    return (where, values) if sms is None else (f"{where} AND environment.sms = :sms", values | {"sms": sms})


class FileReader(Reader):
    """A SQLite file, read only."""

    def __init__(self, path: Path) -> None:
        self.location = str(path)
        if not check_file(path):
            raise no_database(self.location)
        with faults_of(self.location):
            self._connection = sqlite3.connect(f"{path.as_uri()}?{_mode(path)}", uri=True, timeout=BUSY_TIMEOUT_SECONDS)
        self._connection.row_factory = sqlite3.Row
        self._connection.text_factory = _text
        try:
            self._check()
        except BaseException:
            self.close()
            raise

    def _check(self) -> None:
        self.rows("PRAGMA query_only = ON", {})
        tables = {row["name"] for row in self.rows("SELECT name FROM sqlite_master WHERE type = 'table'", {})}
        if not tables:
            raise no_database(self.location)
        version = self.rows(f"SELECT version_num FROM {VERSION_TABLE}", {}) if VERSION_TABLE in tables else []
        check_version(self.location, tables, version[0]["version_num"] if version else None)

    def rows(self, sql: str, values: Mapping[str, Any]) -> list[Row]:
        with faults_of(self.location):
            return [dict(row) for row in self._connection.execute(sql, dict(values))]

    def close(self) -> None:
        self._connection.close()


def _text(stored: bytes) -> str:
    """Text as SQLite keeps it, which need be none: anyone may have written the file."""
    return stored.decode("utf-8", "replace")


def _mode(path: Path) -> str:
    """How SQLite is to open the file: read-only, one in WAL mode leaves two more files behind, and in a read-only folder does not open."""
    if os.access(path, os.W_OK) and os.access(path.parent, os.W_OK):
        return "mode=rw"
    return "mode=ro" if Path(f"{path}-wal").exists() else "mode=ro&immutable=1"


def open_reader(location: str | Path | None) -> Reader:
    """For questions only. None means TUNER_DB, else the default path. Raises UserError where there is nothing to read."""
    found = resolve(location)
    if isinstance(found, Path):
        return FileReader(found)
    from db.store import open_store

    return open_store(found, create=False)
