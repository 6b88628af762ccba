"""Which process a run belongs to, and what becomes of runs whose process is gone."""

from __future__ import annotations

import os
import shutil
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import psutil
import pytest
from store_samples import COMPILED, CRASHED, ENVIRONMENT, PROBLEM, SCHEDULE, timed

from db import processes
from db.best import Scope
from db.processes import is_alive, process_started, this_host
from db.reading import open_reader
from db.store import open_store, upgrade_store

ASKED = '{"problem": {"m": 1}, "gpu": "h200-sxm-141gb", "trials": 8}'
DATA = Path(__file__).parent / "data"
ANOTHER_BOOT = "/".join(["node", "another-boot", "pid:[1]"])


@pytest.fixture
def path(tmp_path: Path) -> Path:
    made = tmp_path / "tuner.db"
    with open_store(made):
        return made


def begun(path: Path, asked: str = ASKED, **changes: object) -> int:
    """A run that is said to be running, with these columns in place of this process's."""
    with open_store(path, create=False) as store:
        run_id = store.begin_run(ENVIRONMENT, asked)
    with closing(sqlite3.connect(path)) as connection, connection:
        for column, value in changes.items():
            connection.execute(f"UPDATE run SET {column} = ? WHERE id = ?", (value, run_id))
    return run_id


def statuses(path: Path) -> list[str]:
    """After somebody has opened the database to write to it."""
    with open_store(path) as store:
        return [run.status for run in store.runs()]


@pytest.fixture
def ended() -> int:
    """The number of a process that has ended."""
    process = subprocess.Popen([sys.executable, "-c", ""])
    process.wait()
    return process.pid


def test_a_run_names_its_process(path: Path) -> None:
    begun(path)
    with open_reader(path) as reader:
        (run,) = reader.runs()
    assert (run.host, run.pid) == (this_host(), os.getpid())
    assert run.process_started == psutil.Process().create_time()
    assert this_host().count("/") == 2


def test_a_run_of_a_process_that_is_there_goes_on(path: Path) -> None:
    begun(path)
    begun(path, pid=os.getppid(), process_started=process_started(os.getppid()))
    assert statuses(path) == ["running", "running"]


def test_a_run_whose_process_is_gone_is_interrupted(path: Path, ended: int) -> None:
    begun(path, pid=ended)
    with open_store(path, create=False) as store:  # which only reads
        assert [run.status for run in store.runs()] == ["running"]
    assert statuses(path) == ["interrupted"]
    with open_reader(path) as reader:
        (run,) = reader.runs()
    assert run.finished is not None


def test_another_process_of_the_same_number_is_not_the_one(path: Path) -> None:
    begun(path, process_started=process_started(os.getpid()) - 3600)
    assert statuses(path) == ["interrupted"]


def test_runs_of_before_this_machine_was_switched_on_are_over(path: Path) -> None:
    begun(path, host=ANOTHER_BOOT)
    begun(path, host=None, pid=None, process_started=None, started="2020-01-01T00:00:00.000+00:00")
    begun(path, host=None, pid=None, process_started=None)
    assert statuses(path) == ["interrupted", "interrupted", "running"]


