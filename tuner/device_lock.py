"""One tuner at a time on a GPU: a file that whoever measures holds locked, in one place for all users of the machine.

The folder is shared by all, so what lies there under our name may be anyone's: it is opened without following links, and anything but a
regular file is refused.
"""

from __future__ import annotations

import errno
import fcntl
import os
import stat
from collections.abc import Callable, Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

from search_spaces.errors import MachineFault, UserError

PLACES: Sequence[Path] = (Path("/run/lock"), Path("/tmp"))  # TMPDIR is a user's own, and would part those who must meet
MODE = 0o666  # others open it too, whatever the umask of whoever came first
FLAGS = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC  # to read is enough to lock
KINDS = {
    stat.S_IFIFO: "a FIFO",
    stat.S_IFDIR: "a directory",
    stat.S_IFSOCK: "a socket",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
    stat.S_IFLNK: "a symbolic link",
}


class DeviceLock:
    """Held from its making until it is closed; freed by the system whatever becomes of the holder.

    `wait` is told where another tuner is measuring; waiting can be interrupted. Raises UserError where the file is not one to lock.
    """

    def __init__(self, device: str, wait: Callable[[str], None]) -> None:
        self.path = lock_path(device)
        self._handle = _open(self.path)
        try:
            self._take(wait)
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    def _take(self, wait: Callable[[str], None]) -> None:
        said = False
        while True:
            try:
                fcntl.flock(self._handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                if not said:
                    wait("another tuner measures on this GPU; waiting for it")
                    said = True
                fcntl.flock(self._handle, fcntl.LOCK_EX)  # a signal's handler can raise out of this
            if _is_at(self._handle, self.path):
                return
            os.close(self._handle)  # it was removed meanwhile: others meet at the new one
            self._handle = -1
            self._handle = _open(self.path)

    def close(self) -> None:
        if self._handle >= 0:
            os.close(self._handle)
            self._handle = -1


def lock_path(device: str) -> Path:
    """Where all users of the machine meet for this device."""
    name = "".join(character if character.isascii() and character.isalnum() else "-" for character in device)
    place = next((place for place in PLACES[:-1] if _is_for_all(place)), PLACES[-1])
    return place / f"tuner-gpu-{name}.lock"


def _is_for_all(place: Path) -> bool:
    """A folder in which anybody may make files and nobody can remove those of others."""
    try:
        mode, system = place.stat().st_mode, os.statvfs(place)
    except OSError:
        return False
    return stat.S_ISDIR(mode) and mode & 0o1777 == 0o1777 and not system.f_flag & os.ST_RDONLY


def _is_at(handle: int, path: Path) -> bool:
    try:
        there = os.stat(path, follow_symlinks=False)
    except FileNotFoundError:
        return False
    return os.path.samestat(os.fstat(handle), there)


def _open(path: Path) -> int:
    """The handle of the file. It is made only where nothing is, not even a link; and the kernel refuses O_CREAT on other users' files."""
    for _ in range(8):  # it can come and go between the two
        try:
            return _regular(os.open(path, FLAGS), path)
        except FileNotFoundError:
            pass
        except OSError as error:
            raise _refusal(path, error) from None
        try:
            handle = os.open(path, FLAGS | os.O_CREAT | os.O_EXCL, MODE)
        except FileExistsError:
            continue
        except OSError as error:
            raise _refusal(path, error) from None
        os.fchmod(handle, MODE)
        return handle
    raise MachineFault(f"the GPU's lock {path} comes and goes; see what removes it")


def _regular(handle: int, path: Path) -> int:
    found = os.fstat(handle)
    if not stat.S_ISREG(found.st_mode):
        os.close(handle)
        raise UserError(_not_a_file(path, found.st_mode))
    if found.st_uid == os.geteuid() and found.st_mode & 0o777 != MODE and found.st_nlink == 1 and found.st_size == 0:
        os.fchmod(handle, MODE)  # one of ours, made under a umask that keeps others out
    return handle


def _refusal(path: Path, error: OSError) -> UserError | MachineFault:
    try:
        found = os.stat(path, follow_symlinks=False)
    except OSError:
        found = None
    if found is not None and not stat.S_ISREG(found.st_mode):
        return UserError(_not_a_file(path, found.st_mode))
    if found is not None and error.errno in (errno.EACCES, errno.EPERM):
        whose = f"of user {found.st_uid}, mode {stat.S_IMODE(found.st_mode):04o}"
        return UserError(f"the GPU's lock {path} may not be opened ({whose}): have it removed, or `chmod 666` by its owner")
    return MachineFault(f"the GPU's lock {path} cannot be opened: {error.strerror}; without it two tuners could measure at once")


def _not_a_file(path: Path, mode: int) -> str:
    return f"the GPU's lock {path} is {KINDS.get(stat.S_IFMT(mode), 'no regular file')}, and has to be a regular file: have it removed"
