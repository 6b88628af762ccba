"""The measuring process on a real GPU: right kernels are timed, and each kind of wrong one costs itself alone."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
from faulty_kernels import GOOD, GUARD, HALF, HANG, ILLEGAL, LATE, NOTHING, THIRD, TRAP

from search_spaces.errors import MachineFault
from search_spaces.gpu_files import match_device
from search_spaces.hardware import Hardware
from search_spaces.problem import Problem
from search_spaces.schedule import Schedule, parse_schedule
from search_spaces.space import load_space
from tuner.environment import device_present
from tuner.measuring import MeasureSettings, MeasuringProcess
from tuner.ranking import rank

pytestmark = pytest.mark.gpu
TESTS = Path(__file__).parent


@pytest.fixture(scope="module")
def hardware() -> Hardware:
    device = device_present()
    assert device is not None
    found = match_device(device.name, sms=device.sms, memory_bytes=device.memory_bytes, compute_capability=device.compute_capability)
    assert found is not None
    return found


def stubbed(kind: int) -> Schedule:
    return Schedule(family="pointer", cta_m=64, cta_n=64, cta_k=32, warps=4, stages=2, group_m=kind)


@pytest.fixture
def faulty(hardware: Hardware, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[MeasuringProcess]:
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(TESTS.parent), str(TESTS), os.environ.get("PYTHONPATH", "")]))
    command = (sys.executable, "-m", "tuner.measure_start", "--calls", "faulty_kernels:calls")
    settings = MeasureSettings(command=command, candidate_seconds=15.0)
    with MeasuringProcess(Problem(m=512, n=512, k=512), hardware, settings, cache_dir=tmp_path) as process:
        yield process


def test_faulty_kernels_cost_themselves(faulty: MeasuringProcess) -> None:
    kinds = [GOOD, GOOD, ILLEGAL, GOOD, TRAP, GOOD, NOTHING, HALF, GUARD, HANG, GOOD]
    found = [faulty.measure(stubbed(kind), None) for kind in kinds]
    wanted = ["ok", "ok", "faulted", "ok", "faulted", "ok", "wrong_answer", "wrong_answer", "wrong_answer", "timeout", "ok"]
    assert [m.status for m in found] == wanted, [m.message for m in found]
    assert "C holds NaN" in found[6].message
    assert "C holds NaN" in found[7].message
    assert found[8].message == "1 elements outside C were overwritten"
    good = [m.median_us for m in found if m.median_us is not None]
    assert max(good) < 2 * min(good)  # no crash leaves its mark on the others' times


def test_killed_in_the_middle(faulty: MeasuringProcess) -> None:
    assert faulty.measure(stubbed(GOOD), None).status == "ok"
    assert faulty.pid is not None
    os.kill(faulty.pid, signal.SIGKILL)
    assert faulty.measure(stubbed(GOOD), None).status == "ok"


def test_right_on_the_first_answer_and_wrong_on_the_third(faulty: MeasuringProcess) -> None:
    found = faulty.measure(stubbed(THIRD), None)
    assert found.status == "wrong_answer"
    assert "launch 3, after 2 right ones" in found.message
    assert faulty.measure(stubbed(GOOD), None).status == "ok"


def test_right_when_measured_and_wrong_in_the_finals(faulty: MeasuringProcess) -> None:
    assert faulty.measure(stubbed(LATE), None).status == "ok"
    samples = faulty.finals([stubbed(GOOD), stubbed(LATE)], 0.5)
    assert samples.wrong[0] == ""
    assert samples.wrong[1].startswith("launches back to back gave a wrong answer, one alone did not: ")


@pytest.mark.parametrize("extent", [256, 64, 16])
def test_small_products_are_cold_as_the_record_says(extent: int, hardware: Hardware, tmp_path: Path) -> None:
    with MeasuringProcess(Problem(m=extent, n=extent, k=extent), hardware, MeasureSettings(), cache_dir=tmp_path) as process:
        found = process.measure(parse_schedule("pointer 16x16x16 w1 s2"), None)
    assert found.status == "ok", found.message
    assert found.operand_sets is not None
    assert found.operand_sets > 400
    assert found.operands_over_l2 is not None
    assert found.operands_over_l2 >= 3
    flushed = ", L2 flushed before each replay" if extent < 256 else ""
    assert found.operands == f"normal, seeds 0 1 2{flushed}"


def test_an_outer_product_in_fp16_is_right(hardware: Hardware, tmp_path: Path) -> None:
    """Some of its elements are subnormal."""
    with MeasuringProcess(Problem(m=64, n=64, k=1, dtype="fp16"), hardware, MeasureSettings(), cache_dir=tmp_path) as process:
        found = process.measure(parse_schedule("pointer 32x32x16 w4 s2"), None)
    assert found.status == "ok", found.message


def test_what_its_family_does_not_support_is_not_launched(hardware: Hardware, tmp_path: Path) -> None:
    schedule = Schedule(family="pointer", cta_m=64, cta_n=64, cta_k=32, warps=4, stages=2, split_k=2, swap_ab=1)
    with MeasuringProcess(Problem(m=512, n=512, k=512), hardware, MeasureSettings(), cache_dir=tmp_path) as process:
        found = process.measure(schedule, None)
    assert found.status == "refused"
    assert "swap_ab with split_k needs fused_reduction" in found.message


LARGE = Problem(m=40960, n=128256, k=512)


@pytest.fixture
def leave(tmp_path: Path) -> Iterator[Callable[[int], None]]:
    """Takes the device's memory but for so many bytes."""
    taken: list[torch.Tensor] = []

    def take(free: int) -> None:
        there, _ = torch.cuda.mem_get_info()
        if there < free:
            pytest.skip(f"{there} bytes are free, the test is about {free}")
        taken.append(torch.empty(there - free, dtype=torch.uint8, device="cuda"))

    yield take
    taken.clear()
    torch.cuda.empty_cache()


