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

from db.faults import BUSY_TIMEOUT_SECONDS, VERSION_TABLE, check_file, check_version, faults_of, no_database, resolve
from db.records import BestAnswer, Environment, Finalist, Landscape, MeasuredOn, Measurement, Record, RunInfo, Stats
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
from search_spaces.schedule import UNORDERED, Schedule

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
_ORDERED = f"trial.fused_reduction <> {UNORDERED}"
# a later attempt at the same schedule, with the same kernel and compiler, that gave a wrong answer
_NOT_DISPROVED = (
    "NOT EXISTS (SELECT 1 FROM trial later JOIN environment place ON place.id = later.environment_id WHERE later.id > trial.id"
    " AND later.status IN ('wrong_answer', 'unstable') AND place.triton = environment.triton AND "
    + " AND ".join(f"later.{name} = trial.{name}" for name in ("gpu", "kernel_hash", *PROBLEM_COLUMNS, *SCHEDULE_COLUMNS))
    + ")"
)


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

        kernel_hashes: family -> hash. An attempt that was ended from outside (`killed`) is not among them: it is to be made again.
        """
        same_place, given = _in_place(environment, MeasuredOn._fields)
        sql = (
            f"SELECT trial.id AS trial_id, trial.kernel_hash, {_columns(SCHEDULE_COLUMNS + MEASUREMENT_COLUMNS)}"
            f" {_FROM} WHERE {_PROBLEM} AND trial.gpu = :place_gpu AND {same_place} AND trial.protocol = :protocol"
            " AND trial.status <> 'killed' ORDER BY trial.id"
        )
        rows = self.rows(sql, problem_row(problem) | given | {"protocol": protocol})
        current = (row for row in rows if row["kernel_hash"] == kernel_hashes.get(row["family"]))
        return {read_schedule(row): (row["trial_id"], read_measurement(row)) for row in current}

    def best(
        self,
        problem: Problem,
        gpu: str,
        *,
        sms: int | None,
        triton: str | None = None,
        kernel_hashes: Mapping[str, str] | None = None,
        unordered: bool = False,
    ) -> BestAnswer | None:
        """The winner of the latest finished run, else the lowest median, else (`measured` False) the model's first choice in a run.

        Never for another shape, nor for a slice of the card: sms is what the GPU asked for has, None where no source gives it.
        triton: only what this version compiled. kernel_hashes: family -> hash as it is now; answers from others come last, as stale.
        unordered: schedules whose bits may differ from run to run may answer, too.
        """
        where = f"WHERE {_PROBLEM} AND trial.gpu = :gpu" + ("" if unordered else f" AND {_ORDERED}")
        values = problem_row(problem) | {"gpu": gpu}
        if triton is not None:
            where, values = f"{where} AND environment.triton = :triton", values | {"triton": triton}
        measured, values = _on_sms(where, values, sms)
        measured = f"{measured} AND {_NOT_DISPROVED}"
        current, values = _current(values, kernel_hashes)
        for fresh in (current, "") if current else ("",):
            stale = bool(current) and not fresh
            if found := self._winner(f"{measured}{fresh}", values, stale, "" if unordered else f" AND {_ORDERED}"):
                return found
            rows = self.rows(f"{_RECORD} {measured}{fresh} AND trial.status = 'ok' ORDER BY trial.median_us, trial.id LIMIT 1", values)
            if rows:
                return BestAnswer(record=read_record(rows[0]), measured=True, stale=stale)
        for fresh in (current, "") if current else ("",):
            order = "ORDER BY trial.run_id DESC, trial.predicted_seconds, trial.id LIMIT 1"
            rows = self.rows(f"{_RECORD} {where}{fresh} AND trial.status = 'compiled' {order}", values)
            if rows:
                return BestAnswer(record=read_record(rows[0]), measured=False, stale=bool(current) and not fresh)
        return None

    def _winner(self, where: str, values: Mapping[str, Any], stale: bool, ordered: str) -> BestAnswer | None:
        crowned = self.rows(
            f"SELECT {_columns(FINALIST_COLUMNS, 'finalist')}, finalist.run_id AS crowned_in {_FROM}"
            f" JOIN finalist ON finalist.trial_id = trial.id JOIN run ON run.id = finalist.run_id {where}"
            " AND finalist.winner AND run.status = 'finished' ORDER BY finalist.run_id DESC LIMIT 1",
            values,
        )
        if not crowned:
            return None
        tied = self.rows(
            f"SELECT {_columns(SCHEDULE_COLUMNS)} FROM finalist JOIN trial ON trial.id = finalist.trial_id"
            f" WHERE finalist.run_id = :crowned_in AND finalist.tied AND finalist.trial_id <> :trial_id{ordered} ORDER BY finalist.rank",
            {"crowned_in": crowned[0]["crowned_in"], "trial_id": crowned[0]["trial_id"]},
        )
        winner = read_finalist(crowned[0])
        ties = tuple(read_schedule(row) for row in tied)
        return BestAnswer(record=self.trial(winner.trial_id), measured=True, finalist=winner, ties=ties, stale=stale)

    def tuned_problems(self, gpu: str, *, sms: int | None, unordered: bool = False) -> tuple[Problem, ...]:
        """The problems that have a measured answer on this GPU, in a fixed order. unordered: see `best`."""
        where, values = _on_sms("WHERE trial.gpu = :gpu AND trial.status = 'ok'", {"gpu": gpu}, sms)
        where += "" if unordered else f" AND {_ORDERED}"
        names = _columns(PROBLEM_COLUMNS)
        rows = self.rows(f"SELECT DISTINCT {names} {_FROM} {where} ORDER BY {names}", values)
        return tuple(read_problem(row) for row in rows)

    def nearest(self, problem: Problem, gpu: str, *, sms: int | None) -> tuple[Problem, ...]:
        """Measured problems that differ in M: the same N, K, types and layout; nearest first. For a message, not to answer with."""

        def kind(p: Problem) -> tuple[int, int, str, str, str]:
            return (p.n, p.k, p.dtype, p.out_dtype, p.layout)

        others = (p for p in self.tuned_problems(gpu, sms=sms) if kind(p) == kind(problem) and p.m != problem.m)
        return tuple(sorted(others, key=lambda p: max(p.m, problem.m) / max(min(p.m, problem.m), 1)))

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
        shapes = self._count("trial", "gpu, m, n, k")
        return Stats(
            runs={row["status"]: row["amount"] for row in self._count("run", "status")},
            trials={row["status"]: row["amount"] for row in self._count("trial", "status")},
            shapes={(row["gpu"], f"{row['m']}x{row['n']}x{row['k']}"): row["amount"] for row in shapes},
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


def _current(values: dict[str, Any], kernel_hashes: Mapping[str, str] | None) -> tuple[str, dict[str, Any]]:
    """The condition that a trial's kernel is today's source; empty where that is not asked."""
    if not kernel_hashes:
        return "", values
    pairs = [(f"family_{i}", f"hash_{i}", family, digest) for i, (family, digest) in enumerate(kernel_hashes.items())]
    either = " OR ".join(f"(trial.family = :{family} AND trial.kernel_hash = :{digest})" for family, digest, _, _ in pairs)
    return f" AND ({either})", values | {key: value for f, d, family, digest in pairs for key, value in ((f, family), (d, digest))}


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
