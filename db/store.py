"""The store that is written to: runs, attempts, finals. One committed transaction a result. Questions to it are in `reading`."""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

from sqlalchemy import URL, Connection, Engine, Table, create_engine, event, insert, inspect, make_url, select, text, update
from sqlalchemy.exc import ArgumentError, DBAPIError, NoSuchModuleError, OperationalError

from db.faults import (
    BUSY_TIMEOUT_SECONDS,
    OTHER_FILE,
    SCHEMA_VERSION,
    VERSION_TABLE,
    check_file,
    check_version,
    damaged,
    fault,
    faults_of,
    no_database,
    on_network,
    prepare_folder,
    resolve,
)
from db.reading import Reader
from db.records import Environment, Finalist, Record, RunStatus
from db.rows import Row, environment_row, finalist_row, now, trial_row
from db.schema import ENVIRONMENT, FINALIST, RUN, TRIAL
from search_spaces.errors import UserError

WAL_WAIT_SECONDS = 0.02
_ADVISORY_LOCK = 0x74756E6572  # "tuner": PostgreSQL's lock around making the tables


class Store(Reader):
    """A database that can be read and written. `warnings`: what a person should know about where it lies."""

    def __init__(self, engine: Engine, location: str, warnings: tuple[str, ...] = ()) -> None:
        self.location = location
        self.warnings = warnings
        self.is_file = engine.dialect.name == "sqlite"
        self._engine = engine
        self._writing_engine = engine.execution_options(begin="BEGIN IMMEDIATE")  # so that two writers queue up and neither fails half-way
        self._environments: dict[Environment, int] = {}

    def close(self) -> None:
        self._engine.dispose()

    def rows(self, sql: str, values: Mapping[str, Any]) -> list[Row]:
        with self.reading() as connection:
            return [dict(row) for row in connection.execute(text(sql), dict(values)).mappings()]

    @contextmanager
    def reading(self) -> Iterator[Connection]:
        with _faults(self.location), self._engine.connect() as connection:
            yield connection

    @contextmanager
    def writing(self) -> Iterator[Connection]:
        with _faults(self.location), self._writing_engine.begin() as connection:
            yield connection

    def begin_run(self, environment: Environment, request: str) -> int:
        """request: JSON text of what was asked."""
        environment_id = self._environment_id(environment)
        with self.writing() as connection:
            return _insert(connection, RUN, environment_id=environment_id, request=request, status="running", started=now())

    def finish_run(self, run_id: int, status: RunStatus) -> None:
        with self.writing() as connection:
            connection.execute(update(RUN).where(RUN.c.id == run_id).values(status=status, finished=now()))

    def add(self, run_id: int, record: Record) -> int:
        """Store one attempt; it is committed when this returns its trial id."""
        environment_id = self._environment_id(record.environment)
        with self.writing() as connection:
            return _insert(connection, TRIAL, run_id=run_id, environment_id=environment_id, recorded=now(), **trial_row(record))

    def add_finalists(self, run_id: int, finalists: Sequence[Finalist]) -> None:
        """Store the outcome of a run's finals, all of it or nothing."""
        if finalists:
            with self.writing() as connection:
                connection.execute(insert(FINALIST), [{"run_id": run_id, **finalist_row(finalist)} for finalist in finalists])

    def _environment_id(self, environment: Environment) -> int:
        if environment not in self._environments:
            row = environment_row(environment)
            same = select(ENVIRONMENT.c.id).where(*(ENVIRONMENT.c[name].is_not_distinct_from(value) for name, value in row.items()))
            with self.writing() as connection:
                found = connection.execute(same.limit(1)).scalar()
                environment_id = _insert(connection, ENVIRONMENT, **row) if found is None else found
            self._environments[environment] = environment_id  # only once it is committed
        return self._environments[environment]

    def check(self) -> None:
        """Read every page and every index of a file; a server looks after its own."""
        if self.is_file:
            _check_pages(self, "PRAGMA integrity_check(1)")


def _insert(connection: Connection, table: Table, **row: Any) -> int:
    return int(connection.execute(insert(table), row).inserted_primary_key[0])  # type: ignore[index]


@contextmanager
def _faults(location: str) -> Iterator[None]:
    """Turns the driver's errors into sentences, where a person can mend what they tell of."""
    try:
        yield
    except DBAPIError as error:
        sentence: UserError | None = None
        if isinstance(error.orig, sqlite3.Error):
            sentence = fault(error.orig, location)
        elif isinstance(error, OperationalError):
            sentence = UserError(f"the database {location} does not answer as it should ({str(error.orig).splitlines()[0]}); {OTHER_FILE}")
        if sentence is None:
            raise
        raise sentence from error


