"""Where the database is, and what may be wrong with it: each fault as one sentence that names the file, which is left as it was."""

from __future__ import annotations

import errno
import os
import shlex
import sqlite3
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from io import BytesIO
from pathlib import Path

from search_spaces.errors import MachineFault, UserError
from search_spaces.plain_text import shown, visible
from search_spaces.user_folder import user_folder

SCHEMA_VERSION = "0003"
VERSION_TABLE = "tuner_schema"
BUSY_TIMEOUT_SECONDS = 60.0
LARGEST_VALUE_BYTES = 64 * 2**20
OTHER_FILE = "name another file with --db or TUNER_DB"
_BESIDE = ("-journal", "-wal", "-shm")  # what SQLite opens beside a file
_MAGIC = b"SQLite format 3\0"
_NETWORK_FILE_SYSTEMS = {"nfs", "nfs4", "cifs", "smb3", "smbfs", "9p", "afs", "ceph", "lustre", "gpfs", "beegfs", "glusterfs"}
_NETWORK_FUSE = {"fuse.sshfs", "fuse.glusterfs", "fuse.ceph", "fuse.juicefs", "fuse.s3fs", "fuse.gcsfuse"}


def default_path() -> Path:
    return user_folder() / "tuner.db"


def resolve(location: str | Path | None) -> Path | str:
    """A file's path or a server's URL. None stands for TUNER_DB, and without that for the default path."""
    chosen = str(location or os.environ.get("TUNER_DB") or default_path())
    if chosen.startswith("sqlite:///"):
        chosen = chosen.removeprefix("sqlite:///")
    elif chosen.startswith("sqlite") and "://" in chosen:  # it may hold a password, so it is not repeated
        raise UserError("the database's sqlite URL names no file; give the file's path, or sqlite:///PATH")
    elif "://" in chosen:
        return chosen
    if "\0" in chosen:
        raise UserError(f"{shown(chosen)} cannot be a file's name: it holds a NUL; {OTHER_FILE}")
    try:
        return Path(chosen).expanduser().absolute()
    except RuntimeError:
        raise UserError(
            f"{shown(chosen)} begins with the home of a user who is not known here; write {shown('./' + chosen)} for a file of that name"
        ) from None
    except FileNotFoundError:
        raise UserError(f"{shown(chosen)} is in the working folder, which is gone; give a path from the root, or change folders") from None


def check_file(path: Path) -> bool:
    """Whether there is a database to read: False for no file and for an empty one. Refuses what SQLite did not write, and what is no
    regular file: opening a pipe waits for ever."""
    name = visible(str(path))
    try:
        there = _is_file(path)
        for suffix in _BESIDE:
            _is_file(path.with_name(path.name + suffix))
        with open(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), "rb") if there else BytesIO() as file:
            head = file.read(len(_MAGIC))
    except OSError as error:
        raise UserError(f"{name} cannot be opened ({error.strerror}); {OTHER_FILE}") from None
    if head and head != _MAGIC:
        raise UserError(f"{name} is not a database: it begins with {head!r}, SQLite's files with {_MAGIC!r}; {OTHER_FILE}")
    return bool(head)


def _is_file(path: Path) -> bool:
    """False where nothing is there."""
    name = visible(str(path))
    try:
        mode = os.stat(path).st_mode
    except FileNotFoundError:
        if path.is_symlink():
            raise UserError(f"{name} is a symbolic link to {visible(os.readlink(path))}, which is not there; {OTHER_FILE}") from None
        return False
    except NotADirectoryError:
        return False
    if stat.S_ISDIR(mode):
        raise UserError(f"{name} is a folder; name a file in it, such as {name}/tuner.db")
    if not stat.S_ISREG(mode):
        kinds = {stat.S_IFIFO: "a named pipe", stat.S_IFSOCK: "a socket", stat.S_IFCHR: "a device", stat.S_IFBLK: "a device"}
        raise UserError(f"{name} is {kinds.get(stat.S_IFMT(mode), 'no regular file')}, and a database is a file; {OTHER_FILE}")
    return True


def prepare_folder(path: Path) -> None:
    """Make the folder of the user's own database, where it is not there yet, and refuse one that cannot be written. A folder that is named
    has to be there: a misspelt name would start a second database."""
    name, folder = visible(str(path)), visible(str(path.parent))
    try:
        if not path.parent.exists():
            if path != default_path().absolute():
                raise UserError(f"the folder of {name} is not there: make it (mkdir -p {shlex.quote(folder)}), or {OTHER_FILE}")
            path.parent.mkdir(parents=True, exist_ok=True)
        if not path.parent.is_dir():
            raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR))
    except OSError as error:
        raise UserError(f"the folder of {name} cannot be used ({error.strerror}); {OTHER_FILE}") from None
    for part in (path.parent, path):
        if part.exists() and not os.access(part, os.W_OK):
            raise UserError(f"{name} cannot be written: {visible(str(part))} is read-only; make it writable, or {OTHER_FILE}")


