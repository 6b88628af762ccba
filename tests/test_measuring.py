"""Whatever a kernel does to the measuring process costs that kernel alone."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from search_spaces.errors import MachineFault
from search_spaces.hardware import Hardware
from search_spaces.problem import Problem
from search_spaces.schedule import Schedule
from tuner.measuring import MeasureSettings, MeasuringProcess

FAKE = (sys.executable, str(Path(__file__).parent / "fake_measure_process.py"))
GOOD, SEGFAULT, HANG, WRONG, ILLEGAL, GARBAGE, KILLED_ONCE, EXITS, POISONED = 1, 2, 3, 4, 5, 6, 7, 8, 9


def schedule(kind: int, cta_m: int = 64) -> Schedule:
    return Schedule(family="pointer", cta_m=cta_m, cta_n=64, cta_k=32, warps=4, stages=3, group_m=kind)


@pytest.fixture
def process(h200: Hardware, tmp_path: Path) -> Iterator[MeasuringProcess]:
    settings = MeasureSettings(command=FAKE, candidate_seconds=2.0, start_seconds=30.0)
    with MeasuringProcess(Problem(m=512, n=512, k=512), h200, settings, cache_dir=tmp_path) as started:
        yield started


def test_ten_schedules_of_which_some_kill(process: MeasuringProcess) -> None:
    kinds = [GOOD, GOOD, SEGFAULT, GOOD, ILLEGAL, GOOD, HANG, GOOD, WRONG, EXITS, GOOD]
    found = [process.measure(schedule(kind), None) for kind in kinds]
    assert [m.status for m in found] == ["ok", "ok", "crashed", "ok", "crashed", "ok", "timeout", "ok", "wrong_answer", "crashed", "ok"]
    assert {m.median_us for m in found if m.status == "ok"} == {found[0].median_us}
    assert all(m.median_us is None and not m.samples_us for m in found if m.status != "ok")
    assert found[2].message == "the measuring process died of SIGSEGV"
    assert found[4].message == "illegal memory access"
    assert found[6].message == "no answer in 2 s; the measuring process was killed"
    assert found[9].message == "the measuring process left with exit code 9"


def test_one_that_crashes_after_others_is_tried_in_a_fresh_process_before_it_gets_the_blame(
    process: MeasuringProcess, tmp_path: Path
) -> None:
    assert process.measure(schedule(GOOD), None).status == "ok"
    assert process.measure(schedule(SEGFAULT), None).status == "crashed"
    assert len((tmp_path / "crashes").read_text()) == 2
    assert process.measure(schedule(SEGFAULT), None).status == "crashed"
    assert len((tmp_path / "crashes").read_text()) == 3  # it was the first in its process


def test_a_victim_of_its_predecessor_is_measured_after_all(process: MeasuringProcess) -> None:
    assert process.measure(schedule(POISONED), None).status == "ok"
    assert process.measure(schedule(POISONED, cta_m=128), None).status == "ok"


def test_a_process_killed_from_outside_loses_the_measurement_in_flight_at_most(process: MeasuringProcess, tmp_path: Path) -> None:
    assert process.measure(schedule(KILLED_ONCE), None).status == "ok"
    assert len((tmp_path / "lives").read_text()) == 2


def test_nonsense_is_no_answer(process: MeasuringProcess) -> None:
    found = process.measure(schedule(GARBAGE), None)
    assert (found.status, found.message) == ("crashed", "the measuring process answered b'garbage'")
    assert process.measure(schedule(GOOD), None).status == "ok"


def test_finals_pair_every_round_with_the_library(process: MeasuringProcess) -> None:
    samples = process.finals([schedule(GOOD), schedule(GOOD, cta_m=128)], 1.0)
    assert samples.times_us.shape == (20, 2)
    assert samples.library_us[0] == pytest.approx(1.1 * samples.times_us[0, 0])


def test_a_process_that_cannot_start_is_no_fault_of_a_schedule(h200: Hardware, tmp_path: Path) -> None:
    settings = MeasureSettings(command=(sys.executable, "-c", "raise SystemExit('no CUDA here')"))
    sentence = "cannot measure: the measuring process left with exit code 1: no CUDA here"
    started = MeasuringProcess(Problem(m=8, n=8, k=8), h200, settings, cache_dir=tmp_path)
    with started as broken, pytest.raises(MachineFault, match=sentence):
        broken.measure(schedule(GOOD), None)


def test_nothing_is_left_running(process: MeasuringProcess) -> None:
    process.measure(schedule(GOOD), None)
    assert process.pid is not None
    process.close()
    assert process.pid is None
