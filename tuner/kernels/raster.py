"""In which order the tiles of an output are worked on, so that CTAs that run together share rows of A and columns of B in L2."""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def tile_of(index, tiles_m, tiles_n, GROUP_M: tl.constexpr):
    """(row, column) of the tile at place `index`: GROUP_M rows of tiles are walked together, column by column; the last may be fewer."""
    per_group = GROUP_M * tiles_n
    first_row = index // per_group * GROUP_M
    rows = min(tiles_m - first_row, GROUP_M)
    place = index % per_group
    return first_row + place % rows, place // rows


EXPORTS = (tile_of,)
