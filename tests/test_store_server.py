"""A server that freezes, restarts or drops a connection is waited for; nothing is stored twice, and Ctrl-C works meanwhile.

First what can be told without a server, on an engine whose transactions fail as a driver's do; then the real thing, where there is one.
"""

from __future__ import annotations

import _thread
import importlib.util
import os
import shutil
import signal
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from sqlalchemy import Connection, text
from sqlalchemy.exc import OperationalError, ProgrammingError
from store_samples import ENVIRONMENT, SCHEDULE, finals, record, timed
from test_store_faults import NOBODY

from db import server
from db.best import Scope
from db.reading import open_reader
from db.server import Server
from db.store import Store, open_store
from search_spaces.errors import MachineFault, UserError


class Driver(Exception):
    """As a PostgreSQL driver raises: with a SQLSTATE where the server gave one."""

    def __init__(self, words: str, sqlstate: str | None = None) -> None:
        super().__init__(words)
        self.sqlstate = sqlstate


def lost(words: str = "server closed the connection", state: str | None = "57P01") -> OperationalError:
    return OperationalError("INSERT", {}, Driver(words, state))


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "AGAIN_SECONDS", 0.01)
    monkeypatch.setattr(server, "OUTAGE_SECONDS", 0.2)


@pytest.fixture
def said() -> list[str]:
    return []


@pytest.fixture
def reached(tmp_path: Path, quick: None, said: list[str]) -> Iterator[Server]:
    made = Server(f"sqlite:///{tmp_path}/x.db")
    made.say, made._secrets = said.append, ("PW",)
    made.transact(lambda connection, again: None)
    yield made
    made.close()


def failing(*errors: Exception) -> tuple[Callable[[Connection, bool], str], list[bool]]:
    """Work that fails so before it is done, and what it was told each time."""
    left, told = list(errors), []

    def work(connection: Connection, again: bool, *_: object) -> str:
        told.append(again)
        if left:
            raise left.pop(0)
        return "done"

    return work, told


@pytest.mark.parametrize("state", ["57P01", "57P03", "08006", "40001", "57014", "53300", None])
def test_a_short_outage_is_waited_for_and_said(reached: Server, said: list[str], state: str | None) -> None:
    work, told = failing(lost(state=state), lost(state=state))
    assert reached.transact(work) == "done"
    assert told == [False, True, True]
    assert len(said) == 2
    assert "does not answer (server closed the connection): waiting for it, for 0 s at most" in said[0]
    assert said[1].startswith("the database answers again, after 0 s")


def test_who_does_not_come_back_ends_it(reached: Server, said: list[str]) -> None:
    work, _ = failing(*(lost() for _ in range(1000)))
    with pytest.raises(
        MachineFault, match=r"does not answer \(server closed the connection\), for 0 s now; what it acknowledged is stored"
    ):
        reached.transact(work)
    assert len(said) == 1
    last_word, told = failing(lost())
    with pytest.raises(MachineFault):
        reached.transact(last_word)  # is tried, and not waited for once more
    assert told == [False]
    assert reached.transact(last_word) == "done"


def test_a_first_connection_is_not_waited_for(tmp_path: Path, quick: None) -> None:
    work, told = failing(lost("no route to host", None))
    with pytest.raises(UserError, match="no route to host"):
        Server(f"sqlite:///{tmp_path}/x.db").transact(work)
    assert told == [False]


@pytest.mark.parametrize("error", [ProgrammingError("SELECT", {}, Driver("permission denied", "42501")), UserError("permission denied")])
def test_what_does_not_pass_is_not_tried_again(reached: Server, error: Exception) -> None:
    work, told = failing(error)
    with pytest.raises(UserError, match="permission denied"):
        reached.transact(work)
    assert told == [False]


def test_a_mistake_in_the_program_stays_one(reached: Server) -> None:
    work, told = failing(KeyError("x"))
    with pytest.raises(KeyError):
        reached.transact(work)
    assert told == [False]


def test_a_driver_s_words_show_no_password_and_no_escapes(reached: Server) -> None:
    work, _ = failing(ProgrammingError("", {}, Driver("wrong password=PW\x1b[31m\nmore", "42501")))
    with pytest.raises(UserError) as caught:
        reached.transact(work)
    assert "(wrong password=***\\x1b[31m)" in str(caught.value)
    assert "PW" not in str(caught.value)


