"""How does a text get to where a person wants it? The one writer of result files: all of the text, or what was there before.

What it will not write over: a database, a file that the text was made from, a file that is read-only, a folder, a disk.
"""

from __future__ import annotations

import errno
import os
import re
import secrets
import stat
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from search_spaces.errors import UserError
from search_spaces.plain_text import visible

SQLITE_MAGIC = b"SQLite format 3\0"
SQLITE_COMPANIONS = ("-wal", "-shm", "-journal")  # what SQLite keeps beside a database; without them the last results are gone
SHOWN_PATH = 300  # characters of a path that a sentence repeats
MOST_LINKS = 40  # symbolic links that Linux follows, too
_CANNOT_BE_REPLACED = (errno.EACCES, errno.EPERM, errno.EBUSY, errno.EROFS)  # its folder takes no new file, or it is a mount of its own


def write_file(path: Path, text: str, *, made_from: Sequence[str | Path | None] = ()) -> None:
    """All of the text or, whatever happens meanwhile, what was there before. A file that was there keeps its permissions and its owner, and
    stays where a symbolic link says that it is. Devices, pipes and FIFOs are written through.

    made_from: files that the text was made from. Raises UserError, in which case a file that was there is as before.
    """
    with _sentences(path):
        _write(path, text.encode("utf-8", "backslashreplace"), made_from)


def check_target(path: Path, *, made_from: Sequence[str | Path | None] = ()) -> None:
    """Refuse now what `write_file` would refuse after hours of work, for what is there. Raises UserError; changes nothing."""
    with _sentences(path):
        if _own_descriptor(path) is None:
            _look(path, made_from)


@contextmanager
def _sentences(path: Path) -> Iterator[None]:
    try:
        yield
    except (OSError, ValueError) as error:  # ValueError: a path with a NUL
        reason = error.strerror if isinstance(error, OSError) else str(error)
        end = "make its folder first" if isinstance(error, FileNotFoundError) else "what was there is as before"
        raise _refusal(path, f"{reason or error}; {end}") from None


def _refusal(path: Path, why: str) -> UserError:
    return UserError(f"cannot write {_named(path)}: {why}")


def _named(path: Path) -> str:
    name = visible(str(path)).replace("\n", "\\n")
    return name if len(name) <= SHOWN_PATH else f"{name[:SHOWN_PATH]}... ({len(name)} characters)"


def _write(path: Path, content: bytes, made_from: Sequence[str | Path | None]) -> None:
    descriptor = _own_descriptor(path)
    if descriptor is not None:
        _write_through(path, lambda: os.dup(descriptor), content)
        return
    found = _look(path, made_from)
    if found is None:
        _replace(_target(path), content, None)
    elif stat.S_ISREG(found.st_mode):
        _put_in_place(_target(path), content, found)
    else:
        _write_through(path, lambda: _open_stream(path), content)


def _look(path: Path, made_from: Sequence[str | Path | None]) -> os.stat_result | None:
    """What is there, None for nothing yet. Refuses what is not to be written over."""
    try:
        found = os.stat(path)
    except FileNotFoundError:
        _check_companion(path, _target(path))
        return None
    if stat.S_ISREG(found.st_mode):
        _check_regular(path, _target(path), found, made_from)
    elif stat.S_ISDIR(found.st_mode):
        raise _refusal(path, f"it is a folder; name a file in it, such as {_named(path / 'out')}")
    elif stat.S_ISBLK(found.st_mode):
        raise _refusal(path, "it is a disk; name a file")
    return found


def _links(path: Path) -> Iterator[Path]:
    """The path, and then what each symbolic link on the way says, up to what is no link."""
    for _ in range(MOST_LINKS):
        yield path
        if not path.is_symlink():
            return
        path = path.parent / os.readlink(path)
    raise OSError(errno.ELOOP, os.strerror(errno.ELOOP))


def _own_descriptor(path: Path) -> int | None:
    """The descriptor of this process that a name such as /dev/stdout stands for. Opened anew, a file there would lose what it holds."""
    own = re.compile(rf"/proc/{os.getpid()}(/task/[0-9]+)?/fd/([0-9]{{1,9}})")
    for step in _links(path):
        if match := own.fullmatch(os.path.join(os.path.realpath(step.parent), step.name)):
            return int(match[2])
    return None


def _target(path: Path) -> Path:
    """The file, or the place for one, at the end of the symbolic links. The system has followed them before, and would have refused those
    that it does not trust."""
    *_, last = _links(path)
    return last