def test_a_large_product_is_measured_in_what_it_needs_and_little_more(
    leave: Callable[[int], None], hardware: Hardware, tmp_path: Path
) -> None:
    """10.5 GB of operands in 13 GB, of which the process's context takes a part."""
    leave(13 * 10**9)
    with MeasuringProcess(LARGE, hardware, MeasureSettings(), cache_dir=tmp_path) as process:
        found = process.measure(parse_schedule("tma 128x256x64 w8 s3 g8"), None)
    assert found.status == "ok", found.message


def test_one_that_cannot_fit_is_refused_in_gibibytes_before_anything_is_launched(
    leave: Callable[[int], None], hardware: Hardware, tmp_path: Path
) -> None:
    leave(6 * 10**9)
    process = MeasuringProcess(LARGE, hardware, MeasureSettings(), cache_dir=tmp_path)
    with process, pytest.raises(MachineFault, match=r"needs 10\.2 GiB of device memory, [1-5]\.\d GiB are free"):
        process.measure(parse_schedule("tma 128x256x64 w8 s3 g8"), None)


PROBLEMS = [
    Problem(m=512, n=512, k=512),
    Problem(m=100, n=300, k=1000, layout="nn", dtype="fp16"),
    Problem(m=256, n=256, k=256, layout="tn"),
    Problem(m=128, n=264, k=512, layout="tt", out_dtype="fp32"),
    Problem(m=17, n=999, k=1001),
    Problem(m=64, n=470, k=512, ldc=512),
    Problem(m=64, n=64, k=64, lda=65, layout="nn"),
    Problem(m=256, n=256, k=256, alignment_bytes=2),
    Problem(m=1, n=4096, k=4096),
]


@pytest.mark.parametrize("problem", PROBLEMS, ids=lambda p: f"{p.shape}-{p.dtype}-{p.layout}-{p.lda}-{p.ldc}-{p.alignment_bytes}")
def test_what_the_model_ranks_is_right_and_timed(problem: Problem, hardware: Hardware, tmp_path: Path) -> None:
    ranking = rank(problem, hardware, load_space("default"))
    step = max(len(ranking.table) // 12, 1)
    with MeasuringProcess(problem, hardware, MeasureSettings(), cache_dir=tmp_path) as process:
        for row in range(0, len(ranking.table), step):
            schedule = ranking.table.schedule(row)
            found = process.measure(schedule, None)
            assert found.status == "ok", f"{schedule}: {found.message}"
            assert found.median_us is not None
            assert found.median_us > 0.5


@pytest.mark.parametrize("text", ["tma 64x128x64 w4 s4 k8 r2", "pointer 64x64x64 w4 s4 k12 r2 x1"])
def test_parts_added_as_they_come_are_judged_by_the_reference(text: str, hardware: Hardware, tmp_path: Path) -> None:
    """Their bits may differ from run to run, which would be `unstable` of any other schedule."""
    with MeasuringProcess(Problem(m=128, n=2048, k=8192), hardware, MeasureSettings(), cache_dir=tmp_path) as process:
        found = process.measure(parse_schedule(text), None)
    assert found.status == "ok", found.message


def test_finals_agree_with_themselves(hardware: Hardware, tmp_path: Path) -> None:
    """The same schedule twice: a ratio of one, within a percent."""
    schedule = parse_schedule("tma 128x128x64 w4 s4 g8")
    with MeasuringProcess(Problem(m=2048, n=2048, k=2048), hardware, MeasureSettings(), cache_dir=tmp_path) as process:
        samples = process.finals([schedule, schedule], 1.0)
    ratio = samples.times_us[:, 0] / samples.times_us[:, 1]
    assert 0.99 < sorted(ratio)[len(ratio) // 2] < 1.01
    assert len(samples.library_us) >= 20
