"""Which of the schedules that were timed may be the fastest, as far as noise lets one tell: those go on to the finals. Pure numpy.

What a search knows of a schedule are some seven samples, taken once. Under 3 % noise their centre is off by more than 1 %, so that of
hundreds of like schedules the eight that look best are the lucky ones: a schedule that is 2 % faster is among them one time in three.
So there are first rounds, in which many contestants are timed in turn as in the finals: up to 160 in 8 rounds, of which 48 go on to 18
more, of which 8 go on to the finals. By simulation that keeps the faster one of 300 nine times in ten; with 32 to begin with it would be
six, as it is not among the first 32 more often. It takes 3 s of replays then, and less where there is less to tell apart: the 64 schedules
of a usual search half of that, and on a quiet machine, where few are within noise of the best and three rounds will do, a tenth.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from tuner.comparing import DRIFT_SHARE

FINALISTS = 8  # that are timed at length beside the library
DOUBT = 2.0  # standard errors that a contestant may seem slower by
FINE_ENOUGH = 0.0025  # relative error of a centre that more rounds need not make smaller
LEAST_ROUNDS = 3
REPLAY_SECONDS = 0.0015  # of a graph, at least
STAGE_SECONDS = 2.0


class Stage(NamedTuple):
    most: int  # contestants
    rounds: int  # at most


STAGES = (Stage(160, 8), Stage(48, 18))


@dataclass
class Field:
    """The contestants of a search, by place in what was given, and what is known of them.

    samples_us: of each, from the search. drift: by what share the clock was seen to move meanwhile; who was timed while it was low may be
    that much faster than it seems.
    """

    samples_us: Sequence[Sequence[float]]
    drift: float = 0.0
    still_in: list[int] = field(init=False)
    noise: float = field(init=False)  # relative standard deviation of one sample

    def __post_init__(self) -> None:
        each, drift = min(len(samples) for samples in self.samples_us), max(self.drift, DRIFT_SHARE)
        times = np.array([samples[:each] for samples in self.samples_us]).T
        self.noise = float(np.median(np.std(times, axis=0, ddof=1) / times.mean(axis=0))) if each > 1 else 0.0
        self._first = np.log(_centres(times))
        self._weighted, self._weight = np.zeros(len(self._first)), np.zeros(len(self._first))
        self._add(list(range(len(self._first))), self._first, self.noise**2 / each + (drift / 3) ** 2)
        margin = math.log1p(drift) + DOUBT * self.noise * math.sqrt(2 / each)
        places = self._ordered(range(len(self._first)))
        self.still_in = [i for place, i in enumerate(places) if place < FINALISTS or self._first[i] <= self._first.min() + margin]

    def _add(self, places: list[int], logs: NDArray[np.float64], variance: float) -> None:
        self._weighted[places] += logs / variance
        self._weight[places] += 1 / variance

    def _ordered(self, places: Sequence[int]) -> list[int]:
        """By all that is known of them, the fastest first."""
        return sorted(places, key=lambda i: (self._weighted[i] / self._weight[i], i))

    def begin(self, stage: Stage, *, after: int) -> int:
        """Let as many stay as the stage takes, and say in how many rounds they are to be timed; 0 where it decides nothing: those that
        stay are no more than go on after it, or the kernels too slow for more.
        """
        replay = max(REPLAY_SECONDS, float(np.exp(self._first.min())) * 1e-6)
        rounds = min(max(math.ceil((self.noise / FINE_ENOUGH) ** 2), LEAST_ROUNDS), stage.rounds)
        affordable = int(STAGE_SECONDS / (LEAST_ROUNDS * replay))
        if min(len(self.still_in), affordable) <= after:
            return 0
        self.still_in = self.still_in[: min(stage.most, affordable)]
        return max(min(rounds, int(STAGE_SECONDS / (len(self.still_in) * replay))), LEAST_ROUNDS)

    def tell(self, rounds_us: NDArray[np.float64]) -> None:
        """rounds_us[round, contestant]: of those still in, in their order."""
        logs = np.log(_centres(rounds_us))
        # what the clock did meanwhile is the same for all of them
        logs += float((self._first[self.still_in] - logs).mean())
        self._add(self.still_in, logs, max(self.noise, FINE_ENOUGH) ** 2 / len(rounds_us))
        self.still_in = self._ordered(self.still_in)


def _centres(times: NDArray[np.float64]) -> NDArray[np.float64]:
    """Of each column, the mean without the least and the most, where there are enough: surer than the median, and one interruption does not
    move it."""
    return np.asarray(np.sort(times, axis=0)[1:-1].mean(axis=0) if len(times) >= 5 else np.median(times, axis=0))
