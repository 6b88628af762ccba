"""Which process a run belongs to, and whether that one is still there. A process is known by its number and when it started, and only
where it runs: on this machine since it was switched on, among the processes that this one sees."""

from __future__ import annotations

import os
import platform
from datetime import datetime
from functools import cache
from pathlib import Path

import psutil

from db.records import RunInfo

CLOCK_STEP_SECONDS = 5.0  # by which the clock may be set meanwhile, and start times with it
_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
_NAMESPACE = Path("/proc/self/ns/pid")


@cache
def this_host() -> str:
    """Host name, boot, and the namespace in which process numbers count: `node1/6a1c.../pid:[4026531836]`. Two containers on one machine
    do not see each other's processes."""
    try:
        boot, namespace = _BOOT_ID.read_text().strip(), os.readlink(_NAMESPACE)
    except OSError:  # not Linux
        boot, namespace = f"{psutil.boot_time():.0f}", ""
    return f"{platform.node()}/{boot}/{namespace}"


def process_started(pid: int) -> float:
    return psutil.Process(pid).create_time()


def is_alive(pid: int, started: float) -> bool:
    """Whether the process that had this number and began then, in seconds since 1970, is still at work."""
    try:
        process = psutil.Process(pid)
        return process.status() != psutil.STATUS_ZOMBIE and abs(process.create_time() - started) <= CLOCK_STEP_SECONDS
    except psutil.AccessDenied:
        return True
    except psutil.NoSuchProcess:
        return _is_hidden(pid)


def _is_hidden(pid: int) -> bool:
    """Whether there is such a process all the same: /proc can be mounted so that it shows each user nobody else's."""
    try:
        os.kill(pid, 0)
    except PermissionError:
        return True
    except OSError:
        return False
    return False  # one of our own would be shown: it has just ended


def is_gone(run: RunInfo, *, only_here: bool) -> bool:
    """Whether the process of a run that is said to be running has ended. only_here: nobody but this machine writes to the database, so that
    what ran before it was switched on has ended. Of processes that cannot be seen from here it is not known, and then they are not gone."""
    if run.host is None or run.pid is None or run.process_started is None:
        return only_here and run.started < datetime.fromtimestamp(psutil.boot_time(), tz=run.started.tzinfo)
    if run.host == this_host():
        return not is_alive(run.pid, run.process_started)
    return only_here and _boot(run.host) != _boot(this_host())


def _boot(host: str) -> str:
    return "/".join(host.split("/")[1:2])
