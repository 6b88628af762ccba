"""The arithmetic of benchmarks/regret.py and what it reads landscapes with; the figures themselves are in benchmarks/results."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

from search_spaces.hardware import Hardware
from search_spaces.problem import Problem
from search_spaces.schedule import parse_schedule
from search_spaces.space import Space, load_space
from search_spaces.table import ScheduleTable

BENCHMARKS = Path(__file__).parent.parent / "benchmarks"


@pytest.fixture(scope="module")
def regret() -> ModuleType:
    return benchmark("regret")


@pytest.fixture(scope="module")
def landscapes() -> ModuleType:
    return benchmark("landscapes")


def benchmark(name: str) -> ModuleType:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "path", [str(BENCHMARKS), *sys.path])  # as where the file is run
        return importlib.import_module(name)


def test_least_of_a_draw(regret: ModuleType) -> None:
    """Of 1, 2, 4, two are drawn: {1,2}, {1,4} and {2,4} are equally likely, with least 1, 1 and 2."""
    ordered = np.array([1.0, 2.0, 4.0])
    assert regret.expected_least(ordered, 1) == pytest.approx(7 / 3)
    assert regret.expected_least(ordered, 2) == pytest.approx(4 / 3)
    assert regret.expected_least(ordered, 3) == pytest.approx(1)
    assert regret.expected_least(ordered, 8) == pytest.approx(1)


def test_spearman_shares_the_rank_of_equal_values(regret: ModuleType) -> None:
    """Ranks 1, 2.5, 2.5, 4 against 1, 2, 3, 4: covariance 4.5 of variances 4.5 and 5."""
    a, b = np.array([1.0, 2.0, 2.0, 9.0]), np.array([1.0, 2.0, 3.0, 4.0])
    assert regret.spearman(a, b) == pytest.approx(4.5 / np.sqrt(4.5 * 5))
    assert regret.spearman(-b, b) == pytest.approx(-1)
    assert regret.spearman(np.ones(4), b) == 0


@pytest.mark.parametrize(
    ("schedule", "stands_for_it", "survives"),
    [
        ("tma 64x128x64 w4 s4 g16", "tma 64x128x64 w4 s4 g2", True),  # two rows of tiles
        ("tma 64x128x64 w4 s4 k4 e2", "tma 64x128x64 w4 s4 k4", True),
        ("tma 64x128x64 w4 s4 p1 f1", "tma 64x128x64 w4 s4", True),  # 112 tiles for 132 CTAs
        ("tma 64x128x64 w4 s4 f1", "tma 64x128x64 w4 s4", True),
        ("tma 64x64x64 w4 s4 p1 f1", "tma 64x64x64 w4 s4 p1 f1", True),
        ("tma 256x256x64 w4 s4", "tma 256x256x64 w4 s4", False),  # half of it covers the rows
    ],
)
def test_what_stands_for_a_schedule(landscapes: ModuleType, h200: Hardware, schedule: str, stands_for_it: str, survives: bool) -> None:
    table = ScheduleTable.of([parse_schedule(schedule)])
    found, alive = landscapes.stand_ins(table, Problem(m=128, n=7168, k=18432), h200)
    assert (str(found.schedule(0)), bool(alive[0])) == (stands_for_it, survives)


def test_launches_are_joined_and_what_pruning_drops_is_told(landscapes: ModuleType, h200: Hardware) -> None:
    """Both groups walk two rows of tiles in the same order, so their median counts, 11 us; the fastest has a tile twice as high as M."""
    times = {"tma 64x128x64 w4 s4 g2": 10.0, "tma 64x128x64 w4 s4 g8": 12.0, "tma 256x128x64 w8 s3": 10.9, "tma 64x64x64 w4 s4": 20.0}
    recorded = landscapes.Recorded(
        problem=Problem(m=128, n=7168, k=18432),
        median_us={parse_schedule(text): us for text, us in times.items()},
        library=None,
        measured_on="a test",
    )
    space = Space("one", {"tma": {**load_space("default").axes["tma"], "group_m": (1, 4)}})
    found = landscapes.prepare(recorded, h200, space)
    assert found.sample.seconds * 1e6 == pytest.approx([11.0, 20.0])
    assert found.best_seconds * 1e6 == pytest.approx(10.9)
    assert (found.near, found.stood_for, found.outside) == (2, 0, 1)
    ((schedule, ratio, reason),) = found.lost
    assert str(schedule) == "tma 256x128x64 w8 s3"
    assert ratio == 1
    assert reason == "a tile edge of 256 for the 128 rows or columns there are: half of it covers them"


def test_landscapes_of_other_shapes_are_what_is_fitted_to(landscapes: ModuleType, h200: Hardware) -> None:
    median_us = {parse_schedule("pointer 64x64x64 w4 s3"): 5.0, parse_schedule("pointer 64x128x64 w4 s3"): 6.0}
    prepared = [
        landscapes.prepare(
            landscapes.Recorded(problem=Problem(m=512, n=512, k=k), median_us=median_us, library=None, measured_on="a test"),
            h200,
            load_space("default"),
        )
        for k in (1024, 2048, 4100)
    ]
    assert [one.is_aligned for one in prepared] == [True, True, False]
    assert [sample.problem.k for sample in landscapes.others(prepared, prepared[0])] == [2048]
    assert [sample.problem.k for sample in landscapes.others(prepared, prepared[2])] == [1024, 2048]


def test_proposals_of_a_peer_count_where_they_were_recorded(regret: ModuleType) -> None:
    peers = benchmark("peers")
    table = ScheduleTable.of([parse_schedule(text) for text in ("tma 64x64x64 w4 s3", "tma 64x64x64 w4 s4", "tma 128x64x64 w4 s3 k2")])
    proposals = [(256, 64, 64, 1), (64, 64, 64, 1), (128, 64, 64, 2), (128, 64, 64, 1)]
    assert peers.best_of_proposals(proposals, table, np.array([3.0, 2.0, 1.0])) == [2.0, 1.0]


def test_triton_s_former_model_by_hand(h200: Hardware) -> None:
    """One CTA of 4 warps works 1 of 132 SMs' tensor cores; loads run at 0.95/32 of the bandwidth and stores at 0.6 of that."""
    peers = benchmark("peers")
    (seconds,) = peers.triton_former_model(ScheduleTable.of([parse_schedule("tma 64x64x64 w4 s3")]), Problem(m=64, n=64, k=4096), h200)
    compute = 2 * 64 * 64 * 4096 / (512 * 4 * h200.clock_hz)
    bandwidth = h200.dram_bytes_per_second * 0.95 / 32
    load = 2 * 64 * 4096 * 2 / bandwidth
    assert seconds == pytest.approx(max(compute, load) + 64 * 64 * 2 / (0.6 * bandwidth))
