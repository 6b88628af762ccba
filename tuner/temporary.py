"""The one folder that a tuner keeps its temporary files in, those of its children too; and what is left of tuners that were killed.

Its name says whose it is: process, start of that process, and host. Its owner holds a lock in it for as long as it lives. So the next tuner
can tell what nobody needs any more: the owner is gone and the lock is free. A folder of another host, of another user, or of a container
that has its own process numbers is left alone.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import re
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from search_spaces.errors import MachineFault

NAME = re.compile(r"tuner-(\d+)-(\d+)-([0-9a-f]{8})-")  # process, its start in clock ticks since boot, host
LOCK = "owner"
REMOVALS = 3  # what a dying compiler still writes can get in the way of one


@contextmanager
def temporary_folder() -> Iterator[Path]:
    """A folder until the end of the block. First removes what dead tuners left. Raises MachineFault where there can be none."""
    try:
        base = Path(tempfile.gettempdir())
        remove_abandoned(base)
        folder = Path(tempfile.mkdtemp(prefix=f"tuner-{os.getpid()}-{process_start(os.getpid())}-{_host()}-", dir=base))
    except OSError as error:
        raise MachineFault(f"no folder for temporary files can be made: {error.strerror or error}; set TMPDIR to one that can") from None
    try:
        with (folder / LOCK).open("x") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield folder
    finally:
        _remove(folder)


def remove_abandoned(base: Path) -> None:
    """Remove the folders of tuners that are gone: of this user, on this host."""
    with os.scandir(base) as entries:
        found = [entry for entry in entries if (name := NAME.match(entry.name)) and name[3] == _host() and _is_ours(entry)]
    for entry in found:
        if _is_abandoned(Path(entry.path)):
            _remove(Path(entry.path))


def _is_ours(entry: os.DirEntry[str]) -> bool:
    """A real folder of this user: what a link points to is never touched."""
    try:
        return entry.is_dir(follow_symlinks=False) and entry.stat(follow_symlinks=False).st_uid == os.geteuid()
    except OSError:  # another start was faster
        return False


def _is_abandoned(folder: Path) -> bool:
    name = NAME.match(folder.name)
    assert name is not None
    if process_start(int(name[1])) == int(name[2]):
        return False
    try:
        handle = os.open(folder / LOCK, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except FileNotFoundError:
        return True  # it died before it made one
    except OSError:
        return False
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:  # held, by an owner whose number means nothing here
        return False
    finally:
        os.close(handle)
    return True


def process_start(pid: int) -> int:
    """When a process was started, in clock ticks since boot: with its number this names it for good. 0 where there is none."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return 0
    state, *fields = stat.rpartition(")")[2].split()
    return 0 if state in "ZX" else int(fields[18])


def _host() -> str:
    return hashlib.sha256(os.uname().nodename.encode()).hexdigest()[:8]


def _remove(folder: Path) -> None:
    for _ in range(REMOVALS):
        shutil.rmtree(folder, ignore_errors=True)
        if not folder.exists():
            return
