"""Constants of the hierarchical model from measured times: what is near the best counts most, and each problem as much as any other.

The search is a seeded random walk that keeps what is better: the loss follows ranks, so it has steps and no gradient, and one evaluation
takes milliseconds. Nothing is fitted to one shape: that is `learned`'s.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace

import numpy as np
from numpy.typing import NDArray

from cost_models.calibration import Calibration, constants
from cost_models.hierarchy import evaluate
from cost_models.work import Work, prepare
from search_spaces.hardware import Hardware
from search_spaces.lowering import lower
from search_spaces.problem import Problem
from search_spaces.table import ScheduleTable

STEPS = 2500
STEP_SCALES = (0.03, 0.1, 0.3)  # of the logarithm of a constant
NEAR = 0.15  # a schedule this much (in log seconds) behind the best weighs 1/e of it
FAR, FAR_WEIGHT = 0.7, 0.05  # and the rest little, so that nothing slow is predicted to be fast
TEMPERATURES = (0.015, 0.05)  # in log seconds: estimates closer than this are hardly told apart
ORDER_WEIGHT, SPREAD_WEIGHT, OFFSET_WEIGHT = 1.0, 0.5, 0.15
PULL = 0.002  # towards the start, of each constant's squared logarithm: few shapes say nothing of some constants


@dataclass(frozen=True, kw_only=True)
class Sample:
    """Measured seconds of schedules of one problem."""

    problem: Problem
    table: ScheduleTable
    seconds: NDArray[np.float64]


def fit(samples: Sequence[Sample], hardware: Hardware, start: Calibration, *, seed: int = 0, steps: int = STEPS) -> Calibration:
    """The constants that rank and time all samples best, found from `start`. The same seed gives the same constants."""
    targets = [_Target.of(sample, hardware) for sample in samples]
    rng = np.random.default_rng(seed)
    bounds = constants()
    names = list(bounds)
    best, least = start, _loss(targets, start, start)
    for _ in range(steps):
        changed = dict(asdict(best))
        for name in rng.choice(names, size=rng.choice([1, 1, 2, 3]), replace=False):
            low, high = bounds[name]
            moved = changed[name] * math.exp(rng.normal() * rng.choice(STEP_SCALES))
            changed[name] = min(max(moved, low), high)
        candidate = Calibration(**changed)
        loss = _loss(targets, candidate, start)
        if loss < least:
            best, least = candidate, loss
    return replace(best, name=hardware.name)


def regrets(sample: Sample, estimated_seconds: NDArray[np.float64], firsts: Sequence[int]) -> tuple[float, ...]:
    """For each k of `firsts`, how far the best of the k schedules expected to be fastest is behind the best measured (0.01 = 1 %)."""
    in_order = sample.seconds[np.argsort(estimated_seconds, kind="stable")]
    return tuple(float(in_order[:k].min() / sample.seconds.min() - 1) for k in firsts)


def geometric_mean(values: Sequence[float]) -> float:
    """Of 1 + each value, less 1."""
    return math.expm1(math.fsum(math.log1p(value) for value in values) / len(values))


@dataclass(frozen=True)
class _Target:
    """A sample made ready: what the model works on, log seconds, how far each is behind the best, and what each counts."""

    work: Work
    log_seconds: NDArray[np.float64]
    behind: NDArray[np.float64]
    weights: NDArray[np.float64]

    @staticmethod
    def of(sample: Sample, hardware: Hardware) -> _Target:
        log_seconds = np.log(sample.seconds)
        behind = log_seconds - log_seconds.min()
        weights = np.exp(-behind / NEAR) + FAR_WEIGHT * np.exp(-behind / FAR)
        work = prepare(sample.table, lower(sample.table, sample.problem, hardware), sample.problem, hardware)
        return _Target(work, log_seconds, behind, weights / weights.sum())

    def loss(self, calibration: Calibration) -> float:
        """The regret to be expected of a choice among the leaders, the spread of the error near the best, and a little of its mean."""
        expected = np.log(evaluate(self.work, calibration).seconds)
        ahead = expected - expected.min()
        lost = np.expm1(np.minimum(self.behind, 1.0))
        order = 0.0
        for temperature in TEMPERATURES:
            chosen = np.exp(-ahead / temperature)
            order += float((chosen * lost).sum() / chosen.sum()) / len(TEMPERATURES)
        error = expected - self.log_seconds
        offset = float((self.weights * error).sum())
        spread = math.sqrt(float((self.weights * (error - offset) ** 2).sum()))
        return ORDER_WEIGHT * order + SPREAD_WEIGHT * spread + OFFSET_WEIGHT * abs(offset)


def _loss(targets: Sequence[_Target], calibration: Calibration, start: Calibration) -> float:
    moved = math.fsum(math.log(getattr(calibration, name) / getattr(start, name)) ** 2 for name in constants())
    return math.fsum(target.loss(calibration) for target in targets) / len(targets) + PULL * moved