def _check_regular(path: Path, target: Path, found: os.stat_result, made_from: Sequence[str | Path | None]) -> None:
    if not found.st_mode & (stat.S_IWUSR | stat.S_IWGRP | stat.S_IWOTH) or not os.access(path, os.W_OK):
        raise _refusal(path, f"it is read-only (mode {stat.S_IMODE(found.st_mode):04o}); make it writable, or name another file")
    if _is_database(target):
        raise _refusal(path, "it is an SQLite database, which would be lost; name another file")
    _check_companion(path, target)
    for source in made_from:
        with suppress(OSError, ValueError):
            if source is not None and os.path.samestat(os.stat(source), found):
                raise _refusal(path, "this is made from it; name another file")


def _check_companion(path: Path, target: Path) -> None:
    for ending in SQLITE_COMPANIONS:
        database = Path(str(target).removesuffix(ending))
        if database != target and _is_database(database):
            raise _refusal(path, f"it belongs to the SQLite database {_named(database)}; name another file")


def _is_database(file: Path) -> bool:
    try:
        descriptor = os.open(file, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        try:
            return os.read(descriptor, len(SQLITE_MAGIC)) == SQLITE_MAGIC
        finally:
            os.close(descriptor)
    except OSError:  # there is none, or this user may not read it, and then has no database in it
        return False


def _put_in_place(target: Path, content: bytes, before: os.stat_result) -> None:
    """By a new file beside it that takes its name in one step; where that would change what the old one is, over the old one's bytes."""
    if before.st_nlink > 1 or not _owner_can_be_kept(before):
        _write_over(target, content)
        return
    try:
        _replace(target, content, before)
    except OSError as error:
        if error.errno not in _CANNOT_BE_REPLACED:
            raise
        _write_over(target, content)


def _owner_can_be_kept(before: os.stat_result) -> bool:
    user = os.geteuid()
    return user == 0 or (before.st_uid == user and before.st_gid in {os.getegid(), *os.getgroups()})


def _replace(target: Path, content: bytes, before: os.stat_result | None) -> None:
    # a name of its own, since the target's may be as long as names can be
    temporary = target.with_name(f".tuner-{os.getpid()}-{secrets.token_hex(4)}.tmp")
    try:
        with _opened(temporary, os.O_CREAT | os.O_EXCL, 0o600 if before else 0o666) as file:
            _write_all(file, content)
            if before is not None:
                made = os.fstat(file)
                if (made.st_uid, made.st_gid) != (before.st_uid, before.st_gid):
                    os.fchown(file, before.st_uid, before.st_gid)
                os.fchmod(file, stat.S_IMODE(before.st_mode))
            os.fsync(file)
        os.replace(temporary, target)
    finally:
        with suppress(OSError):  # after `replace` it is gone, and what went wrong before that is said already
            temporary.unlink()


def _write_over(target: Path, content: bytes) -> None:
    """Another name of the file, its owner, or its mount stays. Its room is taken before a byte of it changes."""
    with _opened(target, 0, 0) as file:
        length = os.fstat(file).st_size
        try:
            if len(content) > length:
                os.posix_fallocate(file, 0, len(content))
        except OSError:
            os.ftruncate(file, length)
            raise
        _write_all(file, content)
        os.ftruncate(file, len(content))
        os.fsync(file)


def _open_stream(path: Path) -> int:
    """A device, a FIFO ... open, without waiting for a reader of a FIFO that may never come."""
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
    except OSError as error:
        if error.errno != errno.ENXIO:
            raise
        raise _refusal(path, "nothing reads from it; start what reads it first, or name a file") from None
    os.set_blocking(descriptor, True)
    return descriptor


def _write_through(path: Path, opened: Callable[[], int], content: bytes) -> None:
    """There is no taking back what a device or a pipe was given."""
    try:
        descriptor = opened()
        try:
            _write_all(descriptor, content)
        finally:
            os.close(descriptor)
    except OSError as error:
        raise _refusal(path, error.strerror or str(error)) from None


@contextmanager
def _opened(path: Path, flags: int, mode: int) -> Iterator[int]:
    descriptor = os.open(path, os.O_WRONLY | os.O_CLOEXEC | os.O_NOFOLLOW | flags, mode)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def _write_all(descriptor: int, content: bytes) -> None:
    left = memoryview(content)
    while left:
        left = left[os.write(descriptor, left) :]