def test_no_answer_counts_as_an_outage(reached: Server, said: list[str]) -> None:
    thawed, told = threading.Event(), []

    def work(connection: Connection, again: bool) -> str:
        told.append(again)
        if not again:
            thawed.wait()
        return "done"

    assert reached.transact(work, limit=0.05) == "done"
    thawed.set()
    assert told == [False, True]
    assert "does not answer (no answer for 0.05 s)" in said[0]


def test_an_interrupt_is_heard_at_once_and_what_follows_is_not_waited_for(reached: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "LAST_WORD_SECONDS", 0.05)
    thawed, begun = threading.Event(), threading.Event()

    def work(connection: Connection, again: bool) -> None:
        begun.set()
        thawed.wait()

    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background jobs ignore it
    threading.Thread(target=lambda: (begun.wait(), _thread.interrupt_main())).start()
    try:
        with pytest.raises(KeyboardInterrupt):
            reached.transact(work)
    finally:
        signal.signal(signal.SIGINT, before)
    with pytest.raises(MachineFault, match=r"no answer for 0\.05 s"):
        reached.transact(work)
    thawed.set()


def test_how_an_interrupted_run_ended_is_not_waited_for(tmp_path: Path, said: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    with open_store(tmp_path / "tuner.db") as made:
        run_id = made.begin_run(ENVIRONMENT, "{}")
    store = Store(Server(f"sqlite:///{tmp_path}/tuner.db"))
    store.tell(said.append)
    assert [run.status for run in store.runs()] == ["running"]
    monkeypatch.setattr(store.place, "_try", failing(*(server._Outage("gone") for _ in range(9)))[0])
    store.finish_run(run_id, "interrupted")
    store.close()
    assert len(said) == 1
    assert f"run {run_id} is marked as interrupted at the next start" in said[0]


# a real one

BIN = next((folder for folder in sorted(Path("/usr/lib/postgresql").glob("*/bin"), reverse=True)), None)
TOOLS = BIN or Path(shutil.which("initdb") or "/nowhere/initdb").parent
real = pytest.mark.skipif(
    not (TOOLS / "initdb").exists() or importlib.util.find_spec("psycopg") is None or (os.geteuid() == 0 and not shutil.which("setpriv")),
    reason="needs PostgreSQL and psycopg",
)


class Cluster:
    """A PostgreSQL of a user who is not root, on a socket of its own."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.url = f"postgresql+psycopg:///postgres?host={folder}&user=tuner&password=PW"
        self._tool("initdb", "-D", "data", "-A", "trust", "-U", "tuner", "--no-sync")
        self.start()

    def _tool(self, name: str, *arguments: str) -> None:
        me = ["setpriv", f"--reuid={NOBODY}", f"--regid={NOBODY}", "--clear-groups"] if os.geteuid() == 0 else []
        subprocess.run(
            [*me, str(TOOLS / name), *arguments], cwd=self.folder, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )

    def start(self) -> None:
        options = f"-k {self.folder} -c listen_addresses= -c fsync=off -c shared_buffers=16MB"
        self._tool("pg_ctl", "-D", "data", "-o", options, "-l", "log", "-w", "start")

    def stop(self) -> None:
        self._tool("pg_ctl", "-D", "data", "-m", "immediate", "stop")


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    folder = Path(tempfile.mkdtemp(prefix="tuner-pg-"))  # a socket's name may have 107 characters
    if os.geteuid() == 0:
        os.chown(folder, NOBODY, NOBODY)
    made = Cluster(folder)
    yield made
    made.stop()
    shutil.rmtree(folder)


@pytest.fixture
def place(cluster: Cluster) -> str:
    """The URL of an empty database."""
    engine = Server(cluster.url).engine.execution_options(isolation_level="AUTOCOMMIT")
    name = f"t{time.monotonic_ns()}"
    with engine.connect() as connection:
        connection.execute(text(f"CREATE DATABASE {name}"))
    engine.dispose()
    return cluster.url.replace("/postgres?", f"/{name}?")


def backends(store: Store) -> list[int]:
    with store.reading() as connection:
        sql = "SELECT pid FROM pg_stat_activity WHERE datname = current_database() AND backend_type = 'client backend'"
        return [pid for (pid,) in connection.execute(text(sql))]


def add(store: Store, run_id: int, i: int) -> int:
    return store.add(run_id, record(timed(100.0 + i), schedule=replace(SCHEDULE, group_m=1 + i)))


@real
def test_a_server_answers_as_a_file_does(place: str) -> None:
    with open_store(place) as store:
        first, second = finals(store, record(timed(190.0)), record(timed(191.0), schedule=replace(SCHEDULE, cta_n=128)))
        assert store.check() is None
    with open_reader(place) as reader:
        answer = reader.best(record(timed(1.0)).problem, Scope(gpu=ENVIRONMENT.gpu, sms=132))
        assert answer is not None
        assert (answer.record.trial_id, answer.ties) == (first, (replace(SCHEDULE, cta_n=128),))
        assert [each.trial_id for each in reader.records()] == [first, second]
        assert "PW" not in reader.location


@real
@pytest.mark.parametrize(
    ("script", "words"),
    [
        ("CREATE TABLE alembic_version (version_num TEXT)", "it has the table 'alembic_version' and no tuner's schema"),
        ("CREATE TABLE tuner_schema (a TEXT)", "has no column 'version_num'"),
        ("CREATE TABLE tuner_schema (version_num TEXT); INSERT INTO tuner_schema VALUES ('0003')", "and run is missing"),
        ("CREATE TABLE tuner_schema (version_num INT); INSERT INTO tuner_schema VALUES (3)", "the version of its schema is '3'"),
    ],
)
def test_another_s_database_on_a_server_is_refused(place: str, script: str, words: str) -> None:
    engine = Server(place).engine
    with engine.begin() as connection:
        for statement in script.split(";"):
            connection.execute(text(statement))
    engine.dispose()
    for door in (open_store, open_reader):
        with pytest.raises(UserError, match="is not a tuner database") as caught:
            door(place)
        assert words in str(caught.value)


@real
def test_a_dropped_backend_costs_nothing(place: str, said: list[str], quick: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "OUTAGE_SECONDS", 10)
    with open_store(place, say=said.append) as store:
        run_id = store.begin_run(ENVIRONMENT, "{}")
        ids = [add(store, run_id, 0)]
        for pid in backends(store):
            os.kill(pid, signal.SIGTERM)
        ids += [add(store, run_id, i) for i in range(1, 20)]
        assert [each.trial_id for each in store.records()] == ids


@real
def test_a_restart_is_waited_for(cluster: Cluster, place: str, said: list[str], quick: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "OUTAGE_SECONDS", 30)
    with open_store(place, say=said.append) as store:
        run_id = store.begin_run(ENVIRONMENT, "{}")
        ids = [add(store, run_id, 0)]
        cluster.stop()
        starting = threading.Thread(target=lambda: (time.sleep(0.2), cluster.start()))
        starting.start()
        ids.append(add(store, run_id, 1))
        starting.join()
        assert [each.trial_id for each in store.records()] == ids
    assert "waiting for it" in said[0]
    assert "answers again" in said[1]
    assert "PW" not in "".join(said)


@real
def test_what_a_frozen_backend_was_asked_is_stored_once(place: str, quick: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """The connection is cut while the server is frozen; thawed, it must not store what the second try stored."""
    monkeypatch.setattr(server, "OUTAGE_SECONDS", 30)
    monkeypatch.setitem(Server.transact.__kwdefaults__, "limit", 0.3)  # type: ignore[arg-type]
    with open_store(place) as store:
        run_id = store.begin_run(ENVIRONMENT, "{}")
        frozen = backends(store)
        for pid in frozen:
            os.kill(pid, signal.SIGSTOP)
        threading.Timer(1.0, lambda: [os.kill(pid, signal.SIGCONT) for pid in frozen]).start()
        trial_id = add(store, run_id, 0)
        time.sleep(1.0)
        assert [each.trial_id for each in store.records()] == [trial_id]
