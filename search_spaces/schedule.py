"""How a product is cut up: one `Schedule`, its axes and its short text. Many schedules at once are a `ScheduleTable`, in `table`."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

from search_spaces.errors import UserError

# axis -> (letter in the short text of a schedule, value that means "not used")
AXES: Mapping[str, tuple[str, int]] = {
    "cta_m": ("", 0),
    "cta_n": ("", 0),
    "cta_k": ("", 0),
    "warps": ("w", 0),
    "stages": ("s", 0),
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
        return " ".join((self.family, str(self.cta), *used))


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
