"""The store that is written to: runs, attempts, finals. One committed transaction a result. Questions to it are in `reading`."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from sqlalchemy import Connection, Table, insert, select, text, update

from db.damage import Row, written
from db.faults import SCHEMA_VERSION, no_database, resolve
from db.local_file import LocalFile
from db.processes import is_alive, is_gone, process_started, this_host
from db.reading import NOTHING, Reader
from db.records import Environment, Finalist, Record, RunInfo, RunStatus
from db.rows import ENVIRONMENT_COLUMNS, FINALIST_COLUMNS, RUN_COLUMNS, environment_row, finalist_row, now, read_run, trial_row
from db.schema import ENVIRONMENT, FINALIST, RUN, TRIAL
from db.server import Server
from db.structure import dangling, file_version, server_version
from search_spaces.errors import MachineFault, UserError
from search_spaces.schedule import AXES

_ADVISORY_LOCK = 0x74756E6572  # "tuner": PostgreSQL's lock around making the tables
_ATTEMPT = ("run_id", "recorded", "status", "m", "n", "k", "family", *AXES)  # what tells two attempts of one run apart


class Store(Reader):
    """A database that can be read and written. `warnings`: what a person should know about where it lies."""

    def __init__(self, place: LocalFile | Server) -> None:
        super().__init__(place.location)
        self.is_file = isinstance(place, LocalFile)
        self.warnings = (place.warning,) if isinstance(place, LocalFile) and place.warning else ()
        self.place = place
        self._environments: dict[Environment, int] = {}

    def tell(self, say: Callable[[str], None]) -> None:
        """Who is to be told of rows that are left out, and of a server that is waited for."""
        super().tell(say)
        if isinstance(self.place, Server):
            self.place.say = say

    def close(self) -> None:
        self.place.close()

    def look(self, sql: str, values: Mapping[str, Any] = NOTHING) -> Iterable[Row]:
        if isinstance(self.place, LocalFile):
            return self.place.look(sql, values)
        return self.place.transact(lambda connection, again: _rows(connection, sql, values), writes=False)

    @contextmanager
    def reading(self) -> Iterator[Connection]:
        """A connection for questions that are not of rows, such as what tables there are."""
        with self.place.engine.connect() as connection:
            yield connection

    def begin_run(self, environment: Environment, request: str) -> int:
        """request: JSON text of what was asked."""
        pid = os.getpid()
        process = {"host": this_host(), "pid": pid, "process_started": process_started(pid)}
        row = {"environment_id": self._environment_id(environment), "request": request, "status": "running", "started": now(), **process}
        return self._insert_once(RUN, row, tuple(row))

    def finish_run(self, run_id: int, status: RunStatus) -> None:
        change = update(RUN).where(RUN.c.id == run_id).values(status=status, finished=now())
        if status == "interrupted" and isinstance(self.place, Server):
            self.place.hurry()
        try:
            self.place.transact(lambda connection, again: connection.execute(change))
        except MachineFault as fault:
            if status != "interrupted":
                raise
            self.say(f"{fault}; run {run_id} is marked as interrupted at the next start")  # what interrupted it is told instead

    def add(self, run_id: int, record: Record) -> int:
        """Store one attempt; it is committed when this returns its trial id."""
        row = {"run_id": run_id, "environment_id": self._environment_id(record.environment), "recorded": now(), **trial_row(record)}
        return self._insert_once(TRIAL, row, _ATTEMPT)

    def add_finalists(self, run_id: int, finalists: Sequence[Finalist]) -> None:
        """Store the outcome of a run's finals, all of it or nothing."""
        rows = [{"run_id": run_id, **finalist_row(finalist)} for finalist in finalists]

        def work(connection: Connection, again: bool) -> None:
            there = again and connection.execute(select(FINALIST.c.run_id).where(FINALIST.c.run_id == run_id).limit(1)).first()
            if not there:
                connection.execute(insert(FINALIST), rows)

        if rows:
            self.place.transact(work)

    def _environment_id(self, environment: Environment) -> int:
        if environment not in self._environments:
            row = environment_row(environment)

            def work(connection: Connection, again: bool) -> int:
                found = _find(connection, ENVIRONMENT, row)
                return _insert(connection, ENVIRONMENT, row) if found is None else found

            self._environments[environment] = self.place.transact(work)  # only once it is committed
        return self._environments[environment]

    def _insert_once(self, table: Table, row: Row, key: tuple[str, ...]) -> int:
        """The id of the new row. key: the columns by which one is found that an earlier try left."""

        def work(connection: Connection, again: bool) -> int:
            found = _find(connection, table, {name: row[name] for name in key}) if again else None
            return _insert(connection, table, row) if found is None else found

        return self.place.transact(work)

    def earlier_running(self, run_id: int) -> RunInfo | None:
        """The oldest other run of this problem on this GPU that began before this one and is still under way on this host."""
        running = self._running()
        own = next((run for run in running if run.id == run_id), None)
        for run in running:
            if own and run.id < own.id and run.pid != own.pid and run.host == this_host() and _asks(run) == _asks(own) and _is_alive(run):
                return run
        return None

    def _running(self) -> tuple[RunInfo, ...]:
        columns = ", ".join(RUN_COLUMNS)
        return tuple(map(read_run, self.rows(f"SELECT {columns} FROM run WHERE status = 'running' ORDER BY id", {}, of="run")))

    def end_gone_runs(self) -> None:
        """Mark as interrupted what is said to be running and whose process has ended."""
        only_here = self.is_file and not self.warnings
        gone = [run.id for run in self._running() if is_gone(run, only_here=only_here)]
        if gone:
            still = update(RUN).where(RUN.c.id.in_(gone), RUN.c.status == "running")
            self.place.transact(lambda connection, again: connection.execute(still.values(status="interrupted", finished=now())))

    def check(self) -> None:
        """Read every page and index of a file, every row, and what rows refer to. Raises UserError where something is wrong."""
        if isinstance(self.place, LocalFile):
            self.place.check_pages("integrity_check")
        self.runs()
        self.rows(f"SELECT id, {', '.join(ENVIRONMENT_COLUMNS)} FROM environment ORDER BY id", {}, of="environment")
        self.rows(f"SELECT run_id, {', '.join(FINALIST_COLUMNS)} FROM finalist ORDER BY run_id, trial_id", {}, of="finalist")
        for _ in self.records():
            pass
        if wrong := [*([self.damaged_rows] if self.damaged_rows else []), *dangling(self.look)]:
            raise UserError(f"{self.location} is not sound: {'; '.join(wrong)}; such rows are left out of every answer")


