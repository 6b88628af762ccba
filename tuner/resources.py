"""How many compilers may run at once: as many as the CPUs and the memory that this process may use allow, container limits included."""

from __future__ import annotations

import math
import os
from pathlib import Path

import psutil

WORKER_BYTES = 700 * 2**20  # a compiler at its peak, with what it shares with its parent
CGROUP_ROOT = Path("/sys/fs/cgroup")
UNLIMITED = 2**60  # cgroup v1 writes "no limit" as a huge number


def compile_workers(root: Path = CGROUP_ROOT) -> int:
    return workers_for(
        cpus=len(os.sched_getaffinity(0)),
        quota_cpus=cpu_quota(root),
        free_bytes=min(psutil.virtual_memory().available, memory_left(root) or UNLIMITED),
    )


def workers_for(*, cpus: int, quota_cpus: float | None, free_bytes: int, worker_bytes: int = WORKER_BYTES) -> int:
    """The least of what CPUs, quota and memory allow, and at least one. A quota of half a CPU still counts as one."""
    by_quota = cpus if quota_cpus is None else math.ceil(quota_cpus)
    return max(min(cpus, by_quota, free_bytes // worker_bytes), 1)


def cpu_quota(root: Path) -> float | None:
    """CPUs that the cgroup may use, v2 or v1; None without a limit."""
    quota, period = _words(root / "cpu.max", 2) or (_word(root / "cpu/cpu.cfs_quota_us"), _word(root / "cpu/cpu.cfs_period_us"))
    if quota is None or period is None or not quota.isdigit() or int(period) == 0:
        return None  # "max", -1, or no such file
    return int(quota) / int(period)


def memory_left(root: Path) -> int | None:
    """Bytes that the cgroup may still take, v2 or v1; None without a limit."""
    limit = _word(root / "memory.max") or _word(root / "memory/memory.limit_in_bytes")
    used = _word(root / "memory.current") or _word(root / "memory/memory.usage_in_bytes")
    if limit is None or used is None or not limit.isdigit() or int(limit) >= UNLIMITED:
        return None
    return max(int(limit) - int(used), 0)


def _word(path: Path) -> str | None:
    try:
        return path.read_text(encoding="ascii").strip() or None
    except OSError:
        return None


def _words(path: Path, count: int) -> tuple[str, ...] | None:
    text = _word(path)
    words = tuple(text.split()) if text else ()
    return words if len(words) == count else None
