"""Which tiles are worked on side by side, and so what they share: the footprint of consecutive CTAs in the grouped raster order, the DRAM
traffic of a launch and the L2 traffic of a K step.

Consecutive CTAs are taken to advance together; that they drift apart is left out, as are the two halves of L2.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from search_spaces.lowering import Lowering
from search_spaces.problem import Problem
from search_spaces.table import ScheduleTable

Values = NDArray[np.float64]


def footprint(ctas: Values, table: ScheduleTable, lowering: Lowering) -> tuple[Values, Values]:
    """(rows, columns) of tiles that so many consecutive CTAs cover, on average.

    The grouped order walks `group_m` rows of tiles column by column, then the next rows. No more CTAs count than there are tiles.
    """
    tiles_m, tiles_n = lowering.tiles_m.astype(np.float64), lowering.tiles_n.astype(np.float64)
    group = np.minimum(table.group_m, tiles_m)
    ctas = np.minimum(ctas, tiles_m * tiles_n)
    per_group = group * tiles_n
    rows = np.where(ctas <= group, ctas, np.where(ctas <= per_group, group, ctas / tiles_n))
    columns = np.where(ctas <= group, 1.0, np.where(ctas <= per_group, ctas / group, tiles_n))
    return np.asarray(rows), np.asarray(columns)


def l2_step_elements(ctas: float, work: Values, tile: tuple[Values, Values], table: ScheduleTable, lowering: Lowering) -> Values:
    """Rows of A and columns of B that one CTA asks L2 for in a K step, when `ctas` neighbours that want the same ones are served at once.

    H100's L2 merges the requests of neighbouring SMs: at 4096^3 on an H200 128x64 tiles slow down by 10 % and 64x128 tiles gain 20 % from
    group_m 1 to 16, though L2's and DRAM's footprints are the same: what counts is that the larger operand is shared by neighbours.
    """
    together = np.minimum(ctas, work)
    rows, columns = footprint(together, table, lowering)
    return np.asarray((rows * tile[0] + columns * tile[1]) / together)


def dram_bytes(work: Values, slots: Values, keep_bytes: float, table: ScheduleTable, lowering: Lowering, problem: Problem) -> Values:
    """Operand bytes read from DRAM by the whole launch of `work` CTAs, `slots` at a time.

    More CTAs than tiles share out K between them. A wave needs each row and column of tiles that it covers once. An operand of at most
    `keep_bytes` stays in L2 between waves and is read once.
    """
    wave = np.minimum(slots, work)
    rows, columns = footprint(wave, table, lowering)
    waves = np.maximum(work / wave, 1.0)
    splits = np.maximum(wave / lowering.tiles, 1.0)  # parts of K that are worked on at the same time
    row_bytes = float(problem.k) * problem.element_bytes
    k_bytes = row_bytes / (work / lowering.tiles) * waves * splits
    whole_a, whole_b = lowering.m * row_bytes, lowering.n * row_bytes
    read_a = np.where(whole_a <= keep_bytes, whole_a, np.minimum(rows * table.cta_m, lowering.m) * k_bytes)
    read_b = np.where(whole_b <= keep_bytes, whole_b, np.minimum(columns * table.cta_n, lowering.n) * k_bytes)
    return np.asarray(np.maximum(read_a, whole_a) + np.maximum(read_b, whole_b))
