"""What is known: measurements that still hold, the best schedule for a problem, its neighbours, all records.

Plain SQL that SQLite and PostgreSQL both take, and for a file the standard library's sqlite3: importing SQLAlchemy alone takes
longer than `tuner best` may.
"""

from __future__ import annotations

import os
import sqlite3
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from types import MappingProxyType, TracebackType
from typing import Any, Self, TypeVar

from db.best import Scope, best_known, nearest, tuned_problems
from db.damage import DamagedRow, Row, typed, written
from db.faults import BUSY_TIMEOUT_SECONDS, OTHER_FILE, check_file, faults_of, guard, no_database, resolve
from db.records import REMEMBERED, BestAnswer, Environment, Finalist, Landscape, MeasuredOn, Measurement, Record, RunInfo, Stats
from db.rows import (
    ENVIRONMENT_COLUMNS,
    FINALIST_COLUMNS,
    MEASUREMENT_COLUMNS,
    PROBLEM_COLUMNS,
    RUN_COLUMNS,
    SCHEDULE_COLUMNS,
    TRIAL_COLUMNS,
    problem_row,
    read_finalist,
    read_landscape,
    read_measurement,
    read_problem,
    read_record,
    read_run,
    read_schedule,
)
from db.structure import file_version
from search_spaces.errors import UserError
from search_spaces.plain_text import LARGEST, visible
from search_spaces.problem import Problem
from search_spaces.schedule import Schedule

_COMPARABLE = (*MeasuredOn._fields, "driver", "cuda", "torch")  # what has to agree for times to be compared
_PLACE = ("protocol", *(f"environment_{name}" for name in _COMPARABLE))
NOTHING: Mapping[str, Any] = MappingProxyType({})
MOST_NOTED, NAMED = 1000, 3  # damaged rows that are counted, and named
PAGE = 500  # records fetched at a time, so that a slow reader holds no transaction open


Item = TypeVar("Item")
Noun = TypeVar("Noun")