def test_processes_that_cannot_be_seen_are_not_judged(path: Path, ended: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of another container on this machine; and, where several machines share the database, of another machine."""
    boot = this_host().split("/")[1]
    begun(path, host=f"container/{boot}/pid:[7]", pid=ended)
    assert statuses(path) == ["running"]
    begun(path, host=ANOTHER_BOOT)
    monkeypatch.setattr("db.local_file.on_network", lambda path: "nfs4")
    assert statuses(path) == ["running", "running"]


def test_what_is_no_longer_running_stays_as_it_is(path: Path, ended: int) -> None:
    begun(path, pid=ended, status="finished")
    assert statuses(path) == ["finished"]


def test_a_process_that_is_hidden_is_alive(monkeypatch: pytest.MonkeyPatch) -> None:
    def hidden(pid: int) -> object:
        raise psutil.NoSuchProcess(pid)

    def refused(pid: int, signal: int) -> None:
        raise PermissionError

    monkeypatch.setattr(processes.psutil, "Process", hidden)
    assert not is_alive(2**22 + 1, 0.0)
    monkeypatch.setattr(os, "kill", refused)
    assert is_alive(1, 0.0)


def test_the_oldest_run_of_the_same_product_is_waited_for(path: Path, ended: int) -> None:
    parent = {"pid": os.getppid(), "process_started": process_started(os.getppid())}
    begun(path, ASKED.replace("h200-sxm-141gb", "l4"), **parent)
    begun(path, ASKED.replace('"m": 1', '"m": 2'), **parent)
    begun(path, pid=ended)
    begun(path, host=ANOTHER_BOOT)
    begun(path)  # of this very process, which would wait for itself
    first = begun(path, ASKED.replace("8", "16"), **parent)
    second = begun(path, **parent)
    own = begun(path)
    later = begun(path, **parent)
    with open_store(path, create=False) as store:
        found = store.earlier_running(own)
        assert found is not None
        assert (found.id, found.pid) == (first, os.getppid())
        store.finish_run(first, "finished")
        following = store.earlier_running(own)
        assert following is not None
        assert following.id == second
        store.finish_run(second, "interrupted")
        assert store.earlier_running(own) is None
        assert later > own


def test_a_damaged_run_is_nobody_to_wait_for(path: Path) -> None:
    begun(path, "{}", request="[" * 1000, pid=os.getppid(), process_started=process_started(os.getppid()))
    own = begun(path, "{}")
    with open_store(path) as store:
        assert store.earlier_running(own) is None


# older files


@pytest.mark.parametrize("version", ["0001", "0002"])
def test_older_files_are_brought_to_this_schema(tmp_path: Path, version: str) -> None:
    """What failed for a reason that was not told apart then is tried again, but for wrong answers and too large shared memory."""
    path = tmp_path / "tuner.db"
    shutil.copy(DATA / f"schema_{version}.db", path)
    with closing(sqlite3.connect(path)) as connection, connection:
        columns = ", ".join(
            row[1] for row in connection.execute("PRAGMA table_info(trial)") if row[1] not in ("id", "stages", "status", "message")
        )
        for stages, status, message in (
            (5, "out_of_resources", "torch.OutOfMemoryError: CUDA out of memory"),
            (6, "out_of_resources", "needs 262144 B of shared memory"),
            (7, "compile_failed", "No space left on device"),
            (8, "wrong_answer", ""),
        ):
            connection.execute(
                f"INSERT INTO trial ({columns}, stages, status, message) SELECT {columns}, ?, ?, ? FROM trial WHERE status = 'crashed'",
                (stages, status, message),
            )
    assert upgrade_store(path) == (version, "0003")
    with open_store(path) as store:
        assert store.check() is None
        assert [(run.status, run.host, run.pid) for run in store.runs()] == [("finished", None, None), ("interrupted", None, None)]
        found = {
            record.schedule.stages: record.measurement.status for record in store.records(problem=PROBLEM) if record.schedule.stages > 3
        }
        assert found == {4: "crashed", 5: "machine_fault", 6: "out_of_resources", 7: "compile_failed", 8: "wrong_answer"}
        known = store.known(PROBLEM, ENVIRONMENT, {"tma": "aaaa"}, "graph-1")
        assert sorted(schedule.stages for schedule in known) == [3, 3, 6, 8]
        answer = store.best(PROBLEM, Scope(gpu="h200-sxm-141gb", sms=132))
        assert answer is not None
        assert (answer.record.schedule, answer.record.measurement) == (SCHEDULE, timed(190.0))


def test_the_file_of_this_schema_is_sound(tmp_path: Path) -> None:
    path = tmp_path / "tuner.db"
    shutil.copy(DATA / "schema_0003.db", path)
    with open_store(path) as store:
        assert store.check() is None
        seen = [record.measurement for record in store.records()]
    assert seen == [timed(190.0), timed(191.0), CRASHED, COMPILED]
