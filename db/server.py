"""Transactions on a server that may freeze, restart or drop a connection. A short outage is waited for, and said; nothing is stored twice.

A frozen server keeps its sockets open and answers nothing, and its driver waits in C code where no Ctrl-C reaches: so each transaction
runs in a thread of its own, and who waits for it does so with a time limit. A connection that is given up is cut, so that what it had not
committed never will be.
"""

from __future__ import annotations

import math
import os
import socket
import time
from collections.abc import Callable
from queue import Empty, SimpleQueue
from secrets import randbelow
from threading import Event, Thread
from typing import Any, TypeVar

from sqlalchemy import Connection, Engine, create_engine, event, make_url, text
from sqlalchemy.exc import ArgumentError, DBAPIError, NoSuchModuleError
from sqlalchemy.exc import TimeoutError as PoolTimeout

from db.faults import OTHER_FILE
from db.urls import printable_location, secrets, without
from search_spaces.errors import MachineFault, UserError
from search_spaces.plain_text import visible

CONNECT_SECONDS = 10
ANSWER_SECONDS = 20.0  # for one transaction; then the server counts as frozen
OUTAGE_SECONDS = 60.0  # that it may be away
AGAIN_SECONDS = 1.0
LOOK_SECONDS = 0.2
LONGEST_REASON = 300  # characters of a driver's words
_ONCE = 0x7475  # "tu": the first half of the key of an advisory lock; the second is the write's own
LAST_WORD_SECONDS = 3.0  # for one who was interrupted, or has waited in vain, and only wants to say how the run ended
# SQLSTATEs of what passes: shut down, starting up, too many connections, a deadlock, a time limit
_PASSING = {"57P01", "57P02", "57P03", "57P05", "53300", "40001", "40P01", "57014", "55P03"}
_LIBPQ = {  # for psycopg and psycopg2
    "connect_timeout": CONNECT_SECONDS,
    "keepalives": 1,
    "keepalives_idle": 10,
    "keepalives_interval": 5,
    "keepalives_count": 3,
    "tcp_user_timeout": round(ANSWER_SECONDS * 1000),
}

Result = TypeVar("Result")
# what is done in a transaction; told whether an earlier try may have been committed without anybody knowing
Work = Callable[[Connection, bool], Result]


class _Outage(Exception):
    """No answer, for a reason that may pass."""


