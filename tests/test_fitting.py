"""Fitting the model's constants: how far behind a choice is, and what the fit may and may not move."""

from __future__ import annotations

from dataclasses import asdict, replace

import numpy as np
import pytest

from cost_models.calibration import constants
from cost_models.calibration_files import packaged_calibration
from cost_models.fitting import Sample, fit, geometric_mean, regrets
from cost_models.hierarchy import estimate
from search_spaces.hardware import Hardware
from search_spaces.lowering import lower
from search_spaces.problem import Problem
from search_spaces.space import load_space, prune

GUESS = packaged_calibration("first_guess")


def sample_of(problem: Problem, hardware: Hardware, changes: dict[str, float]) -> Sample:
    """Every 500th schedule of TMA's, as a machine with these constants would have run it."""
    pruned = prune(load_space("default").only(["tma"]).enumerate(), problem, hardware)
    table = pruned.survivors.take(slice(0, None, 500))
    truth = replace(GUESS, **changes)
    return Sample(problem=problem, table=table, seconds=estimate(table, lower(table, problem, hardware), problem, hardware, truth).seconds)


def test_regret_of_the_first_choices(h100: Hardware) -> None:
    """Expected best first: 30, 10, 20, 40 us were measured."""
    table = prune(load_space("default").enumerate(), Problem(m=512, n=512, k=512), h100).survivors.take(slice(0, 4))
    sample = Sample(problem=Problem(m=512, n=512, k=512), table=table, seconds=np.array([20e-6, 40e-6, 30e-6, 10e-6]))
    assert regrets(sample, np.array([3.0, 4.0, 1.0, 2.0]), (1, 2, 4)) == pytest.approx((2.0, 0.0, 0.0))


def test_geometric_mean_of_regrets() -> None:
    """1.21 and 1.00 make 1.10."""
    assert geometric_mean([0.21, 0.0]) == pytest.approx(0.1)


def test_a_constant_that_was_far_off_comes_nearer_and_none_leaves_its_bounds(h100: Hardware) -> None:
    shapes = (Problem(m=16, n=8192, k=8192), Problem(m=2048, n=2048, k=2048))
    samples = [sample_of(problem, h100, {"load_latency_seconds": 1.5e-6, "dram_share": 0.8}) for problem in shapes]
    found = fit(samples, h100, GUESS, steps=400)
    assert abs(np.log(found.load_latency_seconds / 1.5e-6)) < abs(np.log(GUESS.load_latency_seconds / 1.5e-6)) / 2
    assert all(low <= getattr(found, name) <= high for name, (low, high) in constants().items())
    assert found == fit(samples, h100, GUESS, steps=400)


def test_constants_that_the_samples_say_nothing_of_stay(h100: Hardware) -> None:
    """Without pointer loads there are no copies to count, and rows that are whole tiles are never missing."""
    problem = Problem(m=2048, n=2048, k=2048)
    found = asdict(fit([sample_of(problem, h100, {})], h100, GUESS, steps=400))
    for name in ("copy_clocks", "pointer_issue_share", "missing_row_clocks"):
        assert found[name] == getattr(GUESS, name)
