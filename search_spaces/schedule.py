"""How a product is cut up: one `Schedule`, or many of them as the columns of a `ScheduleTable`.

Enumeration, constraints and cost models work on the table; a single schedule is a table of one row, so that each rule is written once.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from search_spaces.errors import UserError

Column = NDArray[np.int32]

# axis -> (letter in the short text of a schedule, value that means "not used")
AXES: Mapping[str, tuple[str, int]] = {
    "cta_m": ("", 0),
    "cta_n": ("", 0),
    "cta_k": ("", 0),
    "warps": ("w", 4),
    "stages": ("s", 1),
    "split_k": ("k", 1),
    "group_m": ("g", 1),
    "persistent_ctas_per_sm": ("p", 0),
    "epilogue_subtile": ("e", 1),
    "flatten": ("f", 0),
}


class Tile(NamedTuple):
    """Extents along M, N and K."""

    m: int
    n: int
    k: int

    def __str__(self) -> str:
        return f"{self.m}x{self.n}x{self.k}"


@dataclass(frozen=True, kw_only=True)
class Schedule:
    """One way to run a product.

    group_m: rows of CTA tiles that are walked together before the next column (raster swizzle).
    persistent_ctas_per_sm: 0 launches one CTA a tile; p > 0 launches p CTAs per SM, each walking over tiles.
    epilogue_subtile: slices along N in which the accumulator is stored.
    flatten: 1 fuses a persistent CTA's loop over tiles with its loop over K, so that loads run on across tiles.
    """

    family: str
    cta_m: int
    cta_n: int
    cta_k: int
    warps: int = 4
    stages: int = 1
    split_k: int = 1
    group_m: int = 1
    persistent_ctas_per_sm: int = 0
    epilogue_subtile: int = 1
    flatten: int = 0

    @property
    def cta(self) -> Tile:
        return Tile(self.cta_m, self.cta_n, self.cta_k)

    def __str__(self) -> str:
        """The short text that the command line prints and reads: `tma 128x256x64 w8 s3 g8 p1 f1`; axes that are not used are left out."""
        used = (f"{letter}{getattr(self, axis)}" for axis, (letter, unused) in AXES.items() if letter and getattr(self, axis) != unused)
        return " ".join((self.family, str(self.cta), f"w{self.warps}" if self.warps == AXES["warps"][1] else "", *used)).replace("  ", " ")


def parse_schedule(text: str) -> Schedule:
    """The schedule whose short text this is."""
    family, _, rest = text.strip().partition(" ")
    words = rest.split()
    tile = re.fullmatch(r"(\d+)x(\d+)x(\d+)", words[0]) if words else None
    if not tile:
        raise UserError(f"schedule {text!r} does not begin with a family and a CTA tile; for example 'tma 128x256x64 w8 s3 g8'")
    values = dict(zip(("cta_m", "cta_n", "cta_k"), map(int, tile.groups()), strict=True))
    axis_of = {letter: axis for axis, (letter, _) in AXES.items() if letter}
    for word in words[1:]:
        if word[0] not in axis_of or not word[1:].isdigit():
            raise UserError(f"schedule word {word!r} is not a letter of {', '.join(axis_of)} and a number")
        values[axis_of[word[0]]] = int(word[1:])
    return Schedule(family=family, **values)


@dataclass(frozen=True)
class ScheduleTable:
    """Schedules as columns of equal length. `family` holds indices into `families`."""

    families: tuple[str, ...]
    family: Column
    columns: Mapping[str, Column]

    def __len__(self) -> int:
        return len(self.family)

    def __getattr__(self, axis: str) -> Column:
        try:
            return self.__dict__["columns"][axis]
        except KeyError:
            raise AttributeError(axis) from None

    def is_family(self, names: Iterable[str]) -> NDArray[np.bool_]:
        """True in the rows whose family is one of `names`."""
        return np.isin(self.family, [i for i, name in enumerate(self.families) if name in set(names)])

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
        family = np.array([families.index(s.family) for s in schedules], dtype=np.int32)
        return ScheduleTable(families, family, {axis: np.array([row[axis] for row in rows], dtype=np.int32) for axis in AXES})

    @staticmethod
    def concatenate(tables: Sequence[ScheduleTable]) -> ScheduleTable:
        families = tuple(dict.fromkeys(name for table in tables for name in table.families))
        recode = [np.array([families.index(name) for name in table.families], dtype=np.int32)[table.family] for table in tables]
        columns = {axis: np.concatenate([table.columns[axis] for table in tables]) for axis in AXES}
        return ScheduleTable(families, np.concatenate(recode), columns)
