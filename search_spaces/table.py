"""Many schedules as numpy columns: what enumeration, constraints and cost models work on.

A single schedule is a table of one row, so that each rule is written once.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass

import numpy as np
from numpy.typing import NDArray

from search_spaces.schedule import AXES, Schedule

Column = NDArray[np.int64]  # whatever it holds: products with the extents of a problem are far over 32 bits


@dataclass(frozen=True)
class ScheduleTable:
    """Schedules as columns of equal length. `family` holds indices into `families`."""

    families: tuple[str, ...]
    family: Column
    columns: Mapping[str, Column]

    def __len__(self) -> int:
        return len(self.family)

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape that whatever is computed from the columns broadcasts to."""
        return self.family.shape

    def __getattr__(self, axis: str) -> Column:
        try:
            columns: Mapping[str, Column] = self.__dict__["columns"]
            return columns[axis]
        except KeyError:
            raise AttributeError(axis) from None

    def is_family(self, names: Iterable[str]) -> NDArray[np.bool_]:
        """True in the rows whose family is one of `names`."""
        wanted = set(names)
        return np.array([name in wanted for name in self.families], dtype=bool)[self.family]

    def take(self, rows: NDArray[np.bool_] | NDArray[np.intp] | slice) -> ScheduleTable:
        return ScheduleTable(self.families, self.family[rows], {axis: column[rows] for axis, column in self.columns.items()})

    def schedule(self, row: int) -> Schedule:
        return Schedule(family=self.families[int(self.family[row])], **{axis: int(column[row]) for axis, column in self.columns.items()})

    def schedules(self) -> list[Schedule]:
        return [self.schedule(row) for row in range(len(self))]

    @staticmethod
    def of(schedules: Sequence[Schedule]) -> ScheduleTable:
        families = tuple(dict.fromkeys(s.family for s in schedules))
        rows = [asdict(s) for s in schedules]
        family = np.array([families.index(s.family) for s in schedules], dtype=np.int64)
        return ScheduleTable(families, family, {axis: np.array([row[axis] for row in rows], dtype=np.int64) for axis in AXES})

    @staticmethod
    def concatenate(tables: Sequence[ScheduleTable]) -> ScheduleTable:
        families = tuple(dict.fromkeys(name for table in tables for name in table.families))
        recode = [np.array([families.index(name) for name in table.families], dtype=np.int64)[table.family] for table in tables]
        columns = {axis: np.concatenate([table.columns[axis] for table in tables]) for axis in AXES}
        return ScheduleTable(families, np.concatenate(recode), columns)
