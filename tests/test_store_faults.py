"""A database that cannot be used gives one sentence and stays as it was; processes that die, or are many, lose nothing that was stored."""

from __future__ import annotations

import os
import shutil
import sqlite3
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import replace
from pathlib import Path

import pytest
import sqlalchemy
from sqlalchemy import event
from store_samples import ENVIRONMENT, PROBLEM, SCHEDULE, record, timed

from db import faults, local_file, reading
from db.faults import VERSION_TABLE, default_path, file_system, on_network, resolve
from db.reading import open_reader
from db.store import open_store, upgrade_store
from search_spaces.errors import MachineFault, UserError

ROOT = Path(__file__).parents[1]
NOBODY = 65534
WRITER = """
import sys
from dataclasses import replace
from db.store import open_store
from store_samples import ENVIRONMENT, SCHEDULE, record, timed
print("ready", flush=True)
sys.stdin.readline()
with open_store(sys.argv[1]) as opened:
    run_id = opened.begin_run(ENVIRONMENT, "{}")
    for i in range(int(sys.argv[2])):
        print(opened.add(run_id, record(timed(100.0 + i), schedule=replace(SCHEDULE, group_m=1 + i))), flush=True)
"""


def writer(path: Path, rows: int) -> subprocess.Popen[str]:
    """A process that waits for a line before it opens the database, and prints the id of each row once it is stored."""
    environment = os.environ | {"PYTHONPATH": f"{ROOT}{os.pathsep}{ROOT / 'tests'}"}
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    return subprocess.Popen([sys.executable, "-c", WRITER, str(path), str(rows)], env=environment, text=True, **pipes)


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir() if path.is_file()}


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A database of some pages."""
    made = tmp_path / "tuner.db"
    with open_store(made) as opened:
        run_id = opened.begin_run(ENVIRONMENT, "{}")
        for i in range(60):
            opened.add(run_id, record(timed(100.0 + i), schedule=replace(SCHEDULE, group_m=1 + i)))
    return made


def read_all(path: Path) -> None:
    with open_reader(path) as reader:
        list(reader.records())


def write(path: Path) -> None:
    with open_store(path) as opened:
        opened.begin_run(ENVIRONMENT, "{}")


def upgrade(path: Path) -> None:
    upgrade_store(path)


DOORS = pytest.mark.parametrize("door", [read_all, write, upgrade])


def refused(door: Callable[[Path], None], path: Path, *words: str) -> None:
    """The door says these words, on one line and with the file's name, and the folder is as it was."""
    before = contents(path.parent)
    with pytest.raises(UserError) as caught:
        door(path)
    sentence = str(caught.value)
    assert "\n" not in sentence
    for word in (str(path), *words):
        assert word in sentence
    assert contents(path.parent) == before


# files that are no database of ours


@DOORS
@pytest.mark.parametrize("text", ["x", "M,N,K,median_us\n4096,4096,4096,190.0\n" * 100])
def test_a_text_file_is_no_database(door: Callable[[Path], None], tmp_path: Path, text: str) -> None:
    path = tmp_path / "times.csv"
    path.write_text(text)
    refused(door, path, "is not a database", "--db")


