"""How many compilers may run at once, under container limits as the kernel writes them."""

from __future__ import annotations

from pathlib import Path

import pytest

from tuner.resources import compile_workers, cpu_quota, memory_left, workers_for

GIB = 2**30


class Cgroups:
    """A made-up cgroup mount, and the file that says where in it the process is."""

    def __init__(self, folder: Path) -> None:
        self.root, self.membership = folder / "cgroup", folder / "membership"
        self.write("membership", "0::/\n", folder)

    def write(self, name: str, text: str, folder: Path | None = None) -> None:
        file = (folder or self.root) / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)

    @property
    def cpus(self) -> float | None:
        return cpu_quota(self.root, self.membership)

    @property
    def left(self) -> int | None:
        return memory_left(self.root, self.membership)

    def v2(self, folder: str, *, cpu: str = "max 100000", memory: str = "max", used: int = 0, stat: str = "") -> None:
        for name, text in (("cpu.max", cpu), ("memory.max", memory), ("memory.current", str(used)), ("memory.stat", stat)):
            self.write(f"{folder}/{name}", f"{text}\n")

    def v1(self, folder: str, *, quota: int, limit: int, used: int, stat: str = "") -> None:
        self.write(f"cpu/{folder}/cpu.cfs_quota_us", f"{quota}\n")
        self.write(f"cpu/{folder}/cpu.cfs_period_us", "100000\n")
        self.write(f"memory/{folder}/memory.limit_in_bytes", f"{limit}\n")
        self.write(f"memory/{folder}/memory.usage_in_bytes", f"{used}\n")
        self.write(f"memory/{folder}/memory.stat", stat)


@pytest.fixture
def cgroups(tmp_path: Path) -> Cgroups:
    return Cgroups(tmp_path)


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


def test_a_container_that_sees_its_own_group_as_the_root(cgroups: Cgroups) -> None:
    cgroups.v2(".", cpu="200000 100000", memory=str(4 * GIB), used=GIB)
    assert (cgroups.cpus, cgroups.left) == (2.0, 3 * GIB)


def test_a_job_in_a_slice_of_the_host_has_the_tightest_limit_above_it(cgroups: Cgroups) -> None:
    """The root has no limit files; the job's own group allows more than the slice does."""
    cgroups.write("membership", "0::/batch.slice/job-7.scope\n", cgroups.root.parent)
    cgroups.v2("batch.slice", cpu="200000 100000", memory=str(8 * GIB), used=2 * GIB)
    cgroups.v2("batch.slice/job-7.scope", cpu="800000 100000", memory=str(5 * GIB), used=GIB)
    cgroups.v2("batch.slice/another.scope", cpu="1000 100000", memory="1", used=1)
    assert (cgroups.cpus, cgroups.left) == (2.0, 4 * GIB)


def test_v1(cgroups: Cgroups) -> None:
    cgroups.write("membership", "4:memory:/job\n3:cpu,cpuacct:/job\n1:name=systemd:/\n", cgroups.root.parent)
    cgroups.v1(".", quota=-1, limit=2**63 - 4096, used=9 * GIB)
    cgroups.v1("job", quota=150000, limit=2 * GIB, used=3 * GIB)
    assert (cgroups.cpus, cgroups.left) == (1.5, 0)


def test_v1_in_a_container_that_only_knows_its_name_on_the_host(cgroups: Cgroups) -> None:
    cgroups.write("membership", "4:memory:/docker/abc\n3:cpu,cpuacct:/docker/abc\n", cgroups.root.parent)
    cgroups.v1(".", quota=300000, limit=4 * GIB, used=GIB)
    assert (cgroups.cpus, cgroups.left) == (3.0, 3 * GIB)


def test_cached_files_are_not_in_the_way(cgroups: Cgroups) -> None:
    cgroups.v2(".", memory=str(4 * GIB), used=4 * GIB, stat=f"anon {GIB}\ninactive_file {2 * GIB}\nactive_file {GIB}")
    assert cgroups.left == 2 * GIB


def test_no_limit(cgroups: Cgroups) -> None:
    assert (cgroups.cpus, cgroups.left) == (None, None)  # no such files
    cgroups.v2(".", used=GIB)
    assert (cgroups.cpus, cgroups.left) == (None, None)
    cgroups.v1(".", quota=-1, limit=2**63 - 4096, used=1)
    assert (cgroups.cpus, cgroups.left) == (None, None)


def test_a_full_container_gets_one_worker(cgroups: Cgroups) -> None:
    cgroups.v2(".", memory=str(4 * GIB), used=4 * GIB)
    assert cgroups.left == 0
    assert compile_workers(root=cgroups.root, membership=cgroups.membership) == 1


def test_a_bigger_budget_a_worker_allows_fewer(cgroups: Cgroups) -> None:
    assert compile_workers(2**60, root=cgroups.root, membership=cgroups.membership) == 1
