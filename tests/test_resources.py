"""How many compilers may run at once, under container limits as the kernel writes them."""

from __future__ import annotations

from pathlib import Path

import pytest

from tuner.resources import cpu_quota, memory_left, workers_for

GIB = 2**30


@pytest.mark.parametrize(
    ("cpus", "quota", "free", "workers"),
    [
        (192, 2.0, 4 * GIB, 2),  # a big host, a container of 2 CPUs
        (16, None, 128 * GIB, 16),
        (16, None, 4 * GIB, 5),
        (64, 0.5, 128 * GIB, 1),
        (8, None, 100 * 2**20, 1),  # less than one needs: still one
        (4, 2.5, 64 * GIB, 3),
    ],
)
def test_the_least_of_cpus_quota_and_memory(cpus: int, quota: float | None, free: int, workers: int) -> None:
    assert workers_for(cpus=cpus, quota_cpus=quota, free_bytes=free) == workers


def test_cgroup_v2(tmp_path: Path) -> None:
    (tmp_path / "cpu.max").write_text("200000 100000\n")
    (tmp_path / "memory.max").write_text(f"{4 * GIB}\n")
    (tmp_path / "memory.current").write_text(f"{GIB}\n")
    assert cpu_quota(tmp_path) == 2.0
    assert memory_left(tmp_path) == 3 * GIB


def test_cgroup_v1(tmp_path: Path) -> None:
    for name in ("cpu", "memory"):
        (tmp_path / name).mkdir()
    (tmp_path / "cpu/cpu.cfs_quota_us").write_text("150000")
    (tmp_path / "cpu/cpu.cfs_period_us").write_text("100000")
    (tmp_path / "memory/memory.limit_in_bytes").write_text(str(2 * GIB))
    (tmp_path / "memory/memory.usage_in_bytes").write_text(str(3 * GIB))
    assert cpu_quota(tmp_path) == 1.5
    assert memory_left(tmp_path) == 0


@pytest.mark.parametrize(("cpu", "memory"), [("max 100000", "max"), (None, None)])
def test_no_limit(tmp_path: Path, cpu: str | None, memory: str | None) -> None:
    if cpu is not None and memory is not None:
        (tmp_path / "cpu.max").write_text(cpu)
        (tmp_path / "memory.max").write_text(memory)
        (tmp_path / "memory.current").write_text("1")
    assert cpu_quota(tmp_path) is None
    assert memory_left(tmp_path) is None


def test_v1_without_a_limit(tmp_path: Path) -> None:
    for name in ("cpu", "memory"):
        (tmp_path / name).mkdir()
    (tmp_path / "cpu/cpu.cfs_quota_us").write_text("-1")
    (tmp_path / "cpu/cpu.cfs_period_us").write_text("100000")
    (tmp_path / "memory/memory.limit_in_bytes").write_text(str(2**63 - 4096))
    (tmp_path / "memory/memory.usage_in_bytes").write_text("1")
    assert cpu_quota(tmp_path) is None
    assert memory_left(tmp_path) is None
