"""The one writer: what it writes through, what it writes over, what it refuses, and that what was there stays where it fails."""

from __future__ import annotations

import contextlib
import errno
import os
import select
import sqlite3
import stat
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from search_spaces.errors import UserError
from tuner.files import check_target, write_file

LONG = "x" * 200_000  # more than a pipe holds


def refused(path: Path, sentence: str, **given: object) -> None:
    """Refused with this sentence, and everything in the folder as it was."""
    before = everything(path.parent)
    with contextlib.suppress(UserError):
        check_target(path, **given)  # type: ignore[arg-type]
    with pytest.raises(UserError, match=sentence):
        write_file(path, "after", **given)  # type: ignore[arg-type]
    assert everything(path.parent) == before


def everything(folder: Path) -> dict[str, object]:
    if not folder.is_dir():
        return {}
    found = {file.name: (file.lstat().st_mode, file.lstat().st_ino) for file in folder.iterdir()}
    return found | {f"{file.name} holds": file.read_bytes() for file in folder.iterdir() if file.is_file() and not file.is_symlink()}


def test_a_new_file_has_the_permissions_that_the_umask_leaves(tmp_path: Path) -> None:
    before = os.umask(0o027)
    try:
        write_file(tmp_path / "new", "text\n")
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "new").stat().st_mode) == 0o640
    assert everything(tmp_path).keys() == {"new", "new holds"}


@pytest.mark.parametrize("mode", [0o600, 0o640, 0o666, 0o755])
def test_a_written_file_is_whole_and_keeps_its_permissions(mode: int, tmp_path: Path) -> None:
    file = tmp_path / "out.py"
    file.write_text("before")
    file.chmod(mode)
    write_file(file, "after\n")
    assert (file.read_bytes(), stat.S_IMODE(file.stat().st_mode)) == (b"after\n", mode)
    assert list(tmp_path.iterdir()) == [file]


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may give a file to another user")
def test_a_written_file_keeps_its_owner(tmp_path: Path) -> None:
    file = tmp_path / "out.py"
    file.write_text("before")
    os.chown(file, 12345, 23456)
    write_file(file, "after")
    assert (file.read_text(), file.stat().st_uid, file.stat().st_gid) == ("after", 12345, 23456)


@pytest.mark.parametrize("call", ["fsync", "write", "replace"])
def test_a_write_that_fails_leaves_what_was_there(call: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "out.py"
    file.write_text("before")

    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, call, full)
    refused(file, r"cannot write .*out.py: No space left on device; what was there is as before")


@pytest.mark.parametrize("mode", [0o400, 0o444, 0o555, 0o000])
def test_a_read_only_file_is_refused_whoever_asks(mode: int, tmp_path: Path) -> None:
    file = tmp_path / "out.py"
    file.write_text("before")
    (tmp_path / "link").symlink_to(file)
    file.chmod(mode)
    refused(file, rf"it is read-only \(mode {mode:04o}\); make it writable, or name another file")
    refused(tmp_path / "link", "it is read-only")


@pytest.fixture(params=["DELETE", "WAL"])
def database(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Path]:
    connection = sqlite3.connect(tmp_path / "d.db")
    connection.execute(f"PRAGMA journal_mode = {request.param}")
    connection.execute("CREATE TABLE kept (x)")
    connection.commit()
    yield tmp_path / "d.db"
    connection.close()


def test_a_database_is_never_written_over_by_whatever_name(database: Path) -> None:
    folder = database.parent
    (folder / "link").symlink_to("d.db")
    (folder / "second link").symlink_to(folder / "link")
    os.link(database, folder / "hard")
    for name in ("d.db", "link", "second link", "hard"):
        refused(folder / name, "it is an SQLite database, which would be lost; name another file")
    refused(folder / ".." / folder.name / "d.db", "it is an SQLite database")


@pytest.mark.parametrize("ending", ["-wal", "-shm", "-journal"])
def test_nor_is_what_sqlite_keeps_beside_it(ending: str, database: Path) -> None:
    """Whether it is there now or not: SQLite would take it for its own."""
    refused(Path(f"{database}{ending}"), r"it belongs to the SQLite database .*d\.db; name another file")
    write_file(database.with_name(f"notes{ending}"), "of no database")


def test_what_a_text_is_made_from_is_not_written_over(tmp_path: Path) -> None:
    suite = tmp_path / "shapes.csv"
    suite.write_text("m,n,k\n1,2,3\n")
    (tmp_path / "link.csv").symlink_to(suite)
    for name in ("shapes.csv", "link.csv"):
        refused(tmp_path / name, "this is made from it; name another file", made_from=(None, str(suite)))
    write_file(tmp_path / "other.csv", "text", made_from=(str(suite), "h200", "a\0b"))


