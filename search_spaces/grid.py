"""The whole product of some values per axis as one table whose columns broadcast: what depends on few axes is computed once for each of
their combinations, not once for each schedule."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
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
        numbers = np.arange(len(self))[rows] if isinstance(rows, slice) or rows.dtype == bool else rows
        family, *columns = values_at([self.family, *self.columns.values()], self.shape, numbers)
        return ScheduleTable(self.families, family, dict(zip(self.columns, columns, strict=True)))

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


def values_at(columns: Iterable[NDArray[Any]], shape: tuple[int, ...], rows: NDArray[np.intp]) -> list[NDArray[Any]]:
    """What these rows of a table of this shape have in columns that broadcast to it, without making the others."""
    places = np.unravel_index(rows, shape)
    index: dict[tuple[int, ...], NDArray[np.intp]] = {}
    found = []
    for column in columns:
        sizes = (1,) * (len(shape) - column.ndim) + column.shape
        if sizes not in index:
            index[sizes] = _index(places, sizes, len(rows))
        found.append(column.reshape(-1)[index[sizes]])
    return found


def _index(places: Sequence[NDArray[np.intp]], sizes: tuple[int, ...], count: int) -> NDArray[np.intp]:
    index = np.zeros(count, dtype=np.intp)
    for size, place in zip(sizes, places, strict=True):
        if size > 1:
            index = index * size + place
    return index