@DOORS
def test_half_a_file_is_damaged(door: Callable[[Path], None], path: Path) -> None:
    whole = path.read_bytes()
    path.write_bytes(whole[: len(whole) // 2])
    refused(door, path, "is damaged")


@pytest.mark.parametrize("door", [read_all, write])
def test_a_page_of_zeros_is_damage(door: Callable[[Path], None], path: Path) -> None:
    pages = bytearray(path.read_bytes())
    with closing(sqlite3.connect(path)) as connection:
        (page,) = connection.execute("SELECT rootpage FROM sqlite_master WHERE name = 'trial'").fetchone()
        (size,) = connection.execute("PRAGMA page_size").fetchone()
    pages[(page - 1) * size : page * size] = bytes(size)
    path.write_bytes(pages)
    refused(door, path, "is damaged")


@DOORS
def test_a_schema_whose_names_are_no_text_is_damaged(door: Callable[[Path], None], path: Path) -> None:
    """sqlite3 itself fails on such a name when it words its error."""
    damaged = path.read_bytes().replace(b"CREATE TABLE trial (", b"CREATE TABLE tr\xd2\xa6l (")
    path.write_bytes(damaged)
    refused(door, path, "is damaged")


def test_check_reads_every_index(path: Path) -> None:
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute("PRAGMA writable_schema = ON")
        connection.execute(
            "UPDATE sqlite_master SET sql = 'CREATE INDEX trial_run ON trial (environment_id, gpu)' WHERE name = 'trial_run'"
        )
    with open_store(path) as opened, pytest.raises(UserError, match="is damaged"):
        opened.check()


def test_check_finds_nothing_wrong_with_a_good_file(path: Path) -> None:
    with open_store(path) as opened:
        assert opened.check() is None


@DOORS
@pytest.mark.parametrize("table", ["bookmarks", "alembic_version"])
def test_another_application_s_database_is_refused(door: Callable[[Path], None], tmp_path: Path, table: str) -> None:
    path = tmp_path / "other.db"
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute(f"CREATE TABLE {table} (version_num TEXT)")
    refused(door, path, "is not a tuner database", repr(table), "it was left as it is")


@DOORS
def test_a_newer_schema_is_refused(door: Callable[[Path], None], path: Path) -> None:
    set_version(path, "0007")
    refused(door, path, "was written by a newer tuner (schema 0007, this one knows 0003): upgrade the tool")


@pytest.mark.parametrize("door", [read_all, write])
def test_an_older_schema_is_to_be_upgraded_first(door: Callable[[Path], None], path: Path) -> None:
    set_version(path, "0002")
    refused(door, path, "was written by an older tuner (schema 0002, this one has 0003): run `tuner db upgrade`")


def set_version(path: Path, version: str) -> None:
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute(f"UPDATE {VERSION_TABLE} SET version_num = ?", (version,))


# files that are not there


@pytest.mark.parametrize("door", [read_all, upgrade])
@pytest.mark.parametrize("empty", [False, True])
def test_without_a_database_there_is_nothing_to_read(door: Callable[[Path], None], tmp_path: Path, empty: bool) -> None:
    path = tmp_path / "tuner.db"
    if empty:
        path.touch()
    refused(door, path, "there is no database at", "run `tuner search`")


def test_create_can_be_declined(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="there is no database"):
        open_store(tmp_path / "tuner.db", create=False)
    assert contents(tmp_path) == {}


def test_an_empty_file_and_the_user_s_own_folder_become_a_database(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "a" / "b"))
    empty = tmp_path / "empty.db"
    empty.touch()
    for path in (empty, default_path()):
        write(path)
        with open_reader(path) as reader:
            assert [run.status for run in reader.runs()] == ["running"]
        assert sqlite_says(path, "PRAGMA journal_mode") == "wal"


def test_a_file_whose_making_was_cut_off_is_made_anew(tmp_path: Path) -> None:
    path = tmp_path / "tuner.db"
    sqlite_says(path, "PRAGMA journal_mode = WAL")
    assert path.stat().st_size > 0
    write(path)
    with open_reader(path) as reader:
        assert len(reader.runs()) == 1


def sqlite_says(path: Path, pragma: str) -> object:
    with closing(sqlite3.connect(path)) as connection:
        return connection.execute(pragma).fetchone()[0]


@DOORS
def test_a_folder_is_refused(door: Callable[[Path], None], tmp_path: Path) -> None:
    with pytest.raises(UserError, match=f"{tmp_path} is a folder; name a file in it, such as {tmp_path}/tuner.db"):
        door(tmp_path)


def test_a_file_in_place_of_the_folder_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(UserError, match=r"the folder of .* \(Not a directory\)"):
        open_store(tmp_path / "file" / "tuner.db")


# places that cannot be written


@contextmanager
def without_root() -> Iterator[None]:
    """Root may write everywhere; so be somebody else for a while."""
    if os.geteuid() != 0:
        yield
        return
    os.setresuid(NOBODY, NOBODY, 0)
    try:
        yield
    finally:
        os.setresuid(0, 0, 0)


@pytest.fixture
def public_folder() -> Iterator[Path]:
    """A folder that somebody else may enter."""
    folder = Path(tempfile.mkdtemp())
    folder.chmod(0o755)
    yield folder
    folder.chmod(0o755)
    shutil.rmtree(folder)


@pytest.mark.parametrize(("folder_mode", "file_mode"), [(0o555, 0o444), (0o777, 0o444), (0o555, 0o666)])
def test_a_read_only_place_is_read_and_not_written(path: Path, public_folder: Path, folder_mode: int, file_mode: int) -> None:
    copy = public_folder / "tuner.db"
    shutil.copy(path, copy)
    copy.chmod(file_mode)
    public_folder.chmod(folder_mode)
    with without_root():
        refused(write, copy, "cannot be written", "read-only")
        with open_reader(copy) as reader:
            assert reader.stats().trials == {"ok": 60}


def test_a_database_that_becomes_read_only_is_told_of(path: Path) -> None:
    with open_store(path) as opened:
        run_id = opened.begin_run(ENVIRONMENT, "{}")
        with opened.reading() as connection:
            connection.exec_driver_sql("PRAGMA query_only = ON")
        with pytest.raises(UserError, match="cannot be written"):
            opened.add(run_id, record(timed(1.0)))


@contextmanager
def full_disk() -> Iterator[None]:
    """No database that is opened now may grow."""

    def limit(connection: sqlite3.Connection, _: object) -> None:
        connection.execute("PRAGMA max_page_count = 1")  # SQLite takes the present size where that is more

    event.listen(sqlalchemy.Engine, "connect", limit)
    try:
        yield
    finally:
        event.remove(sqlalchemy.Engine, "connect", limit)


def test_a_full_disk_loses_the_row_in_hand_alone(path: Path) -> None:
    with full_disk(), open_store(path) as opened:
        run_id = opened.begin_run(ENVIRONMENT, "{}")
        added: list[int] = []
        with pytest.raises(MachineFault, match=f"{path} cannot grow: the disk is full"):
            added.extend(opened.add(run_id, record(timed(1.0))) for _ in range(1000))
        with open_reader(path) as reader:
            assert reader.stats().trials == {"ok": 60 + len(added)}
    with open_store(path) as opened:
        opened.add(run_id, record(timed(1.0)))


def test_a_full_disk_leaves_no_half_made_database(tmp_path: Path) -> None:
    path = tmp_path / "tuner.db"
    with full_disk(), pytest.raises(MachineFault, match="the disk is full"):
        open_store(path)
    write(path)
    assert sqlite_says(path, "SELECT COUNT(*) FROM run") == 1


# several at once


def test_a_lock_that_stays_is_told_of(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (faults, reading, local_file):
        monkeypatch.setattr(module, "BUSY_TIMEOUT_SECONDS", 0.1)
    with closing(sqlite3.connect(path, isolation_level=None)) as holder:
        holder.execute("BEGIN IMMEDIATE")
        with open_store(path) as opened:
            with pytest.raises(UserError, match=r"is locked by another process, for 0\.1 s now"):
                opened.begin_run(ENVIRONMENT, "{}")
            assert opened.stats().trials == {"ok": 60}  # reading goes on
        holder.execute("ROLLBACK")
    write(path)


def test_a_reader_in_the_middle_holds_up_no_writer(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(local_file, "BUSY_TIMEOUT_SECONDS", 0.1)
    monkeypatch.setattr(reading, "PAGE", 10)
    with open_reader(path) as reader, open_store(path) as opened:
        under_way = reader.records()
        next(under_way)
        run_id = opened.begin_run(ENVIRONMENT, "{}")
        opened.add(run_id, record(timed(1.0)))
        assert len(list(under_way)) == 60


def test_processes_that_start_together_lose_no_row(tmp_path: Path) -> None:
    path, processes, rows = tmp_path / "tuner.db", 8, 50
    started = [writer(path, rows) for _ in range(processes)]
    for process in started:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
    for process in started:
        assert process.stdin is not None
        process.stdin.write("\n")
        process.stdin.flush()
    ended = [process.communicate() for process in started]
    assert [error for _, error in ended] == [""] * processes
    assert len({line for output, _ in ended for line in output.splitlines()}) == processes * rows
    with open_reader(path) as reader:
        stats = reader.stats()
    assert (stats.trials, sum(stats.runs.values()), stats.environments) == ({"ok": processes * rows}, processes, 1)


def test_a_kill_loses_at_most_the_row_in_flight(tmp_path: Path) -> None:
    path = tmp_path / "tuner.db"
    acknowledged = 0
    for _ in range(2):
        with writer(path, 100_000) as process:
            assert process.stdin is not None
            assert process.stdout is not None
            process.stdin.write("\n")
            process.stdin.flush()
            for _ in range(30):
                process.stdout.readline()
            process.kill()
            rest = process.stdout.read()
        acknowledged += 29 + rest.count("\n")  # the first line says "ready"
        with open_reader(path) as reader:
            count = sum(reader.stats().trials.values())
        assert count in (acknowledged, acknowledged + 1)
        acknowledged = count
        with open_store(path) as opened:
            assert opened.check() is None
            known = opened.known(PROBLEM, ENVIRONMENT, {"tma": "aaaa"}, "graph-1")
            assert SCHEDULE.family in {schedule.family for schedule in known}


# where it lies


def test_the_location_is_named_given_or_a_file_of_the_user_s(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("TUNER_DB", raising=False)
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    assert resolve(None) == default_path() == tmp_path / "tuner" / "tuner.db"
    monkeypatch.delenv("XDG_DATA_HOME")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert default_path() == tmp_path / ".local" / "share" / "tuner" / "tuner.db"
    monkeypatch.setenv("TUNER_DB", "~/x.db")
    assert resolve(None) == tmp_path / "x.db"
    assert resolve("y.db") == Path.cwd() / "y.db"
    assert resolve("sqlite:////tmp/z.db") == Path("/tmp/z.db")
    assert resolve("postgresql://host/tuner") == "postgresql://host/tuner"


def test_a_store_says_where_it_is(tmp_path: Path) -> None:
    with open_store(tmp_path / "tuner.db") as opened:
        assert opened.location == str(tmp_path / "tuner.db")


@pytest.mark.parametrize(
    ("url", "words"),
    [
        ("nosuch://host/tuner", "no driver for nosuch"),
        ("://host", "the database's URL is none"),
        ("sqlite://", "names no file"),
        ("mysql+nosuch://host/x", "no driver for mysql"),
    ],
)
def test_a_url_that_leads_nowhere_is_told_of(url: str, words: str) -> None:
    for door in (open_store, open_reader):
        with pytest.raises(UserError, match=words):
            door(url)


MOUNTS = "/dev/sda / ext4 rw 0 0\nserver:/home /home nfs4 rw 0 0\ntmpfs /home/me/fast tmpfs rw 0 0\nnas /mnt/my\\040disk cifs rw 0 0\n"


@pytest.mark.parametrize(
    ("path", "kind"),
    [
        ("/var/x.db", "ext4"),
        ("/home/me/x.db", "nfs4"),
        ("/home/me/fast/x.db", "tmpfs"),
        ("/mnt/my disk/x.db", "cifs"),
        ("/homes/x.db", "ext4"),
    ],
)
def test_the_innermost_mount_holds_the_file(path: str, kind: str) -> None:
    assert file_system(Path(path), MOUNTS) == kind


def test_only_network_file_systems_are_warned_of(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mounts = tmp_path / "mounts"
    mounts.write_text(MOUNTS)
    assert on_network(Path("/home/me/x.db"), mounts) == "nfs4"
    assert on_network(Path("/var/x.db"), mounts) is None
    assert on_network(Path("/var/x.db"), tmp_path / "nothing") is None
    with open_store(tmp_path / "local.db") as opened:
        assert opened.warnings == ()
    monkeypatch.setattr(local_file, "on_network", lambda path: "nfs4")
    with open_store(tmp_path / "far.db") as opened:
        (warning,) = opened.warnings
        assert "network file system (nfs4)" in warning
    assert sqlite_says(tmp_path / "far.db", "PRAGMA journal_mode") == "delete"