@pytest.mark.parametrize("target", ["there", "dangling", "in another folder"])
def test_a_symbolic_link_stays_and_what_it_names_is_written(target: str, tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    file = tmp_path / "folder" / "target.py"
    if target == "there":
        file.write_text("before")
    (tmp_path / "folder" / "near").symlink_to("target.py")
    (tmp_path / "link").symlink_to("folder/near" if target != "in another folder" else file)
    write_file(tmp_path / "link", "after")
    assert (tmp_path / "link").is_symlink()
    assert not file.is_symlink()
    assert file.read_text() == "after"
    assert {one.name for one in (tmp_path / "folder").iterdir()} == {"near", "target.py"}


def test_all_names_of_a_file_hold_the_new_text(tmp_path: Path) -> None:
    file, other = tmp_path / "out.py", tmp_path / "other.py"
    for before, after in (("before " * 9, "after"), ("before", "after " * 2000)):
        file.write_text(before)
        other.unlink(missing_ok=True)
        os.link(file, other)
        write_file(file, after)
        assert (file.read_text(), other.read_text(), file.samefile(other)) == (after, after, True)


def test_a_full_disk_keeps_the_text_of_a_file_with_two_names(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "out.py"
    file.write_text("old")
    os.link(file, tmp_path / "other.py")

    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "posix_fallocate", full)
    refused(file, "No space left on device; what was there is as before")


def test_a_file_whose_folder_takes_no_new_ones_is_written_all_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file in a read-only folder, or one that a container has mounted for itself."""
    file = tmp_path / "out.py"
    file.write_text("before")

    def busy(*_: object) -> None:
        raise OSError(errno.EBUSY, "Device or resource busy")

    monkeypatch.setattr(os, "replace", busy)
    write_file(file, "after")
    assert (file.read_text(), list(tmp_path.iterdir())) == ("after", [file])


def test_devices_stay_devices(tmp_path: Path) -> None:
    before = os.stat(os.devnull)
    (tmp_path / "link").symlink_to(os.devnull)
    for path in (Path(os.devnull), tmp_path / "link"):
        write_file(path, LONG)
    after = os.stat(os.devnull)
    assert (after.st_mode, after.st_rdev, after.st_ino) == (before.st_mode, before.st_rdev, before.st_ino)
    with pytest.raises(UserError, match="cannot write /dev/full: No space left on device"):
        write_file(Path("/dev/full"), "text")


def reading(read: Callable[[], bytes], write: Callable[[], None]) -> bytes:
    """What a reader gets meanwhile."""
    got: list[bytes] = []
    reader = threading.Thread(target=lambda: got.append(read()))
    reader.start()
    write()
    reader.join(10)
    return got[0]


def test_a_fifo_with_a_reader_is_written_through(tmp_path: Path) -> None:
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    descriptor = os.open(fifo, os.O_RDONLY | os.O_NONBLOCK)
    os.set_blocking(descriptor, True)
    with os.fdopen(descriptor, "rb") as reader:

        def read() -> bytes:
            select.select([reader], [], [])  # before there is a writer, a read ends at once
            return reader.read()

        assert reading(read, lambda: write_file(fifo, LONG)) == LONG.encode()
    assert stat.S_ISFIFO(fifo.stat().st_mode)


def test_a_fifo_without_a_reader_is_refused_at_once(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo")
    refused(tmp_path / "fifo", "nothing reads from it; start what reads it first, or name a file")


def test_a_reader_that_leaves_is_said(tmp_path: Path) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    try:
        with pytest.raises(UserError, match=rf"cannot write /proc/self/fd/{writer}: Broken pipe"):
            write_file(Path(f"/proc/self/fd/{writer}"), "text")
    finally:
        os.close(writer)


@pytest.mark.parametrize("folder", ["/dev/fd", "/proc/self/fd", "/proc/thread-self/fd"])
def test_an_open_file_goes_on_from_where_it_is(folder: str, tmp_path: Path) -> None:
    """As in `{ echo before; tuner export -o /dev/stdout; echo after; } > out`."""
    out = tmp_path / "out"
    with out.open("wb", buffering=0) as file:
        file.write(b"before\n")
        write_file(Path(folder) / str(file.fileno()), "text\n")
        file.write(b"after\n")
    assert out.read_text() == "before\ntext\nafter\n"


def test_a_folder_is_refused(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "link").symlink_to("folder")
    refused(tmp_path / "folder", r"it is a folder; name a file in it, such as .*/folder/out")
    refused(tmp_path / "link", "it is a folder")
    with pytest.raises(UserError, match="it is a folder"):
        write_file(Path(), "text")


@pytest.mark.parametrize(
    ("name", "sentence"),
    [
        ("none/out.py", "No such file or directory; make its folder first"),
        ("file/out.py", "Not a directory"),
        ("n" * 300, "File name too long"),
        ("p/" * 3000, r"File name too long|No such file"),
        ("a\0b", r"a\\x00b: embedded null byte"),
        ("\x1b[2Jout/out.py", r"\\x1b\[2Jout/out.py: No such file"),
        ("two\nlines/out.py", r"two\\nlines/out.py: No such file"),
        ("loop", "Too many levels of symbolic links"),
    ],
)
def test_a_path_that_cannot_be_is_said_so(name: str, sentence: str, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    (tmp_path / "loop").symlink_to("loop")
    with pytest.raises(UserError, match=sentence):
        write_file(tmp_path / name, "text")
    assert {file.name for file in tmp_path.iterdir()} == {"file", "loop"}


@pytest.mark.parametrize("name", [b"\xff\xfe.py", b"n" * 255, "größer.py".encode(), b"-", b".hidden", b"a b"])
def test_any_name_that_the_system_takes_is_written(name: bytes, tmp_path: Path) -> None:
    write_file(tmp_path / os.fsdecode(name), "text")
    assert [os.fsencode(file.name) for file in tmp_path.iterdir()] == [name]


def test_text_that_no_encoding_takes_is_escaped(tmp_path: Path) -> None:
    """A name of a file in a table may be no text."""
    write_file(tmp_path / "out", "ü\udcff\n")
    assert (tmp_path / "out").read_bytes() == b"\xc3\xbc\\udcff\n"


@pytest.mark.parametrize(
    ("name", "sentence"), [("d.db", "it is an SQLite database"), ("d.db-wal", "it belongs to"), ("..", "it is a folder")]
)
def test_what_is_there_is_looked_at_before_the_work(name: str, sentence: str, database: Path) -> None:
    with pytest.raises(UserError, match=sentence):
        check_target(database.with_name(name))
    check_target(database.with_name("new"))
    assert not database.with_name("new").exists()
