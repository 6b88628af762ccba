"""Who won, by how much, and who is too close to call: statistics of contestants that were timed in turn. Pure numpy."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

T = TypeVar("T")

CONFIDENCE = 0.95
RESAMPLES = 1000
DRIFT_SHARE = 0.03  # of a time that was not taken in turn; within it the clock may have moved
TIE_SHARE = 0.005  # closer than half a percent is a tie, however small the noise


@dataclass(frozen=True)
class FinalsSamples:
    """times_us[round, contestant] and library_us[round]: each round times everyone once, so a drifting clock moves all alike.

    wrong: of each contestant, what was wrong with its answers or times; empty where nothing was. implausible: those that only
    their times speak against, which are beyond the machine's peak."""

    times_us: NDArray[np.float64]
    library_us: NDArray[np.float64]
    hot_l2_us: tuple[float, ...] = ()
    eager_us: tuple[float, ...] = ()
    wrong: tuple[str, ...] = ()  # of each contestant, what was wrong with its answers; nothing where all were right
    implausible: frozenset[int] = frozenset()  # of the wrong, those whose time is beyond the GPU's peak

    def without(self, leaving: Sequence[int]) -> FinalsSamples:
        """As if these contestants had not been there."""
        stay = [i for i in range(self.times_us.shape[1]) if i not in leaving]

        def staying(values: tuple[T, ...]) -> tuple[T, ...]:
            return tuple(values[i] for i in stay if values)

        return FinalsSamples(self.times_us[:, stay], self.library_us, staying(self.hot_l2_us), staying(self.eager_us), staying(self.wrong))


@dataclass(frozen=True)
class Standing:
    """One contestant's result; `rank` counts from 1 in the order of place. ratio: library time / its time, median over rounds, with an
    interval."""

    rank: int
    ratio: float
    ratio_low: float
    ratio_high: float
    median_us: float
    library_us: float
    tied: bool
    winner: bool


def median_interval(values: NDArray[np.float64], seed: int = 0) -> tuple[float, float, float]:
    """(median, low, high): a bootstrap interval of CONFIDENCE, the same for the same values."""
    draws = np.random.default_rng(seed).integers(0, len(values), size=(RESAMPLES, len(values)))
    medians = np.median(values[draws], axis=1)
    low, high = np.quantile(medians, [(1 - CONFIDENCE) / 2, (1 + CONFIDENCE) / 2])
    return float(np.median(values)), float(low), float(high)


def compare(samples: FinalsSamples, resources: Sequence[tuple[object, ...]]) -> list[Standing]:
    """The standing of every contestant, in the order given.

    The leader has the best median ratio. Tied with it is whoever's paired ratio to it has an interval that reaches 1, or a median within
    TIE_SHARE. Of the tied, the one that needs the least wins: `resources` are compared as tuples, and last is the schedule's text, so
    that the same finals always crown the same schedule. Raises ValueError where a time is none.
    """
    for what, given in (("a contestant", samples.times_us), ("the library", samples.library_us)):
        if not (given.size and np.isfinite(given).all() and (given > 0).all()):
            raise ValueError(f"the finals hold a time of {what} that is no number above 0")
    times, library = samples.times_us, samples.library_us
    ratios = [median_interval(library / times[:, i]) for i in range(times.shape[1])]
    order = sorted(range(len(ratios)), key=lambda i: (-ratios[i][0], resources[i]))
    leader = order[0]
    tied = [_ties(times[:, leader] / times[:, i]) for i in range(len(ratios))]
    winner = min((i for i in range(len(ratios)) if tied[i]), key=lambda i: resources[i])
    places = [winner, *(i for i in order if i != winner)]
    return [
        Standing(
            rank=places.index(i) + 1,
            ratio=ratios[i][0],
            ratio_low=ratios[i][1],
            ratio_high=ratios[i][2],
            median_us=float(np.median(times[:, i])),
            library_us=float(np.median(library)),
            tied=tied[i],
            winner=i == winner,
        )
        for i in range(len(ratios))
    ]


def _ties(leader_over_other: NDArray[np.float64]) -> bool:
    """Whether a contestant is as fast as the leader, for all that its rounds can tell."""
    median, _, high = median_interval(leader_over_other)
    return high >= 1.0 or median >= 1.0 - TIE_SHARE
