"""A SQLite file that is written to: how it is opened, and its transactions. Writers queue up, and none fails half-way."""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any, TypeVar

from sqlalchemy import URL, Connection, create_engine, event, text
from sqlalchemy.exc import DBAPIError

from db.damage import Row
from db.faults import BUSY_TIMEOUT_SECONDS, check_file, damaged, fault, faults_of, guard, no_database, on_network, prepare_folder
from db.server import Work
from search_spaces.plain_text import visible

WAL_WAIT_SECONDS = 0.02
Result = TypeVar("Result")


class LocalFile:
    """location: its path for printing. warning: what is to be said of where it lies."""

    def __init__(self, path: Path, *, create: bool) -> None:
        self.path, self.location = path, visible(str(path))
        if not check_file(path) and not create:
            raise no_database(self.location)
        prepare_folder(path)
        kind = on_network(path)
        self.warning = (
            f"{self.location} is on a network file system ({kind}), where SQLite's locks do not hold: use a local file, or a server's URL"
            if kind
            else ""
        )
        self.engine = create_engine(URL.create("sqlite", database=str(path)), connect_args={"timeout": BUSY_TIMEOUT_SECONDS})
        event.listen(self.engine, "connect", _prepare)
        event.listen(self.engine, "begin", _begin)
        self._writing = self.engine.execution_options(begin="BEGIN IMMEDIATE")  # so that two writers queue up

    def transact(self, work: Work[Result], *, writes: bool = True, limit: float | None = None) -> Result:
        """What the work returns, once it is committed. There is no limit: SQLite has one for its locks, and nothing else to wait for."""
        with _faults(self.location), (self._writing if writes else self.engine).begin() as connection:
            return work(connection, False)

    def look(self, sql: str, values: Mapping[str, Any]) -> Iterator[Row]:
        """Row by row, as many as there may be."""
        with _faults(self.location), self.engine.connect() as connection:
            for row in connection.execute(text(sql), dict(values)).mappings():
                yield dict(row)

    def write_ahead(self) -> None:
        """Readers then never wait for a writer. The switch needs the file for itself, and SQLite does not wait for that by itself."""
        give_up = time.monotonic() + BUSY_TIMEOUT_SECONDS
        with faults_of(self.location), closing(sqlite3.connect(self.path)) as connection:
            while True:
                try:
                    connection.execute("PRAGMA journal_mode = WAL")
                    return
                except sqlite3.OperationalError as error:
                    if error.sqlite_errorcode & 0xFF != sqlite3.SQLITE_BUSY or time.monotonic() > give_up:
                        raise
                    time.sleep(WAL_WAIT_SECONDS)

    def check_pages(self, pragma: str) -> None:
        """pragma: quick_check, or integrity_check for every index, too."""
        (row,) = self.look(f"PRAGMA {pragma}(1)", {})
        (finding,) = row.values()
        if finding != "ok":
            raise damaged(self.location, " ".join(str(finding).split()))

    def close(self) -> None:
        self.engine.dispose()


def _prepare(connection: sqlite3.Connection, _: object) -> None:
    connection.isolation_level = None  # transactions are ours
    guard(connection)


def _begin(connection: Connection) -> None:
    connection.exec_driver_sql(connection.get_execution_options().get("begin", "BEGIN"))


@contextmanager
def _faults(location: str) -> Iterator[None]:
    """`faults_of`, as SQLAlchemy passes the driver's errors on."""
    try:
        with faults_of(location):
            yield
    except DBAPIError as error:
        sentence = fault(error.orig, location) if isinstance(error.orig, sqlite3.Error) else None
        if sentence is None:
            raise
        raise sentence from error