def _rows(connection: Connection, sql: str, values: Mapping[str, Any]) -> list[Row]:
    return [dict(row) for row in connection.execute(text(sql), dict(values)).mappings()]


def _find(connection: Connection, table: Table, row: Row) -> int | None:
    same = (table.c[name].is_not_distinct_from(value) for name, value in written(row).items())
    return connection.execute(select(table.c.id).where(*same).limit(1)).scalar()


def _insert(connection: Connection, table: Table, row: Row) -> int:
    return int(connection.execute(insert(table), written(row)).inserted_primary_key[0])  # type: ignore[index]


def _asks(run: RunInfo) -> tuple[Any, Any]:
    asked = json.loads(run.request)
    return asked.get("problem"), asked.get("gpu")


def _is_alive(run: RunInfo) -> bool:
    return run.pid is not None and run.process_started is not None and is_alive(run.pid, run.process_started)


def open_store(location: str | Path | None, *, create: bool = True, say: Callable[[str], None] | None = None) -> Store:
    """Open for reading and writing. None means TUNER_DB, else the default path.

    create: make the database, and the user's own folder, where there is none; a file of 0 bytes, or with nothing in it, counts as none.
    say: is told what is waited for and what is left out. Raises UserError for whatever cannot be used, and leaves it as it was.
    """
    store = _store(resolve(location), create)
    if say is not None:
        store.tell(say)
    try:
        _check_or_make(store, create)
        if create:
            store.end_gone_runs()
    except BaseException:
        store.close()
        raise
    return store


def _store(found: Path | str, create: bool) -> Store:
    return Store(LocalFile(found, create=create) if isinstance(found, Path) else Server(found))


def _check_or_make(store: Store, create: bool) -> None:
    place = store.place
    if isinstance(place, LocalFile):
        place.check_pages("quick_check")
    if _version(store.location, store.is_file, store.look) is not None:
        return
    if not create:
        raise no_database(store.location)
    if isinstance(place, LocalFile) and not store.warnings:
        place.write_ahead()

    def make(connection: Connection, again: bool) -> None:
        if connection.dialect.name == "postgresql":
            connection.execute(text("SELECT pg_advisory_xact_lock(:lock)"), {"lock": _ADVISORY_LOCK})
        if _version(store.location, store.is_file, lambda sql: _rows(connection, sql, NOTHING)) is None:  # no other process was faster
            _migrate(connection)

    place.transact(make, limit=None)


def _version(location: str, is_file: bool, look: Callable[[str], Iterable[Row]], *, older: bool = False) -> str | None:
    return (file_version if is_file else server_version)(location, look, older=older)


def _migrate(connection: Connection) -> None:
    from db.migrations import upgrade  # Alembic takes long to import, and nothing else needs it

    upgrade(connection, SCHEMA_VERSION)


def upgrade_store(location: str | Path | None) -> tuple[str, str]:
    """Bring a database to this version's schema, all of it or nothing; the version before and after."""
    with _store(resolve(location), create=False) as store:

        def work(connection: Connection, again: bool) -> str:
            def look(sql: str) -> Iterable[Row]:
                return _rows(connection, sql, NOTHING)

            before = _version(store.location, store.is_file, look, older=True)
            if before is None:
                raise no_database(store.location)
            _migrate(connection)
            _version(store.location, store.is_file, look)  # the tables may have been somebody else's
            return before

        return store.place.transact(work, limit=None), SCHEMA_VERSION
