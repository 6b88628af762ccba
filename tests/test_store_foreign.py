"""Files and places that are not a tuner's database: one sentence for each, at once, and everything is left as it was."""

from __future__ import annotations

import os
import shutil
import socket
import sqlite3
import tempfile
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import pytest
from click.testing import CliRunner
from store_samples import ENVIRONMENT, PROBLEM, record, timed
from test_store_faults import contents, read_all, upgrade, without_root, write

from db.faults import LARGEST_VALUE_BYTES, VERSION_TABLE, resolve
from db.reading import open_reader
from db.store import open_store
from db.urls import printable_location, secrets, without
from search_spaces.errors import UserError
from search_spaces.gpu_files import load_gpu
from search_spaces.plain_text import visible
from tuner.answers import search_command
from tuner.cli import app


def check(path: Path) -> None:
    with open_store(path, create=False) as store:
        store.check()


def held(path: Path) -> bytes | None:
    return path.read_bytes() if os.path.isfile(path) else None


DOORS = pytest.mark.parametrize("door", [read_all, write, upgrade, check])


def refusal(door: Callable[[Path], None], path: Path) -> str:
    """The one sentence that the door says; the file is as it was."""
    before = held(path)
    with pytest.raises(UserError) as caught:
        door(path)
    assert "\n" not in str(caught.value)
    assert held(path) == before
    return str(caught.value)


# schemas

OURS = f"CREATE TABLE {VERSION_TABLE} (version_num VARCHAR(32) NOT NULL)"
FOREIGN = {
    "a foreign alembic": ("CREATE TABLE alembic_version (version_num TEXT)", "it has the table 'alembic_version' and no tuner's schema"),
    "a view alone": ("CREATE VIEW x AS SELECT 1", "it has the view 'x' and no tuner's schema"),
    "a virtual table": ("CREATE VIRTUAL TABLE x USING fts5(a)", "and no tuner's schema"),
    "no column": (f"CREATE TABLE {VERSION_TABLE} (a)", "its table 'tuner_schema' has no column 'version_num'"),
    "no version": (OURS, "it names no version of the schema"),
    "two versions": (f"{OURS}; INSERT INTO {VERSION_TABLE} VALUES ('0003'), ('0002')", "it names two or more versions of the schema"),
    "a version and no tables": (
        f"{OURS}; INSERT INTO {VERSION_TABLE} VALUES ('0003')",
        "its schema is said to be 0003, and run is missing",
    ),
    "a superscript": (
        f"{OURS}; INSERT INTO {VERSION_TABLE} VALUES ('²')",
        "the version of its schema is '²', and a tuner's is such as 0003",
    ),
    "other digits": (f"{OURS}; INSERT INTO {VERSION_TABLE} VALUES ('٠٠٠٣')", "the version of its schema is"),
    "NULL": (f"CREATE TABLE {VERSION_TABLE} (version_num); INSERT INTO {VERSION_TABLE} VALUES (NULL)", "the version of its schema is NULL"),
    "a blob": (f"CREATE TABLE {VERSION_TABLE} (version_num); INSERT INTO {VERSION_TABLE} VALUES (x'00ff')", "the version of its schema is"),
    "zero": (f"{OURS}; INSERT INTO {VERSION_TABLE} VALUES ('0000')", "the version of its schema is '0000'"),
    "a view": (f"CREATE VIEW {VERSION_TABLE} AS SELECT '0003' AS version_num", "it has a view 'tuner_schema' where a tuner has the table"),
    "an endless view": (
        f"CREATE VIEW {VERSION_TABLE} AS WITH RECURSIVE n(version_num) AS (SELECT 1 UNION ALL SELECT version_num + 1 FROM n)"
        " SELECT version_num FROM n",
        "it has a view 'tuner_schema' where a tuner has the table",
    ),
}


