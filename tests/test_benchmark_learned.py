"""The arithmetic of benchmarks/learned.py that needs no LightGBM: what is learned, what is chosen and what the verdict is."""

from __future__ import annotations

import importlib
import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

from cost_models.calibration_files import packaged_calibration
from search_spaces.hardware import Hardware
from search_spaces.problem import Problem
from search_spaces.schedule import parse_schedule
from search_spaces.space import load_space

BENCHMARKS = Path(__file__).parent.parent / "benchmarks"
MEASURED_US = {"tma 128x128x64 w4 s4": 100.0, "tma 128x64x64 w4 s4": 120.0, "pointer 64x64x64 w4 s3 k2": 200.0}


@pytest.fixture(scope="module")
def learned() -> ModuleType:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "path", [str(BENCHMARKS), *sys.path])  # as where the file is run
        return importlib.import_module("learned")


def rows(learned: ModuleType, hardware: Hardware, slower: float = 1.0) -> object:
    recorded = sys.modules["landscapes"].Recorded(
        problem=Problem(m=2048, n=2048, k=2048),
        median_us={parse_schedule(text): us * slower for text, us in MEASURED_US.items()},
        library=None,
        measured_on="a test",
    )
    landscape = learned.prepare(recorded, hardware, load_space("default"))
    return learned.Rows.of(landscape, hardware, packaged_calibration("first_guess"))


def test_what_is_learned_does_not_know_how_fast_the_whole_shape_is(learned: ModuleType, h200: Hardware) -> None:
    one, other = rows(learned, h200), rows(learned, h200, slower=3.0)
    assert one.errors == pytest.approx(other.errors)  # type: ignore[attr-defined]
    assert (one.weights * one.errors).sum() == pytest.approx(0)  # type: ignore[attr-defined]
    assert list(one.grades) == list(other.grades)  # type: ignore[attr-defined]


def test_grades_and_weights_by_hand(learned: ModuleType, h200: Hardware) -> None:
    """20 % behind is 0.182 in log: 20 exp(-0.182 / 0.05) = 0.52, which rounds to 1; twice as slow is nothing."""
    one = rows(learned, h200)
    assert list(one.grades) == [20, 1, 0]  # type: ignore[attr-defined]
    weights = np.array([1.05, 1.2 ** (-1 / 0.3) + 0.05, 2 ** (-1 / 0.3) + 0.05])
    assert one.weights == pytest.approx(weights / weights.sum())  # type: ignore[attr-defined]


def test_a_correction_that_knows_the_errors_has_no_regret(learned: ModuleType, h200: Hardware) -> None:
    one = rows(learned, h200)
    assert one.regrets(one.errors)[0] == 0  # type: ignore[attr-defined]
    assert one.regrets(-10 * one.measured - one.estimated)[0] == pytest.approx(1.0)  # type: ignore[attr-defined]


def test_a_corrected_time_stops_at_the_floor(learned: ModuleType, h200: Hardware) -> None:
    """All three would be far below it, so they are equal and stay in their order."""
    one = rows(learned, h200)
    assert one.regrets(np.array([-50.0, -60.0, -70.0]))[0] == 0  # type: ignore[attr-defined]


def test_the_variant_of_least_first_8_is_chosen_and_first_1_breaks_a_tie(learned: ModuleType) -> None:
    first_1, first_8 = [0.00, 0.05, 0.02], [0.02, 0.01, 0.01]
    by_variant = np.array([[[one, eight, 0.0, 0.0]] for one, eight in zip(first_1, first_8, strict=True)])
    assert learned.choose(by_variant) == 2


def test_the_chosen_variant_of_each_seed_and_shape_is_reported(learned: ModuleType) -> None:
    variants = np.arange(2 * 3 * 2 * 4).reshape(2, 3, 2, 4) / 1000
    results = learned.Results("a test", [None, None], np.zeros((2, 4)), variants, np.array([[0, 2], [1, 1]]))
    assert results.corrected[0, 1] == pytest.approx(variants[0, 2, 1])
    assert results.corrected[1, 0] == pytest.approx(variants[1, 1, 0])


@pytest.mark.parametrize(
    ("after", "earned"),
    [
        ([((0.02, 0.01), (0.05, 0.05)), ((0.0, 0.0), (0.0, 0.0))], True),
        ([((0.02, 0.02), (0.05, 0.05)), ((0.0, 0.0), (0.0, 0.0))], False),  # lowers nothing
        ([((0.02, 0.01), (0.05, 0.06)), ((0.0, 0.0), (0.0, 0.0))], False),  # a shape is worse than any was
        ([((0.02, 0.01), (0.05, 0.05)), ((0.0, 0.001), (0.0, 0.002))], False),  # the other set is worse
    ],
)
def test_the_verdict(learned: ModuleType, after: list[tuple[tuple[float, float], tuple[float, float]]], earned: bool) -> None:
    assert learned.earns_its_place([learned.Change(*one) for one in after]) is earned