class Server:
    """location: its URL for printing."""

    def __init__(self, url: str) -> None:
        self.location = printable_location(url)
        self.say: Callable[[str], None] = lambda text: None
        self._secrets = secrets(url)
        self._reached = False
        self._in_haste = False
        try:
            parsed = make_url(url)
        except (ArgumentError, ValueError):  # the text may hold a password, so it is not repeated
            raise UserError("the database's URL is none; give a file, or a URL such as postgresql+psycopg://user@host/tuner") from None
        given = {name: value for name, value in _LIBPQ.items() if name not in parsed.query}
        try:
            libpq = parsed.get_dialect().driver in ("psycopg", "psycopg2")
            options: dict[str, Any] = {"connect_args": given, "isolation_level": "READ COMMITTED"} if libpq else {}
            self.engine: Engine = create_engine(parsed, pool_pre_ping=True, **options)
        except (NoSuchModuleError, ModuleNotFoundError, ArgumentError) as error:
            why = visible(without(self._secrets, str(error))[:LONGEST_REASON])
            raise UserError(f"no driver for {visible(parsed.drivername)} ({why}); install it, or {OTHER_FILE}") from None
        self._is_postgresql = self.engine.dialect.name == "postgresql"
        if self._is_postgresql:
            event.listen(self.engine, "connect", _limit_statements)

    def hurry(self) -> None:
        """Wait for no outage until a transaction is done again: somebody wants to leave."""
        self._in_haste = True

    def transact(self, work: Work[Result], *, writes: bool = True, limit: float | None = ANSWER_SECONDS) -> Result:
        """What the work returns, once it is committed. limit: seconds for one try, None for work that takes as long as it takes. Raises
        UserError where it cannot be done, and MachineFault where the server does not come back."""
        try:
            return self._transact(_locked(work) if writes and self._is_postgresql else work, limit)
        except Exception:
            raise
        except BaseException:
            self.hurry()
            raise

    def _transact(self, work: Work[Result], limit: float | None) -> Result:
        away_since, again = 0.0, False
        while True:
            tried = time.monotonic()
            try:
                result = self._try(work, again, LAST_WORD_SECONDS if self._in_haste else limit)
            except _Outage as outage:
                away_since = away_since or tried
                if self._in_haste or time.monotonic() - away_since >= OUTAGE_SECONDS:
                    self.hurry()
                    raise MachineFault(
                        f"the database {self.location} does not answer ({outage}), for {time.monotonic() - away_since:.0f} s now; what it"
                        " acknowledged is stored: see to the server, and run the same command again"
                    ) from None
                if not again:
                    self.say(f"the database {self.location} does not answer ({outage}): waiting for it, for {OUTAGE_SECONDS:.0f} s at most")
                again = True
                time.sleep(AGAIN_SECONDS)
            else:
                if again:
                    self.say(f"the database answers again, after {time.monotonic() - away_since:.0f} s; nothing was lost")
                self._reached, self._in_haste = True, False
                return result

    def _try(self, work: Work[Result], again: bool, limit: float | None) -> Result:
        held: list[Connection] = []
        given_up = Event()
        ended: SimpleQueue[Result | BaseException] = SimpleQueue()

        def run() -> None:
            try:
                with self.engine.begin() as connection:
                    held.append(connection)
                    if given_up.is_set():
                        raise _Outage("the connection came too late")
                    if limit is None and self._is_postgresql:
                        connection.exec_driver_sql("SET LOCAL statement_timeout = 0")
                    result: Result | BaseException = work(connection, again)
            except BaseException as error:
                result = error
            ended.put(result)

        Thread(target=run, daemon=True, name="database").start()
        try:
            result = _wait(ended, limit)
        except BaseException:
            given_up.set()
            for connection in held:
                _cut(connection)
            raise
        if isinstance(result, BaseException):
            raise self._judged(result)
        return result

    def _judged(self, error: BaseException) -> BaseException:
        """What a transaction's error means for who asked for it."""
        if isinstance(error, PoolTimeout):
            return _Outage("no connection is free")
        if not isinstance(error, DBAPIError):
            return error
        state = getattr(error.orig, "sqlstate", None) or getattr(error.orig, "pgcode", None)
        lines = str(error.orig).strip().splitlines() or [type(error.orig).__name__]
        why = visible(without(self._secrets, lines[0])[:LONGEST_REASON])
        broken = error.connection_invalidated or state in _PASSING or (state or "").startswith("08")
        if self._reached and (broken or state is None):  # drivers give no state where they cannot connect
            return _Outage(why)
        return UserError(f"the database {self.location} does not answer as it should ({why}); mend that, or {OTHER_FILE}")

    def close(self) -> None:
        self.engine.dispose()


def _wait(ended: SimpleQueue[Result], limit: float | None) -> Result:
    """In short steps, so that an interrupt is heard whichever thread it came to."""
    give_up = time.monotonic() + (math.inf if limit is None else limit)
    while True:
        left = give_up - time.monotonic()
        try:
            return ended.get(timeout=max(min(left, LOOK_SECONDS), 0.0))
        except Empty:
            if left <= 0:
                raise _Outage(f"no answer for {limit:g} s") from None


def _locked(work: Work[Result]) -> Work[Result]:
    """One write that may be tried several times: the next try begins when the one before is committed or rolled back, also where that one's
    connection was cut while the server was frozen, and so sees what it left."""
    own = randbelow(2**31)

    def run(connection: Connection, again: bool) -> Result:
        connection.execute(text("SELECT pg_advisory_xact_lock(:once, :own)"), {"once": _ONCE, "own": own})
        return work(connection, again)

    return run


def _limit_statements(connection: Any, _: object) -> None:
    """So that the server, too, ends what nobody waits for any more."""
    cursor = connection.cursor()
    cursor.execute(f"SET statement_timeout = {round(ANSWER_SECONDS * 1000)}")
    cursor.close()
    connection.commit()


def _cut(connection: Connection) -> None:
    """End a connection that another thread waits on: its driver then sees that the server is gone."""
    try:
        with socket.socket(fileno=os.dup(connection.connection.driver_connection.fileno())) as line:  # type: ignore[union-attr]
            line.shutdown(socket.SHUT_RDWR)
    except Exception:  # it is closed already, or the driver has no socket to show
        return
