"""What a model says a schedule costs: one `Estimate`, or an `EstimateTable` of columns beside a `ScheduleTable`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Seconds = NDArray[np.float64]


@dataclass(frozen=True)
class Estimate:
    """Seconds of one launch and what they are made of.

    terms: seconds that each resource is busy on its own. `overlapped_seconds` is their maximum, which no kernel can beat if the figures
    of the hardware are right; `serial_seconds` their sum, what a kernel takes that overlaps nothing.
    """

    seconds: float
    limiter: str
    terms: Mapping[str, float]
    facts: Mapping[str, float]

    @property
    def overlapped_seconds(self) -> float:
        return max(self.terms.values())

    @property
    def serial_seconds(self) -> float:
        return sum(self.terms.values())


@dataclass(frozen=True)
class EstimateTable:
    """Estimates of many schedules. `facts` are what explains them and is no time: waves, occupancy, hit shares."""

    seconds: Seconds
    terms: Mapping[str, Seconds]
    facts: Mapping[str, Seconds]

    def __len__(self) -> int:
        return len(self.seconds)

    def row(self, row: int) -> Estimate:
        terms = {name: float(column[row]) for name, column in self.terms.items()}
        facts = {name: float(column[row]) for name, column in self.facts.items()}
        return Estimate(float(self.seconds[row]), max(terms, key=lambda name: terms[name]), terms, facts)

    def order(self) -> NDArray[np.intp]:
        """Rows from fastest to slowest; equal ones stay in their order."""
        return np.argsort(self.seconds, kind="stable")
