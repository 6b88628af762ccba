"""How a product is cut up: one `Schedule`, its axes and its short text. Many schedules at once are a `ScheduleTable`, in `table`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

from search_spaces.errors import UserError
from search_spaces.plain_text import shown, whole_number

LARGEST_VALUE = 2**20  # of any axis: more than any constraint lets through
UNORDERED = 2  # of `fused_reduction`: parts are added as they come, and bits may differ from run to run

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
    "stream_k": ("q", 0),
    "fused_reduction": ("r", 0),
    "swap_ab": ("x", 0),
    "pad": ("d", 0),
    "warps_n": ("n", 0),
    "instruction_n": ("i", 0),
    "consumers": ("c", 1),
    "producer_registers": ("h", 0),
    "swizzle_bytes": ("z", 0),
}
ALWAYS = ("cta_m", "cta_n", "cta_k", "warps", "stages")  # axes that every schedule names: none of their values means "not used"


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
    epilogue_subtile: slices along N in which the accumulator is stored. Where `cta_n` is 128 + 64, of the 128; the 64 are one slice.
    flatten: 1 fuses a persistent CTA's loop over tiles with its loop over K, so that loads run on across tiles.
    stream_k: 1 gives persistent CTAs equal shares of all K steps, whole tiles where there are enough, parts of tiles for the rest.
    fused_reduction: 1 lets the last CTA of a tile to arrive add split-K's partial sums, always in the order of the splits; with 2 each CTA
        adds its own to one sum as it comes, so that bits may differ from run to run, and only who asks for it has it; 0 adds them in a
        second launch.
    swap_ab: 1 computes C^T = B^T A^T: `cta_m` then lies along N of the problem and `cta_n` along M.
    pad: 1 first copies operands whose rows are not 16-byte aligned to matrices whose rows are.
    warps_n: warps along N of the warp grid, where the family does not derive it.
    instruction_n: N of the MMA instruction, where the family does not derive it.
    consumers: output tiles that a CTA works on at once, each by its share of the warps (2: ping-pong).
    producer_registers: registers a thread of the warps that only load.
    swizzle_bytes: width of the swizzle of operands in shared memory.
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
    stream_k: int = 0
    fused_reduction: int = 0
    swap_ab: int = 0
    pad: int = 0
    warps_n: int = 0
    instruction_n: int = 0
    consumers: int = 1
    producer_registers: int = 0
    swizzle_bytes: int = 0

    def __post_init__(self) -> None:
        """Here, whoever makes a schedule: a larger value would wrap in what is computed from it."""
        for axis in AXES:
            value = getattr(self, axis)
            if type(value) is not int or not 0 <= value <= LARGEST_VALUE:
                what = f"{axis} of a schedule of family {shown(self.family)}"
                raise UserError(f"{what} is {shown(value, quotes=False)}; give a whole number from 0 to {LARGEST_VALUE}")

    @property
    def cta(self) -> Tile:
        return Tile(self.cta_m, self.cta_n, self.cta_k)

    def __str__(self) -> str:
        """The short text that the command line prints and reads: `tma 128x256x64 w8 s3 g8 p1 f1`; axes that are not used are left out."""
        words = (f"{letter}{getattr(self, axis)}" for axis, (letter, _) in AXES.items() if letter and self._is_shown(axis))
        return " ".join((self.family, str(self.cta), *words))

    def _is_shown(self, axis: str) -> bool:
        return axis in ALWAYS or getattr(self, axis) != AXES[axis][1]


def parse_schedule(text: str) -> Schedule:
    """The schedule whose short text this is."""
    family, *words = text.split() or [""]
    tile = words[0].split("x") if words else []
    if len(tile) != 3:
        raise UserError(f"schedule {shown(text)} does not begin with a family and a CTA tile; for example 'tma 128x256x64 w8 s3 g8'")
    values = {axis: _value(text, axis, word) for axis, word in zip(("cta_m", "cta_n", "cta_k"), tile, strict=True)}
    axis_of = {letter: axis for axis, (letter, _) in AXES.items() if letter}
    for word in words[1:]:
        axis = axis_of.get(word[0], "")
        if not axis:
            raise UserError(f"schedule word {shown(word)} is not a letter of {', '.join(axis_of)} and a number")
        if axis in values:
            raise UserError(f"schedule {shown(text)} gives {word[0]}, {axis}, twice; give it once")
        values[axis] = _value(text, axis, word[1:])
    return Schedule(family=family, **values)


def _value(text: str, axis: str, word: str) -> int:
    return whole_number(word, f"{axis} of schedule {shown(text)}", most=LARGEST_VALUE)
