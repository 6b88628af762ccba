"""When has a search found enough? Where the regret expected of stopping falls under a bound, whatever strategy proposes. But what the
library reaches can be reached: while it is ahead, the search goes on, whatever the measured schedules say of the rest."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from db.records import is_moments
from tuner.comparing import DRIFT_SHARE
from tuner.strategies import Candidates, Trial
from tuner.surrogate import Surrogate

LEAST_TOLD = 16  # results before a search may end: fewer say little of how far the model is off


@dataclass(frozen=True, kw_only=True)
class Regret:
    """estimated: by how much, as a share of the best time, the best of what was not tried is expected to beat it; None where nothing was
    timed. bound: the search ends once it is under this; 0 for never. stopped: whether that ended it."""

    estimated: float | None
    bound: float
    stopped: bool


class RegretWatch:
    """Follows a search. Estimating takes some 50 ms, so it is done only where it is asked for."""

    def __init__(self, candidates: Candidates, bound: float, library_seconds: Callable[[], float | None] = lambda: None) -> None:
        """library_seconds: the library's time as it is now, where there is one."""
        self._library_seconds = library_seconds
        self._surrogate = Surrogate(candidates)
        self._left = np.ones(len(candidates.table), dtype=bool)
        self._untold: list[Trial] = []
        self._told = 0
        self.regret = Regret(estimated=None, bound=bound, stopped=False)

    def expected_seconds(self, rows: Sequence[int]) -> list[float] | None:
        """What these rows are expected to take after all that the watch has looked at; None before that."""
        if self.regret.estimated is None:
            return None
        return [float(seconds) for seconds in np.exp(self._surrogate.posterior(np.array(rows, dtype=np.intp)).mean)]

    def tell(self, trials: Sequence[Trial]) -> None:
        self._untold += trials
        if self.regret.bound > 0:
            self.estimate()

    def _library_leads(self) -> bool:
        best, library = self._surrogate.best_seconds, self._library_seconds()
        return best is not None and library is not None and library < best * (1 - DRIFT_SHARE)

    def estimate(self) -> Regret:
        """The regret now. The search is to end where it says `stopped`."""
        if self._untold:
            self._surrogate.tell(self._untold)
            tried = [trial for trial in self._untold if not is_moments(trial.status)]
            self._told += len(tried)
            self._left[[trial.row for trial in tried]] = False
            self._untold = []
            estimated, bound = self._surrogate.estimated_regret(self._left), self.regret.bound
            enough = (self._told >= LEAST_TOLD and not self._library_leads()) or not self._left.any()
            self.regret = Regret(estimated=estimated, bound=bound, stopped=enough and estimated is not None and estimated < bound)
        return self.regret