@DOORS
@pytest.mark.parametrize("kind", FOREIGN)
def test_what_is_no_tuner_s_is_left_as_it_is(door: Callable[[Path], None], tmp_path: Path, kind: str) -> None:
    path = tmp_path / "other.db"
    script, words = FOREIGN[kind]
    with closing(sqlite3.connect(path)) as connection:
        connection.executescript(script)
    said = refusal(door, path)
    assert said.startswith(f"{path} is not a tuner database (")
    assert "; it was left as it is: name another file" in said
    assert words in said


@pytest.fixture(scope="module")
def kept(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("kept") / "tuner.db"
    with open_store(path) as store:
        store.add(store.begin_run(ENVIRONMENT, "{}"), record(timed(190.0)))
    return path


@pytest.fixture
def path(kept: Path, tmp_path: Path) -> Path:
    return Path(shutil.copy(kept, tmp_path / "tuner.db"))


CHANGED = {
    "a trigger": (
        "CREATE TRIGGER t AFTER INSERT ON run BEGIN DELETE FROM trial; END",
        "it has a trigger 't' where a tuner has the table 'run'",
    ),
    "a lost column": ("ALTER TABLE trial DROP COLUMN compile_log", "its schema is said to be 0003, and trial.compile_log is missing"),
    "a lost table": ("DROP TABLE finalist", "its schema is said to be 0003, and finalist is missing"),
    "a computed column": (
        "DROP TABLE finalist; CREATE TABLE finalist (run_id, trial_id AS (zeroblob(1000000000)))",
        "the column 'finalist.trial_id' is computed",
    ),
    "a view for a table": ("DROP TABLE finalist; CREATE VIEW finalist AS SELECT 1", "it has a view 'finalist' where a tuner has the table"),
    "a virtual table": ("DROP TABLE finalist; CREATE VIRTUAL TABLE finalist USING fts5(run_id)", "it has a virtual table 'finalist'"),
    "ids without a key": ("DROP TABLE run; CREATE TABLE run (id TEXT, status)", "the ids of its table 'run' are not its primary key"),
}


@DOORS
@pytest.mark.parametrize("kind", CHANGED)
def test_a_schema_that_somebody_changed_is_refused(door: Callable[[Path], None], path: Path, kind: str) -> None:
    script, words = CHANGED[kind]
    with closing(sqlite3.connect(path)) as connection:
        connection.executescript(script)
    said = refusal(door, path)
    assert said.startswith(f"{path} is not a tuner database (")
    assert words in said


def test_what_a_person_adds_for_himself_is_no_matter(path: Path) -> None:
    with closing(sqlite3.connect(path)) as connection:
        connection.executescript(
            "CREATE VIEW mine AS SELECT * FROM trial; CREATE INDEX quick ON trial (model); CREATE TABLE t (a); ANALYZE"
        )
    for door in (read_all, write, check):
        door(path)


def test_a_check_counts_what_refers_to_nothing(path: Path) -> None:
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute("DELETE FROM run")
    with pytest.raises(UserError, match="is not sound: 1 of table trial name a row of run that is not there"):
        check(path)


def test_a_value_that_would_fill_the_memory_is_not_read(path: Path) -> None:
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute("UPDATE trial SET message = zeroblob(?)", (LARGEST_VALUE_BYTES + 1,))
    assert "is damaged (it holds a value of more than 64 MiB)" in refusal(read_all, path)


def test_the_command_ends_with_two(tmp_path: Path) -> None:
    path = tmp_path / "other.db"
    with closing(sqlite3.connect(path)) as connection:
        connection.executescript(FOREIGN["a superscript"][0])
    ended = CliRunner().invoke(app, ["db", "check", "--db", str(path)])
    assert isinstance(ended.exception, UserError)
    assert "is not a tuner database" in str(ended.exception)
    assert "sound" not in ended.output


# places


def pipe(path: Path) -> None:
    os.mkfifo(path)


def dangling(path: Path) -> None:
    path.symlink_to(path.parent / "nowhere.db")


def folder(path: Path) -> None:
    path.mkdir()


def bound_socket(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as made:
        made.bind(str(path))


@DOORS
@pytest.mark.parametrize(
    ("place", "words"),
    [
        (pipe, "is a named pipe, and a database is a file"),
        (bound_socket, "is a socket, and a database is a file"),
        (dangling, "is a symbolic link to"),
        (folder, "is a folder; name a file in it"),
    ],
)
def test_what_is_no_file_is_refused_at_once(
    door: Callable[[Path], None], tmp_path: Path, place: Callable[[Path], None], words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)  # a socket's name may have 107 characters
    place(Path("tuner.db"))
    assert words in refusal(door, tmp_path / "tuner.db")
    assert not (tmp_path / "nowhere.db").exists()


@DOORS
def test_a_device_is_refused(door: Callable[[Path], None]) -> None:
    assert "/dev/null is a device, and a database is a file" in refusal(door, Path("/dev/null"))


@pytest.mark.parametrize("suffix", ["-wal", "-journal", "-shm"])
def test_a_pipe_beside_the_file_is_refused(path: Path, suffix: str) -> None:
    os.mkfifo(f"{path}{suffix}")
    for door in (read_all, write):
        assert f"{path}{suffix} is a named pipe" in refusal(door, path)


def test_a_link_to_a_database_is_followed(path: Path, tmp_path: Path) -> None:
    link = tmp_path / "link.db"
    link.symlink_to(path)
    read_all(link)
    write(link)


@pytest.mark.parametrize("name", ["x" * 300, "a/" * 3000 + "x.db"])
@DOORS
def test_a_name_that_is_too_long_is_told_of(door: Callable[[Path], None], tmp_path: Path, name: str) -> None:
    assert "(File name too long)" in refusal(door, tmp_path / name)


@pytest.mark.parametrize(
    ("location", "words"),
    [
        ("a\0b.db", "'a\\x00b.db' cannot be a file's name: it holds a NUL"),
        ("~nobody-of-that-name.db", "begins with the home of a user who is not known here; write './~nobody-of-that-name.db'"),
        ("sqlite://u:PW@h/x", "names no file; give the file's path, or sqlite:///PATH"),
        ("sqlite+pysqlite://u:PW@h/x?password=PW", "names no file; give the file's path, or sqlite:///PATH"),
    ],
)
def test_a_location_that_names_no_file_is_told_of(location: str, words: str) -> None:
    for door in (open_reader, open_store):
        with pytest.raises(UserError) as caught:
            door(location)
        assert words in str(caught.value)
        assert "PW" not in str(caught.value)


def test_a_working_folder_that_is_gone_is_told_of(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    gone = tmp_path / "gone"
    gone.mkdir()
    monkeypatch.chdir(gone)
    gone.rmdir()
    with pytest.raises(UserError, match=r"'x\.db' is in the working folder, which is gone"):
        resolve("x.db")
    assert resolve("/tmp/x.db") == Path("/tmp/x.db")


def test_without_a_home_a_file_is_to_be_named(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("HOME", "XDG_DATA_HOME", "TUNER_DB"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr("pwd.getpwuid", lambda uid: {}[uid])
    with pytest.raises(UserError, match="set HOME or XDG_DATA_HOME"):
        resolve(None)
    assert resolve("/tmp/x.db") == Path("/tmp/x.db")


@pytest.fixture
def closed_folder() -> Iterator[Path]:
    made = Path(tempfile.mkdtemp())
    made.chmod(0o600)
    yield made
    shutil.rmtree(made)


def test_a_folder_without_search_right_is_told_of(closed_folder: Path) -> None:
    with without_root():
        for door in (read_all, write, upgrade, check):
            with pytest.raises(UserError, match=r"cannot be opened \(Permission denied\)"):
                door(closed_folder / "tuner.db")


def test_a_name_that_is_no_utf_8_works_and_is_printed_with_escapes(tmp_path: Path) -> None:
    path = Path(os.fsdecode(os.fsencode(tmp_path) + b"/t\xff.db"))
    write(path)
    with open_reader(path) as reader, open_store(path) as store:
        assert reader.location == store.location == f"{tmp_path}/t\\udcff.db"
        assert len(reader.runs()) == 1


def test_a_named_folder_has_to_be_there(tmp_path: Path) -> None:
    """A misspelt name would start a second database."""
    with pytest.raises(UserError, match=f"the folder of {tmp_path}/nowhere/x.db is not there: make it \\(mkdir -p {tmp_path}/nowhere\\)"):
        write(tmp_path / "nowhere" / "x.db")
    assert contents(tmp_path) == {}
    assert not (tmp_path / "nowhere").exists()


# what is printed of a URL


@pytest.mark.parametrize(
    ("url", "printed"),
    [
        ("postgresql+psycopg://me:PW@host:5432/t1", "postgresql+psycopg://me:***@host:5432/t1"),
        ("postgresql+psycopg:///t1?host=/tmp/x&password=PW", "postgresql+psycopg:///t1?host=/tmp/x&password=***"),
        ("postgresql://host/t1?%70assword=PW", "postgresql://host/t1?password=***"),
        ("postgresql://host/t1?password=%50%57", "postgresql://host/t1?password=***"),
        ("postgresql://me%3APW@host/t1", "postgresql://me:***@host/t1"),
        ("postgresql://me:P@PW@host/t1", "postgresql://me:***@host/t1"),
        ("postgresql://me:a/PW?@host/t1", "postgresql://me:***@host/t1"),
        ("postgresql://me@host/t1?sslmode=require&sslpassword=PW", "postgresql://me@host/t1?sslmode=require&sslpassword=***"),
        ("postgresql://me@host/t1?passfile=/home/PW", "postgresql://me@host/t1?passfile=***"),
        ("postgresql://me@host/t1?options=-c%20x%3DPW", "postgresql://me@host/t1?options=***"),
        ("postgresql:///dbname=t1%20password=PW", "postgresql:///***"),
        ("postgresql:///?dbname=host%3Dh+password%3DPW", "postgresql:///?dbname=***"),
        ("postgresql://host:PW/t1", "postgresql://host:***/t1"),
        ("://me:PW@host", "***"),
        ("/home/me/tuner.db", "/home/me/tuner.db"),
    ],
)
def test_a_password_is_never_printed(url: str, printed: str) -> None:
    assert printable_location(url) == printed
    with pytest.raises(UserError) as caught:
        open_store(url.replace("postgresql", "nosuch") if "://" in url else f"{url}/nowhere/x.db")
    assert "PW" not in str(caught.value)
    assert visible(str(caught.value)) == str(caught.value)


@pytest.mark.parametrize(
    ("url", "text", "printed"),
    [
        ("postgresql://me:PW@host/t1", "no entry for me with 'PW'", "no entry for me with '***'"),
        ("postgresql://me:a%2FPW@host/t1", "bad a/PW or a%2FPW", "bad *** or ***"),
        ("postgresql://host/t1?password=P+W", "bad P W", "bad ***"),
        ("postgresql:///host=h%20password='PW'", 'missing "=" after "PW"', 'missing "=" after "***"'),
        ("postgresql://me%3APW@host/t1", "no role PW", "no role ***"),
    ],
)
def test_a_driver_s_words_are_cleared_of_passwords(url: str, text: str, printed: str) -> None:
    assert without(secrets(url), text) == printed


def test_advice_repeats_no_password() -> None:

    command = search_command(PROBLEM, load_gpu("h200"), "postgresql://me:PW@host/t1")
    assert command.endswith("--db 'postgresql://me:***@host/t1'")
