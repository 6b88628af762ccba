"""Where the database is, and what may be wrong with it: each fault as one sentence that names the file, which is left as it was."""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from pathlib import Path

from search_spaces.errors import UserError
from search_spaces.user_folder import user_folder

SCHEMA_VERSION = "0003"
VERSION_TABLE = "tuner_schema"
BUSY_TIMEOUT_SECONDS = 60.0
OTHER_FILE = "name another file with --db or TUNER_DB"
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
    elif chosen.startswith("sqlite") and "://" in chosen:
        raise UserError(f"{chosen!r} names no file; give its path, or sqlite:///PATH")
    elif "://" in chosen:
        return chosen
    return Path(chosen).expanduser().absolute()


def check_file(path: Path) -> bool:
    """Whether there is a database to read: False for no file and for an empty one. Refuses what SQLite did not write."""
    if path.is_dir():
        raise UserError(f"{path} is a folder; name a file in it, such as {path / 'tuner.db'}")
    try:
        with path.open("rb") as file:
            head = file.read(len(_MAGIC))
    except FileNotFoundError:
        return False
    except OSError as error:
        raise UserError(f"{path} cannot be opened ({error.strerror}); {OTHER_FILE}") from None
    if head and head != _MAGIC:
        raise UserError(f"{path} is not a database: it begins with {head!r}, SQLite's files with {_MAGIC!r}; {OTHER_FILE}")
    return bool(head)


def prepare_folder(path: Path) -> None:
    """Make the folder of a database to be written, and refuse one that cannot be written."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(f"the folder of {path} cannot be made ({error.strerror}); {OTHER_FILE}") from None
    for part in (path.parent, path):
        if part.exists() and not os.access(part, os.W_OK):
            raise UserError(f"{path} cannot be written: {part} is read-only; make it writable, or {OTHER_FILE}")


def check_version(location: str, tables: Collection[str], version: str | None, *, older: bool = False) -> str:
    """The schema's version. Refuses what another application or a newer tuner wrote, and an older one unless `older` is welcome."""
    if version is None or not version.isdigit():
        raise UserError(f"{location} is another application's database (it has table {min(tables)!r} and no tuner's schema); {OTHER_FILE}")
    if int(version) > int(SCHEMA_VERSION):
        raise UserError(f"{location} was written by a newer tuner (schema {version}, this one knows {SCHEMA_VERSION}): upgrade the tool")
    if int(version) < int(SCHEMA_VERSION) and not older:
        raise UserError(
            f"{location} was written by an older tuner (schema {version}, this one has {SCHEMA_VERSION}): run `tuner db upgrade`"
        )
    return version


def no_database(location: str) -> UserError:
    return UserError(f"there is no database at {location} yet: run `tuner search`, or {OTHER_FILE}")


def damaged(location: str, what: str) -> UserError:
    return UserError(f"{location} is damaged ({what}); it was left as it is: put a copy in its place, or {OTHER_FILE}")


def fault(error: sqlite3.Error, location: str) -> UserError | None:
    """The sentence for what a person can mend; None for a mistake in the program."""
    if str(error).startswith("Could not decode to UTF-8"):
        return damaged(location, "it holds text that is none")
    code = (getattr(error, "sqlite_errorcode", None) or 0) & 0xFF
    match code:
        case sqlite3.SQLITE_CORRUPT | sqlite3.SQLITE_NOTADB:
            return damaged(location, str(error))
        case sqlite3.SQLITE_FULL:
            return UserError(f"{location} cannot grow: the disk is full; free some space and run the same command again")
        case sqlite3.SQLITE_BUSY | sqlite3.SQLITE_LOCKED:
            return UserError(f"{location} is locked by another process, for {BUSY_TIMEOUT_SECONDS:g} s now; end that one, or {OTHER_FILE}")
        case sqlite3.SQLITE_READONLY | sqlite3.SQLITE_PERM:
            return UserError(f"{location} cannot be written: the file or its folder is read-only; make it writable, or {OTHER_FILE}")
        case sqlite3.SQLITE_CANTOPEN | sqlite3.SQLITE_IOERR:
            return UserError(f"{location} cannot be used ({error}); look after the disk, or {OTHER_FILE}")
    return None


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