def no_database(location: str) -> UserError:
    return UserError(f"there is no database at {location} yet: run `tuner search`, or {OTHER_FILE}")


def damaged(location: str, what: str) -> UserError:
    return UserError(f"{location} is damaged ({what}); it was left as it is: put a copy in its place, or {OTHER_FILE}")


def fault(error: sqlite3.Error, location: str) -> UserError | MachineFault | None:
    """The sentence for what a person can mend; None for a mistake in the program."""
    if str(error).startswith("Could not decode to UTF-8"):
        return damaged(location, "it holds text that is none")
    code = (getattr(error, "sqlite_errorcode", None) or 0) & 0xFF
    what = shown(error, quotes=False)
    match code:
        case sqlite3.SQLITE_CORRUPT | sqlite3.SQLITE_NOTADB:
            return damaged(location, what)
        case sqlite3.SQLITE_FULL:
            return MachineFault(f"{location} cannot grow: the disk is full; free some space and run the same command again")
        case sqlite3.SQLITE_IOERR | sqlite3.SQLITE_NOMEM:
            return MachineFault(f"{location} cannot be used ({what}): look after the disk and the memory, and run the same command again")
        case sqlite3.SQLITE_BUSY | sqlite3.SQLITE_LOCKED:
            return UserError(f"{location} is locked by another process, for {BUSY_TIMEOUT_SECONDS:g} s now; end that one, or {OTHER_FILE}")
        case sqlite3.SQLITE_READONLY | sqlite3.SQLITE_PERM:
            return UserError(f"{location} cannot be written: the file or its folder is read-only; make it writable, or {OTHER_FILE}")
        case sqlite3.SQLITE_CANTOPEN:
            return UserError(f"{location} cannot be opened ({what}); look after its folder, or {OTHER_FILE}")
        case sqlite3.SQLITE_TOOBIG:
            return damaged(location, f"it holds a value of more than {LARGEST_VALUE_BYTES >> 20} MiB")
        case sqlite3.SQLITE_ERROR | sqlite3.SQLITE_SCHEMA | sqlite3.SQLITE_CONSTRAINT | sqlite3.SQLITE_MISMATCH | sqlite3.SQLITE_AUTH:
            # what a file of ours never answers: somebody else made the tables, or changed them
            return UserError(f"{location} does not do as a tuner database does ({what}): run `tuner db check`, or {OTHER_FILE}")
    return None


def guard(connection: sqlite3.Connection) -> None:
    """What anybody may have written is about to be read: run no functions of its schema, look at every page's cells, take no value that
    would fill the memory, and read text that is no UTF-8 as escapes."""
    connection.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, LARGEST_VALUE_BYTES)
    connection.text_factory = _text
    connection.execute("PRAGMA trusted_schema = OFF")
    connection.execute("PRAGMA cell_size_check = ON")


def _text(stored: bytes) -> str:
    return stored.decode("utf-8", "backslashreplace")


@contextmanager
def faults_of(location: str) -> Iterator[None]:
    """Turns sqlite3's errors into sentences."""
    try:
        yield
    except sqlite3.Error as error:
        sentence = fault(error, location)
        if sentence is None:
            raise
        raise sentence from error
    except UnicodeDecodeError as error:  # sqlite3 fails so on its own message where that repeats a name of a damaged schema
        raise damaged(location, "names in its schema are no text") from error


def file_system(path: Path, mounts: str) -> str:
    """The type of the file system that holds the path; mounts: the text of /proc/mounts."""
    found, length = "", -1
    for line in mounts.splitlines():
        _, point, kind = line.split()[:3]
        point = point.replace("\\040", " ")
        if path.is_relative_to(point) and len(point) >= length:
            found, length = kind, len(point)
    return found


def on_network(path: Path, mounts: Path = Path("/proc/mounts")) -> str | None:
    """The type of the network file system that holds the path; None where it is local, or not to be known."""
    if not mounts.exists():
        return None
    kind = file_system(path.resolve(), mounts.read_text())
    return kind if kind in _NETWORK_FILE_SYSTEMS | _NETWORK_FUSE else None
