"""The whole product of some values per axis as one table whose columns broadcast: what depends on few axes is computed once for each of
their combinations, not once for each schedule."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from search_spaces.schedule import AXES, Schedule
from search_spaces.table import ScheduleTable


@dataclass(frozen=True)
class ScheduleGrid(ScheduleTable):
    """One family's product. Each axis lies along a dimension of its own, in the order of `AXES`; rows are counted with the last axis
    running fastest. What is computed elementwise from a table, and never asks for its length, works on a grid as well."""

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(column.size for column in self.columns.values())

    def __len__(self) -> int:
        return math.prod(self.shape)

    def take(self, rows: NDArray[Any] | slice) -> ScheduleTable:
        """These rows, no longer as a grid."""
        shape = self.shape
        family = np.broadcast_to(self.family, shape).reshape(-1)[rows]
        return ScheduleTable(
            self.families, family, {axis: np.broadcast_to(column, shape).reshape(-1)[rows] for axis, column in self.columns.items()}
        )

    def schedule(self, row: int) -> Schedule:
        places = np.unravel_index(row, self.shape)
        values = {axis: int(column.flat[place]) for (axis, column), place in zip(self.columns.items(), places, strict=True)}
        return Schedule(family=self.families[0], **values)

    @staticmethod
    def product(family: str, axes: Mapping[str, Sequence[int]]) -> ScheduleGrid:
        """Axes that are not named stay at the value that means "not used"."""
        columns = {}
        for place, (axis, (_, unused)) in enumerate(AXES.items()):
            along = [-1 if dimension == place else 1 for dimension in range(len(AXES))]
            columns[axis] = np.array(axes.get(axis, (unused,)), dtype=np.int64).reshape(along)
        return ScheduleGrid((family,), np.zeros([1] * len(AXES), dtype=np.int64), columns)
