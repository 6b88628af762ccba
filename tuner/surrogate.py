"""What should the schedules that were not measured take, now that some were? A Gaussian process over log(measured / estimated).

The cost model gives the shape of the landscape; what is learned here is where it is wrong. It sees axes and estimates alone, and knows
nothing of how schedules are run.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from db.records import is_moments
from search_spaces.schedule import AXES
from tuner.strategies import Candidates, Trial

Rows = NDArray[np.intp]
Matrix = NDArray[np.float64]

# How far along an axis, in powers of two, an error of the model carries. Of greatest marginal likelihood for the errors of the hierarchy
# model on 14 shapes measured on an H200, then rounded; lengths fitted to 13 of the shapes explain the one left out as well as these. From
# `stream_k` on they are guesses: those shapes do not have the axes.
LENGTHS = {
    "cta_m": 1.5,
    "cta_n": 1.5,
    "cta_k": 1.5,
    "warps": 4.0,
    "stages": 1.25,
    "split_k": 2.5,
    "group_m": 7.0,
    "persistent_ctas_per_sm": 1.0,
    "epilogue_subtile": 4.0,
    "flatten": 8.0,
    "stream_k": 1.0,
    "fused_reduction": 1.5,
    "swap_ab": 1.5,
    "pad": 1.0,
    "warps_n": 2.0,
    "instruction_n": 3.0,
    "consumers": 1.0,
    "producer_registers": 8.0,
    "swizzle_bytes": 2.0,
}
FROM_ZERO = ("persistent_ctas_per_sm", "flatten", "stream_k", "fused_reduction", "swap_ab", "pad")
FAMILY_DISTANCE = 0.35  # between two families at the same axes, in such lengths
SHARED_SD, FAMILY_SD = 0.1, 0.1  # of the error, in log seconds, that all schedules share and that a family's share
SCALES = (0.05, 0.1, 0.2, 0.4)  # sd of the error that near schedules share: the likeliest is taken
SCALE_UNSEEN = 0.07  # before anything was timed
NOISE_SD, SLOW_NOISE_SD = 0.01, 0.2  # of a proper timing with what no axis tells, and of a single launch
LARGEST_ERROR = math.log(1.4)  # from the median: one that is further off, as those that spill are, says little of its neighbours
FAILURE_SHARPNESS = 4  # failing carries less far than being slow
PER_FAMILY = 2000  # rows of each family that are watched, the cheapest estimates first
CONTENDERS = 400  # of the watched, for joint draws
DRAWS = 512
JITTER = 1e-6  # so that rounding leaves a covariance positive
MOST_SEEN = 256  # results that are learned from: of times the fastest, to learn of failures the latest
SLOW = "slow"
NO_VERDICT = ("compiled", "duplicate")  # no time, and yet no failure of the schedule; nor is what befell it at the moment


@dataclass(frozen=True)
class Posterior:
    """Of log seconds, one of each a row."""

    mean: Matrix
    sd: Matrix


class Surrogate:
    """The model's estimates, corrected by what became of the rows that were tried."""

    def __init__(self, candidates: Candidates, seed: int = 0) -> None:
        table, seconds = candidates.table, candidates.seconds
        self._family, self._seed = table.family, seed
        self._points = np.stack([_position(axis, table.columns[axis]) / LENGTHS[axis] for axis in AXES], axis=1)
        known = np.isfinite(seconds)
        self._log_estimate = np.log(np.where(known, seconds, seconds[known].max() if known.any() else 1.0))
        self._order = candidates.by_estimate()
        self._watched = np.zeros(len(table), dtype=bool)
        for code in range(len(table.families)):
            self._watched[self._order[table.family[self._order] == code][:PER_FAMILY]] = True
        self._seen: dict[int, Trial] = {}
        self._fit()

    def tell(self, trials: Sequence[Trial]) -> None:
        """What became of rows. One that was told of before counts as told last."""
        self._seen |= {trial.row: trial for trial in trials}
        self._fit()

    @property
    def best_seconds(self) -> float | None:
        """Of the rows that were timed properly."""
        return min((t.seconds for t in self._seen.values() if t.seconds is not None and t.status != SLOW), default=None)

    def posterior(self, rows: Rows) -> Posterior:
        mean = self._log_estimate[rows] + self._median + self._covariance(rows, self._timed) @ self._weights
        variance = SHARED_SD**2 + FAMILY_SD**2 + self._scale**2 - np.sum(self._explained(rows) ** 2, axis=0)
        return Posterior(mean, np.sqrt(np.maximum(variance, 0.0)))

    def chance_of_failure(self, rows: Rows) -> Matrix:
        """The share of failures among the rows tried, each counting by how near it is; one success is taken as seen everywhere."""
        tried = np.array([row for row, trial in self._seen.items() if has_verdict(trial)][-MOST_SEEN:], dtype=np.intp)
        failed = np.array([self._seen[row].seconds is None for row in tried], dtype=bool)
        near = self._likeness(rows, tried) ** FAILURE_SHARPNESS
        share: Matrix = near[:, failed].sum(axis=1) / (1.0 + near.sum(axis=1))
        return share

    def in_order(self, left: NDArray[np.bool_]) -> Rows:
        """The rows that are left, the one first that is expected to be fastest; those that are not watched come last, by estimate."""
        rows = np.flatnonzero(left & self._watched)
        expected = self.posterior(rows).mean - np.log1p(-self.chance_of_failure(rows))  # as if tried until it works
        unwatched = self._order[(left & ~self._watched)[self._order]]
        return np.concatenate([rows[np.argsort(expected, kind="stable")], unwatched])

    def most_promising(self, left: NDArray[np.bool_], count: int) -> list[int]:
        """Of the rows that are left, those that together promise the fastest schedule; the most promising first.

        Each is the one that most lowers the expected least time of all measured or chosen before it, over joint draws from the posterior.
        So twins of a chosen row, which are fast or slow with it, do not fill the list.
        """
        rows, times = self._draws(left)
        least = np.full(DRAWS, self.best_seconds or times.max(initial=0.0))
        chosen: list[int] = []
        while len(chosen) < min(count, len(rows)):
            gain = np.maximum(least[:, None] - times, 0.0).sum(axis=0)
            place = int(np.argmax(gain))
            if gain[place] <= 0.0:
                break
            chosen.append(int(rows[place]))
            least = np.minimum(least, times[:, place])
        rest = left.copy()
        rest[chosen] = False
        return [*chosen, *(int(row) for row in self.in_order(rest)[: count - len(chosen)])]

    def estimated_regret(self, left: NDArray[np.bool_]) -> float | None:
        """By how much, as a share of the best time measured, the fastest of the rows that are left is expected to be faster than it.

        It is the mean over joint draws from the posterior of the CONTENDERS likeliest rows, in which a draw where none is faster counts as
        0. None before anything was timed. It trusts the kernel: a kind of error that no axis tells is not in it.
        """
        best = self.best_seconds
        if best is None:
            return None
        _, times = self._draws(left)
        return max(1.0 - float(np.mean(times.min(axis=1, initial=best))) / best, 0.0)

    def _draws(self, left: NDArray[np.bool_]) -> tuple[Rows, Matrix]:
        """The contenders, and seconds[draw, contender]; where one fails, it is as slow as the slowest of all draws."""
        rows = np.flatnonzero(left & self._watched)
        posterior = self.posterior(rows)
        kept = np.argsort(posterior.mean - posterior.sd, kind="stable")[:CONTENDERS]
        rows, mean = rows[kept], posterior.mean[kept]
        explained = self._explained(rows)
        root = np.linalg.cholesky(self._covariance(rows, rows) - explained.T @ explained + JITTER * np.eye(len(rows)))
        random = np.random.default_rng(self._seed)
        seconds = np.exp(mean + random.standard_normal((DRAWS, len(rows))) @ root.T)
        fails = random.random(seconds.shape) < self.chance_of_failure(rows)
        return rows, np.where(fails, seconds.max(initial=0.0), seconds)

    def _fit(self) -> None:
        fastest = sorted((trial.seconds, row) for row, trial in self._seen.items() if trial.seconds is not None)[:MOST_SEEN]
        timed = {row: seconds for seconds, row in fastest}
        self._timed = np.array(list(timed), dtype=np.intp)
        errors = np.log(np.array(list(timed.values()), dtype=np.float64)) - self._log_estimate[self._timed]
        self._median = float(np.median(errors)) if len(errors) else 0.0
        errors = np.clip(errors - self._median, -LARGEST_ERROR, LARGEST_ERROR)
        noise = np.diag([SLOW_NOISE_SD**2 if self._seen[row].status == SLOW else NOISE_SD**2 for row in timed])
        best = -np.inf
        for scale in SCALES if timed else (SCALE_UNSEEN,):
            root = np.linalg.cholesky(self._covariance(self._timed, self._timed, scale) + noise.reshape(len(timed), len(timed)))
            whitened = np.linalg.solve(root, errors)
            likelihood = -0.5 * float(whitened @ whitened) - float(np.log(np.diag(root)).sum())
            if likelihood > best:
                best, self._scale, self._root, self._weights = likelihood, scale, root, np.linalg.solve(root.T, whitened)

    def _explained(self, rows: Rows) -> Matrix:
        """explained[seen, row]: what is known of each row; the sum over the seen of its squares is by how much its variance fell."""
        return np.linalg.solve(self._root, self._covariance(self._timed, rows))

    def _covariance(self, rows: Rows, others: Rows, scale: float | None = None) -> Matrix:
        """Of the errors of rows[i] and others[j]."""
        scale = self._scale if scale is None else scale
        shared: Matrix = SHARED_SD**2 + FAMILY_SD**2 * self._same_family(rows, others) + scale**2 * self._likeness(rows, others)
        return shared

    def _likeness(self, rows: Rows, others: Rows) -> Matrix:
        """How alike two schedules are by their axes: Matern 3/2, 1 for the same schedule."""
        a, b = self._points[rows], self._points[others]
        squared = (a**2).sum(axis=1)[:, None] + (b**2).sum(axis=1) - 2 * a @ b.T + FAMILY_DISTANCE**2 * ~self._same_family(rows, others)
        distance = np.sqrt(3 * np.maximum(squared, 0.0))
        likeness: Matrix = (1 + distance) * np.exp(-distance)
        return likeness

    def _same_family(self, rows: Rows, others: Rows) -> NDArray[np.bool_]:
        same: NDArray[np.bool_] = self._family[rows][:, None] == self._family[others]
        return same


def has_verdict(trial: Trial) -> bool:
    """Whether the result says something about the schedule."""
    return trial.status not in NO_VERDICT and not is_moments(trial.status)


def _position(axis: str, values: NDArray[np.int64]) -> Matrix:
    """In powers of two; what can be 0 counts from one more."""
    position: Matrix = np.log2(values + 1.0 if axis in FROM_ZERO else np.maximum(values, 1.0))
    return position
