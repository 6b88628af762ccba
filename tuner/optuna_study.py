"""What Optuna's samplers need to search a pruned table: axes, a study, and proposals that the model's leaders begin.

Optuna has no hard constraints and repeats itself. Here what it samples is moved to the nearest schedule that can run and was not proposed,
and the study is told that schedule's result. Schedules that failed are told as bad ones, as a sampler learns nothing from failed trials;
but for those that failed for reasons of the moment, of which there is nothing to learn.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np
import optuna
from numpy.typing import NDArray
from optuna.distributions import BaseDistribution, CategoricalDistribution, IntDistribution
from optuna.samplers import BaseSampler
from optuna.trial import TrialState

from db.records import is_moments
from search_spaces.schedule import AXES
from tuner.strategies import Candidates, Proposals, StrategySettings, Trial

LEADERS = 16  # of the cost model, before the sampler is asked
BATCH = 8  # the rows of one batch know nothing of each other's results
FAILED_SLOWER = math.log(2)  # a failure is told as so much slower, in log seconds, than the slowest that was timed
FAMILY = "family"


class _Axes:
    """The table as the sampler sees it: each axis is the place of its value among those that occur; families have no order."""

    def __init__(self, candidates: Candidates) -> None:
        self._families = candidates.table.families
        self._family = candidates.table.family
        self._places: dict[str, NDArray[np.intp]] = {}
        self.distributions: dict[str, BaseDistribution] = {}
        for axis in AXES:
            values, places = np.unique(candidates.table.columns[axis], return_inverse=True)
            if len(values) > 1:
                self._places[axis] = places
                self.distributions[axis] = IntDistribution(0, len(values) - 1)
        if len(self._families) > 1:
            self.distributions[FAMILY] = CategoricalDistribution(self._families)

    def params(self, row: int) -> dict[str, int | str]:
        params: dict[str, int | str] = {axis: int(places[row]) for axis, places in self._places.items()}
        if FAMILY in self.distributions:
            params[FAMILY] = self._families[int(self._family[row])]
        return params

    def nearest(self, params: Mapping[str, int | str], rows: NDArray[np.intp]) -> int:
        """The first of `rows` at the least distance. From its first value to its last an axis is 1 long; another family is farther."""
        distance = np.zeros(len(rows))
        for axis, places in self._places.items():
            distance += np.abs(places[rows] - int(params[axis])) / places.max()
        if FAMILY in params:
            distance += len(AXES) * (self._family[rows] != self._families.index(str(params[FAMILY])))
        return int(rows[np.argmin(distance)])


class _Study:
    """A study in memory in which each finished trial is a row of the table."""

    def __init__(self, axes: _Axes, sampler: BaseSampler) -> None:
        self._axes = axes
        self._numbers: dict[int, int] = {}  # row -> number of its trial
        self._slowest: float | None = None
        verbosity = optuna.logging.get_verbosity()
        optuna.logging.set_verbosity(optuna.logging.WARNING)  # making a study writes to stderr
        self._study = optuna.create_study(sampler=sampler)
        optuna.logging.set_verbosity(verbosity)

    def open(self, row: int) -> None:
        """Starts the trial of this row; the samples that follow keep away from it until its result is told."""
        self._study.enqueue_trial(self._axes.params(row))
        self._numbers[row] = self._study.ask(self._axes.distributions).number

    def sample(self, rows: NDArray[np.intp]) -> int:
        """The row of `rows` that is nearest to what the sampler would try next."""
        trial = self._study.ask(self._axes.distributions)
        self._study.tell(trial, state=TrialState.FAIL)  # the row's own trial stands in its place
        return self._axes.nearest(trial.params, rows)

    def tell(self, trial: Trial) -> None:
        """The study minimises log seconds."""
        row, seconds = trial.row, trial.seconds
        if is_moments(trial.status):
            self._study.tell(self._numbers[row], state=TrialState.FAIL)
            return
        told = (self._slowest or 0.0) + FAILED_SLOWER if seconds is None else math.log(seconds)
        if seconds is not None:
            self._slowest = told if self._slowest is None else max(self._slowest, told)
        self._study.tell(self._numbers[row], told)


def proposals(candidates: Candidates, settings: StrategySettings, sampler: BaseSampler) -> Proposals:
    study = _Study(_Axes(candidates), sampler)
    left = candidates.by_estimate()  # so that of equally near rows the most promising is taken
    proposed, limit = 0, settings.rows_of(candidates)
    size = min(settings.batch, BATCH)
    while proposed < limit:
        batch: list[int] = []
        while len(batch) < size and proposed < limit:
            row = int(left[0]) if proposed < LEADERS else study.sample(left)
            study.open(row)
            left = left[left != row]
            batch.append(row)
            proposed += 1
        for trial in (yield batch):
            study.tell(trial)
