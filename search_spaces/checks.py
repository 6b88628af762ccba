"""What a constraint is: what it may look at, and what it answers. The constraints themselves are in `constraints` and `ring_checks`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from search_spaces.hardware import Hardware
from search_spaces.lowering import Lowering, has_whole_chunks, loads_by_tma
from search_spaces.problem import Problem
from search_spaces.ringed import RingRules, ringed
from search_spaces.streaming import streams
from search_spaces.table import ScheduleTable


@dataclass(frozen=True)
class Facts:
    """All that a constraint may look at."""

    table: ScheduleTable
    problem: Problem
    hardware: Hardware
    lowering: Lowering

    @property
    def tma(self) -> NDArray[np.bool_]:
        return loads_by_tma(self.table)

    @property
    def stream(self) -> NDArray[np.bool_]:
        return streams(self.table)

    @property
    def ring(self) -> NDArray[np.bool_]:
        return ringed(self.table)

    @property
    def ring_rules(self) -> RingRules:
        return RingRules(self.table, self.problem, has_whole_chunks(self.problem))


@dataclass(frozen=True)
class Check:
    """What each row needs against what there is. `ok` says which rows pass; left out, those that need no more than the limit.

    `sentence` is a format string over `need`, `limit`, `gpu`, `family`, the names of the schedule's axes, and `axis`: that one's name.
    """

    sentence: str
    need: ArrayLike
    limit: ArrayLike
    ok: NDArray[np.bool_] | None = None
    axis: NDArray[np.int64] | int = 0  # which one the sentence is about, by its place in AXES

    def passes(self) -> NDArray[np.bool_]:
        """Broadcasts to the rows."""
        return self.ok if self.ok is not None else np.asarray(np.asarray(self.need) <= np.asarray(self.limit))


@dataclass(frozen=True)
class Constraint:
    name: str
    reason: str
    check: Callable[[Facts], Check]
