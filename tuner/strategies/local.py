"""The neighbours of the fastest schedules so far, one step along one axis; it begins with the cost model's leaders."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from tuner.strategies import Candidates, Proposals, StrategySettings, Trial, guided

STOPS_EARLY = True


def propose(candidates: Candidates, settings: StrategySettings) -> Proposals:
    walk = _Walk(candidates)
    return guided(candidates, settings, walk.choose, walk.learn)


class _Walk:
    """Where the search has been, and what lies one step from there."""

    def __init__(self, candidates: Candidates) -> None:
        self._order = candidates.by_estimate()
        columns = [candidates.table.family, *candidates.table.columns.values()]
        self._places = np.stack([np.unique(column, return_inverse=True)[1] for column in columns], axis=1)
        self._seconds: dict[int, float] = {}

    def learn(self, trials: list[Trial]) -> None:
        self._seconds |= {trial.row: trial.seconds for trial in trials if trial.seconds is not None}

    def choose(self, left: NDArray[np.bool_], count: int) -> list[int]:
        """Around the fastest first; where no neighbour is left, the most promising by estimate."""
        rows: list[int] = []
        for leader in sorted(self._seconds, key=lambda row: (self._seconds[row], row)):
            if len(rows) >= count:
                break
            found = self._around(leader, left)
            left = left.copy()
            left[found] = False
            rows += found
        return [*rows, *(int(row) for row in self._order[left[self._order]][: max(count - len(rows), 0)])][:count]

    def _around(self, leader: int, left: NDArray[np.bool_]) -> list[int]:
        """On each axis the nearest rows that are left up and down, all other axes being the leader's."""
        apart = self._places - self._places[leader]
        alone = left & (np.count_nonzero(apart, axis=1) == 1)
        found: list[int] = []
        for axis in range(apart.shape[1]):
            for step in (-1, 1):
                on_this_side = np.flatnonzero(alone & (apart[:, axis] * step > 0))
                if len(on_this_side):
                    found.append(int(on_this_side[np.argmin(np.abs(apart[on_this_side, axis]))]))
        return found