def open_store(location: str | Path | None, *, create: bool = True) -> Store:
    """Open for reading and writing. None means TUNER_DB, else the default path.

    create: make the database, and its folder, where there is none; a file of 0 bytes, or without any table, counts as none.
    Raises UserError for whatever cannot be used, and leaves it as it was.
    """
    found = resolve(location)
    store = _file_store(found, create) if isinstance(found, Path) else _server_store(found)
    try:
        _check_or_make(store, create)
    except BaseException:
        store.close()
        raise
    return store


def _file_store(path: Path, create: bool) -> Store:
    if not check_file(path) and not create:
        raise no_database(str(path))
    prepare_folder(path)
    engine = create_engine(URL.create("sqlite", database=str(path)), connect_args={"timeout": BUSY_TIMEOUT_SECONDS})
    event.listen(engine, "connect", _leave_transactions_to_us)
    event.listen(engine, "begin", _begin)
    kind = on_network(path)
    warning = f"{path} is on a network file system ({kind}), where SQLite's locks do not hold: use a local file, or a server's URL"
    return Store(engine, str(path), (warning,) if kind else ())


def _leave_transactions_to_us(connection: sqlite3.Connection, _: object) -> None:
    connection.isolation_level = None


def _begin(connection: Connection) -> None:
    connection.exec_driver_sql(connection.get_execution_options().get("begin", "BEGIN"))


def _server_store(url: str) -> Store:
    try:
        parsed = make_url(url)
    except ArgumentError:  # the text may hold a password, so it is not repeated
        raise UserError("the database's URL is none; give a file, or a URL such as postgresql+psycopg://user@host/tuner") from None
    try:
        return Store(create_engine(parsed), parsed.render_as_string(hide_password=True))
    except (NoSuchModuleError, ModuleNotFoundError) as error:
        raise UserError(f"no driver for {parsed.drivername} ({error}); install it, or {OTHER_FILE}") from None


def _check_or_make(store: Store, create: bool) -> None:
    if store.is_file:
        _check_pages(store, "PRAGMA quick_check(1)")
    with store.reading() as connection:
        empty = _is_empty(connection, store.location)
    if not empty:
        return
    if not create:
        raise no_database(store.location)
    if store.is_file and not store.warnings:
        _write_ahead(store.location)
    with store.writing() as connection:
        if connection.dialect.name == "postgresql":
            connection.execute(text("SELECT pg_advisory_xact_lock(:lock)"), {"lock": _ADVISORY_LOCK})
        if _is_empty(connection, store.location):  # no other process was faster
            _migrate(connection)


def _is_empty(connection: Connection, location: str) -> bool:
    """Whether there are no tables yet. Refuses tables that are not those of this version."""
    tables = inspect(connection).get_table_names()
    if tables:
        check_version(location, tables, _version(connection, tables))
    return not tables


def _version(connection: Connection, tables: Sequence[str]) -> str | None:
    return connection.execute(text(f"SELECT version_num FROM {VERSION_TABLE}")).scalar() if VERSION_TABLE in tables else None


def _migrate(connection: Connection) -> None:
    from db.migrations import upgrade  # Alembic takes long to import, and nothing else needs it

    upgrade(connection, SCHEMA_VERSION)


def _write_ahead(location: str) -> None:
    """Readers then never wait for a writer. The switch needs the file for itself, and SQLite does not wait for that of its own accord."""
    give_up = time.monotonic() + BUSY_TIMEOUT_SECONDS
    with faults_of(location), closing(sqlite3.connect(location)) as connection:
        while True:
            try:
                connection.execute("PRAGMA journal_mode = WAL")
                return
            except sqlite3.OperationalError as error:
                if error.sqlite_errorcode & 0xFF != sqlite3.SQLITE_BUSY or time.monotonic() > give_up:
                    raise
                time.sleep(WAL_WAIT_SECONDS)


def _check_pages(store: Store, pragma: str) -> None:
    (row,) = store.rows(pragma, {})
    (finding,) = row.values()
    if finding != "ok":
        raise damaged(store.location, " ".join(str(finding).split()))


def upgrade_store(location: str | Path | None) -> tuple[str, str]:
    """Bring a database to this version's schema, all of it or nothing; the version before and after."""
    found = resolve(location)
    with _file_store(found, create=False) if isinstance(found, Path) else _server_store(found) as store, store.writing() as connection:
        tables = inspect(connection).get_table_names()
        if not tables:
            raise no_database(store.location)
        before = check_version(store.location, tables, _version(connection, tables), older=True)
        _migrate(connection)
    return before, SCHEMA_VERSION