def keep_silent(text: str) -> None:
    """Where nobody is to be told."""


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
    """The questions. location: for printing, a file's path or a URL without what is secret in it."""

    def __init__(self, location: str) -> None:
        self.location = location
        self.say: Callable[[str], None] = keep_silent
        self._damaged: dict[str, None] = {}

    @abstractmethod
    def look(self, sql: str, values: Mapping[str, Any] = NOTHING) -> Iterable[Row]:
        """Rows as they are stored, whoever wrote them."""

    @abstractmethod
    def close(self) -> None: ...

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()
        if kind is None and self.damage:
            self.say(self.damage)

    def rows(self, sql: str, values: Mapping[str, Any], of: str = "trial") -> list[Row]:
        """Rows whose values are of the types that their columns are for, under the columns' names in table `of` or with `environment_`
        before those of the environment. Damaged ones are left out and noted."""
        found: list[Row] = []
        for row in self.look(sql, written(values)):
            try:
                found.append(typed(of, row))
            except DamagedRow as error:
                self._note(error)
        return found

    def sound(self, read: Callable[[Item], Noun], rows: Iterable[Item]) -> Iterator[tuple[Item, Noun]]:
        """Each row with what is made of it; what is none is left out and noted, too."""
        for row in rows:
            try:
                yield row, read(row)
            except DamagedRow as error:
                self._note(error)

    def _note(self, error: DamagedRow) -> None:
        if len(self._damaged) < MOST_NOTED:
            self._damaged[str(error)] = None

    def tell(self, say: Callable[[str], None]) -> None:
        """Who is to be told, on closing, of rows that were left out."""
        self.say = say

    @property
    def damaged_rows(self) -> str:
        """The damaged rows that were met so far, in words; empty where there was none."""
        amount = f"{len(self._damaged)}{' or more' if len(self._damaged) == MOST_NOTED else ''}"
        rows = "row" if amount == "1" else "rows"
        return f"{amount} damaged {rows} ({'; '.join([*self._damaged][:NAMED])})" if self._damaged else ""

    @property
    def damage(self) -> str:
        """A sentence on what was left out of the answers so far."""
        return f"{self.location}: left out {self.damaged_rows}; `tuner db check` looks at all rows" if self._damaged else ""

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
        return {read_schedule(row): (row["trial_id"], found) for row, found in self.sound(read_measurement, current)}

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
        last = -LARGEST
        while page := self._ids(where, values | {"last": last}):
            rows = self.rows(f"{_RECORD} {where} AND trial.id <= :end ORDER BY trial.id", values | {"last": last, "end": page[-1]})
            yield from (record for _, record in self.sound(read_record, rows))
            last = page[-1]

    def _ids(self, where: str, values: Mapping[str, Any]) -> list[int]:
        """Of a page of trials. They are what SQLite's primary key makes sure that they are, damaged as the rest of a row may be."""
        return [
            row["trial_id"] for row in self.look(f"SELECT trial.id AS trial_id FROM trial {where} ORDER BY trial.id LIMIT {PAGE}", values)
        ]

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
        return tuple(landscape for _, landscape in self.sound(read_landscape, newest))

    def trial(self, trial_id: int) -> Record:
        """Raises UserError where the row is damaged, or not there."""
        for row in self.look(f"{_RECORD} WHERE trial.id = :trial_id", {"trial_id": trial_id}):
            try:
                return read_record(typed("trial", row))
            except DamagedRow as error:
                self._note(error)
                raise DamagedRow(f"{self.location}, {error}; `tuner db check` looks at all rows") from None
        raise UserError(f"{self.location} has no trial {trial_id} whose environment is there; run `tuner db check`, or {OTHER_FILE}")

    def finalists(self, run_id: int) -> tuple[Finalist, ...]:
        columns = _columns(FINALIST_COLUMNS, "finalist")
        sql = f"SELECT {columns} FROM finalist WHERE run_id = :run_id ORDER BY finalist.rank"
        return tuple(found for _, found in self.sound(read_finalist, self.rows(sql, {"run_id": run_id}, of="finalist")))

    def runs(self) -> tuple[RunInfo, ...]:
        return tuple(map(read_run, self.rows(f"SELECT {_columns(RUN_COLUMNS, 'run')} FROM run ORDER BY id", {}, of="run")))

    def finished_runs(self, request: str, environment: Environment) -> tuple[RunInfo, ...]:
        """Runs of this very request that came to their end with the same GPU, driver and libraries, newest first."""
        same_place, given = _in_place(environment, _COMPARABLE)
        sql = (
            f"SELECT {_columns(RUN_COLUMNS, 'run')} FROM run"
            " JOIN environment ON environment.id = run.environment_id"
            f" WHERE run.status = 'finished' AND run.request = :request AND {same_place} ORDER BY run.id DESC"
        )
        return tuple(map(read_run, self.rows(sql, given | {"request": request}, of="run")))

    def stats(self) -> Stats:
        problems = self.sound(read_problem, self._count("trial", ", ".join(("gpu", *PROBLEM_COLUMNS))))
        return Stats(
            runs={row["status"]: row["amount"] for row in self._count("run", "status")},
            trials={row["status"]: row["amount"] for row in self._count("trial", "status")},
            shapes={(row["gpu"], problem.text): row["amount"] for row, problem in problems},
            finalists=sum(row["amount"] for row in self._count("finalist", "run_id")),
            environments=sum(row["amount"] for row in self._count("environment", "gpu")),
        )

    def _count(self, table: str, by: str) -> list[Row]:
        return self.rows(f"SELECT {by}, COUNT(*) AS amount FROM {table} GROUP BY {by} ORDER BY {by}", {}, of=table)


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
        super().__init__(visible(str(path)))
        if not check_file(path):
            raise no_database(self.location)
        with faults_of(self.location):
            self._connection = sqlite3.connect(f"{path.as_uri()}?{_mode(path)}", uri=True, timeout=BUSY_TIMEOUT_SECONDS)
        self._connection.row_factory = sqlite3.Row
        self._connection.text_factory = _text
        try:
            with faults_of(self.location):
                guard(self._connection)
                self._connection.execute("PRAGMA query_only = ON")
            if file_version(self.location, self.look) is None:
                raise no_database(self.location)
        except BaseException:
            self.close()
            raise

    def look(self, sql: str, values: Mapping[str, Any] = NOTHING) -> Iterator[Row]:
        with faults_of(self.location):
            for row in self._connection.execute(sql, dict(values)):
                yield dict(row)

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


def open_reader(location: str | Path | None, say: Callable[[str], None] = keep_silent) -> Reader:
    """For questions only. None means TUNER_DB, else the default path. say: is told on closing what was left out of the answers. Raises
    UserError where there is nothing to read."""
    found = resolve(location)
    if isinstance(found, Path):
        reader: Reader = FileReader(found)
    else:
        from db.store import open_store

        reader = open_store(found, create=False)
    reader.tell(say)
    return reader
