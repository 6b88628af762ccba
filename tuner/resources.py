"""How many compilers may run at once: as many as the CPUs and the memory that this process may use allow, container limits included."""

from __future__ import annotations

import math
import os
from collections.abc import Iterator
from pathlib import Path

import psutil

WORKER_BYTES = 700 * 2**20  # a compiler at its peak, with what it shares with its parent
CGROUP_ROOT = Path("/sys/fs/cgroup")
MEMBERSHIP = Path("/proc/self/cgroup")
UNLIMITED = 2**60  # cgroup v1 writes "no limit" as a huge number


def compile_workers(worker_bytes: int = WORKER_BYTES, *, root: Path = CGROUP_ROOT, membership: Path = MEMBERSHIP) -> int:
    """root, membership: where cgroups are mounted, and the file that says which ones this process is in."""
    left = memory_left(root, membership)
    available = psutil.virtual_memory().available
    return workers_for(
        cpus=len(os.sched_getaffinity(0)),
        quota_cpus=cpu_quota(root, membership),
        free_bytes=available if left is None else min(available, left),
        worker_bytes=worker_bytes,
    )


def workers_for(*, cpus: int, quota_cpus: float | None, free_bytes: int, worker_bytes: int = WORKER_BYTES) -> int:
    """The least of what CPUs, quota and memory allow, and at least one. A quota of half a CPU still counts as one."""
    by_quota = cpus if quota_cpus is None else math.ceil(quota_cpus)
    return max(min(cpus, by_quota, free_bytes // worker_bytes), 1)


def cpu_quota(root: Path, membership: Path) -> float | None:
    """CPUs that the tightest of this process's cgroups may use, v2 or v1; None without a limit."""
    found = [_words(folder / "cpu.max") for folder in _folders(root, membership, "")]
    found += [_words(f / "cpu.cfs_quota_us") + _words(f / "cpu.cfs_period_us") for f in _folders(root, membership, "cpu")]
    quotas = [int(words[0]) / int(words[1]) for words in found if len(words) == 2 and words[0].isdigit()]  # not "max", not -1
    return min(quotas, default=None)


def memory_left(root: Path, membership: Path) -> int | None:
    """Bytes that the tightest of this process's cgroups may still take, v2 or v1; None without a limit."""
    left = [_left(folder, "memory.max", "memory.current", "inactive_file") for folder in _folders(root, membership, "")]
    left += [
        _left(folder, "memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")
        for folder in _folders(root, membership, "memory")
    ]
    return min((amount for amount in left if amount is not None), default=None)


def _left(folder: Path, limit_file: str, used_file: str, cache_line: str) -> int | None:
    """Cached files that nobody has read for a while count as used but are given up before anything is killed."""
    limit, used = _words(folder / limit_file), _words(folder / used_file)
    if not limit or not used or not limit[0].isdigit() or int(limit[0]) >= UNLIMITED:
        return None
    stat = _words(folder / "memory.stat")
    cached = next((int(value) for name, value in zip(stat[::2], stat[1::2], strict=False) if name == cache_line), 0)
    return max(int(limit[0]) - int(used[0]) + cached, 0)


def _folders(root: Path, membership: Path, controller: str) -> Iterator[Path]:
    """The cgroup that this process is in and every one above it, each of which limits it. The controller "" is v2, which has them all.

    A container often sees its own group as the root, though membership names it as the host does: what does not exist limits nothing.
    """
    mount = root / controller
    yield mount
    for line in _lines(membership):
        _, controllers, path = (*line.split(":", 2), "", "")[:3]
        if controller in controllers.split(","):
            folder = mount
            for part in Path(path.lstrip("/")).parts:
                folder /= part
                yield folder


def _lines(path: Path) -> list[str]:
    try:
        return path.read_text(encoding="utf-8").splitlines()
    except OSError:
        return []


def _words(path: Path) -> list[str]:
    return " ".join(_lines(path)).split()
