"""How the tiles of a schedule lie in shared memory, and how many ways a warp conflicts at them.

The layouts are those that Triton 3.6 and 3.9 give operands (`swizzled_shared` and `nvmma_shared` of its IR); tests/test_banks.py keeps what
it compiled for five chips, with the conflicts of the addresses in the PTX. Left out: the order in which an accumulator that leaves through
pointers is regrouped (Triton works one out that has no conflicts), sums of a few words a warp, and TMA's own writes.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from itertools import product

import numpy as np
from numpy.typing import NDArray

from search_spaces.banks import BANKS, LANES, PHASE_BYTES, SWIZZLES, WORD_BYTES, Access, SharedTile, along_rows, matrices
from search_spaces.families import family
from search_spaces.hardware import Hardware
from search_spaces.lowering import (
    FMA,
    MMA_NAMES,
    MMA_SYNC,
    TCGEN05,
    WGMMA,
    Lowering,
    has_whole_chunks,
    loads_by_tma,
    lower_one,
    stores_by_tma,
)
from search_spaces.problem import Problem
from search_spaces.ringed import RingRules, ringed
from search_spaces.schedule import Schedule
from search_spaces.streaming import streams
from search_spaces.table import Column, ScheduleTable

FMA_BYTES = 4  # of an operand that FMAs multiply: it is made fp32 on its way into shared memory


@dataclass(frozen=True, kw_only=True)
class PlacedTile:
    """A tile of an operand in shared memory. operand: of the problem. name: Triton's. how: who reads or writes it there."""

    operand: str
    tile: SharedTile
    name: str
    how: str
    access: Access

    @property
    def ways(self) -> int:
        return self.access.ways


def widest_swizzle(row_bytes: int) -> int:
    return max(width for width in SWIZZLES if width <= row_bytes)


def placed_tiles(schedule: Schedule, problem: Problem, hardware: Hardware) -> list[PlacedTile]:
    """A and B, then C where it goes through shared memory as TMA stores it; nothing where operands go to registers directly."""
    low = lower_one(schedule, problem, hardware)
    loads, version = family(schedule.family).loads, int(low.mma_version[0])
    if loads == "stream":
        return []
    operands = [_operand(place, schedule, problem, loads, version) for place in (0, 1)]
    return [tile for parts in operands for tile in parts] + _staged(schedule, problem, loads, version)


def _operand(place: int, schedule: Schedule, problem: Problem, loads: str, version: int) -> list[PlacedTile]:
    """place: 0 for the first factor as the kernel sees it. One tile, or one for each part of the columns of a tile cut in two."""
    operand, along_k = _factor(place, bool(schedule.swap_ab), problem)
    outer = schedule.cta_n if place else schedule.cta_m
    rules = RingRules(ScheduleTable.of([schedule]), problem, has_whole_chunks(problem))
    rest = int(rules.rest[0]) if loads == "ring" and place else 0
    extents = [outer - rest, rest] if rest else [outer]
    return [_placed(operand, along_k, place, extent, schedule, (loads, version, problem.element_bytes)) for extent in extents]


def _factor(place: int, swapped: bool, problem: Problem) -> tuple[str, bool]:
    """Which operand of the problem it is, and whether its neighbours in memory are neighbours along K."""
    operand = "ab"[place ^ swapped]
    return operand, problem.b_transposed if operand == "b" else not problem.a_transposed


def _placed(operand: str, along_k: bool, place: int, extent: int, schedule: Schedule, how: tuple[str, int, int]) -> PlacedTile:
    loads, version, element_bytes = how
    rows, inner = (extent, schedule.cta_k) if along_k else (schedule.cta_k, extent)
    across = along_k == bool(place)  # rows of the tile in memory are columns of the factor
    if version == FMA:
        tile = SharedTile(rows=rows, row_elements=inner, element_bytes=FMA_BYTES)
        text = f"swizzled_shared<{{vec = 1, perPhase = 1, maxPhase = 1, order = {_order(across)}}}>"
        taken = _fma_read(tile, along_k, place, schedule)
        return PlacedTile(operand=operand, tile=tile, name=text, how="read by lanes, as fp32", access=taken)
    swizzle = widest_swizzle(inner * element_bytes)
    if loads == "ring" and schedule.swizzle_bytes:
        swizzle = min(swizzle, schedule.swizzle_bytes)
    tile = SharedTile(rows=rows, row_elements=inner, element_bytes=element_bytes, swizzle_bytes=swizzle)
    if loads == "pointer" and version == MMA_SYNC:
        per_phase = max(128 // tile.row_bytes, 1)
        text = f"swizzled_shared<{{vec = 8, perPhase = {per_phase}, maxPhase = {max(8 // per_phase, 1)}, order = {_order(across)}}}>"
    else:
        text = _nvmma(swizzle, loads == "pointer" and across, element_bytes)
    reader = "ldmatrix" if version == MMA_SYNC else MMA_NAMES[version]
    return PlacedTile(operand=operand, tile=tile, name=text, how=f"read by {reader}", access=matrices(tile))


def _order(across: bool) -> str:
    return "[0, 1]" if across else "[1, 0]"


def _nvmma(swizzle: int, transposed: bool, element_bytes: int) -> str:
    flag = "true" if transposed else "false"
    return f"nvmma_shared<{{swizzlingByteWidth = {swizzle}, transposed = {flag}, elementBitWidth = {8 * element_bytes}}}>"


def _fma_read(tile: SharedTile, along_k: bool, place: int, schedule: Schedule) -> Access:
    """One element a lane where a lane's neighbours lie along K; else all neighbours that a lane holds.

    The compiler joins some of the first to reads of four: 14 compiled kernels spend 0.4 to 1.0 of the clocks that single ones would.
    """
    size, lanes, _ = (int(column[0]) for column in fma_grid(ScheduleTable.of([schedule]), place))
    if not along_k:
        return Access(size * FMA_BYTES, tuple(tile.address(0, lane * size * FMA_BYTES) for lane in range(lanes)))
    return Access(FMA_BYTES, tuple(tile.address(lane * size, 0) for lane in range(lanes)))


def fma_grid(table: ScheduleTable, place: int) -> tuple[Column, Column, Column]:
    """Along M (place 0) or N (1) of a tile that FMAs multiply: neighbours in a thread, lanes side by side, and all that a thread has.

    Triton's default layout: 4, 2 or 1 neighbours both ways where a thread has 16, 4 or fewer elements; lanes, then warps, go along N while
    it lasts, the rest along M.
    """
    each = table.cta_m * table.cta_n // np.maximum(LANES * table.warps, 1)
    size = np.where(each >= 16, 4, np.where(each >= 4, 2, 1)).astype(np.int64)
    lanes_n = np.clip(table.cta_n // size, 1, LANES)
    warps_n = np.clip(table.cta_n // (size * lanes_n), 1, table.warps)
    if place:
        lanes, warps, extent = lanes_n, warps_n, table.cta_n
    else:
        lanes, warps, extent = LANES // lanes_n, np.maximum(table.warps // warps_n, 1), table.cta_m
    return size, lanes.astype(np.int64), np.maximum(extent // np.maximum(lanes * warps, 1), size).astype(np.int64)


def _staged(schedule: Schedule, problem: Problem, loads: str, version: int) -> list[PlacedTile]:
    """Tiles of C that TMA stores: rows of C, or of columns of the tile where the operands are exchanged."""
    table = ScheduleTable.of([schedule])
    if loads not in ("tma", "ring") or not stores_by_tma(table, problem).all() or schedule.split_k > 1 or schedule.stream_k:
        return []
    rules = RingRules(table, problem, True)
    widths = [int(rules.slice_width[0]), int(rules.rest[0])] if loads == "ring" else [schedule.cta_n // schedule.epilogue_subtile]
    found = []
    for width in (width for width in widths if width):
        rows, inner = (width, schedule.cta_m) if schedule.swap_ab else (schedule.cta_m, width)
        tile = _c_tile(rows, inner, problem.out_bytes)
        write, by = _accumulator_write(tile, bool(schedule.swap_ab), version)
        name = _nvmma(tile.swizzle_bytes, False, problem.out_bytes)
        found.append(PlacedTile(operand="c", tile=tile, name=name, how=f"written by {by}", access=write))
    return found


def _c_tile(rows: int, inner: int, out_bytes: int) -> SharedTile:
    return SharedTile(rows=rows, row_elements=inner, element_bytes=out_bytes, swizzle_bytes=widest_swizzle(inner * out_bytes))


def _accumulator_write(tile: SharedTile, swapped: bool, version: int) -> tuple[Access, str]:
    """How the accumulator reaches shared memory: 16-bit values by stmatrix; of 32-bit ones a lane of mma.sync and wgmma holds two
    neighbours of a row, four lanes a row of 8; tcgen05's lanes hold a row each."""
    size = tile.element_bytes
    if version == TCGEN05 and swapped:
        return along_rows(tile, size), "lanes, an element each"
    if version == TCGEN05 or size == 2:
        return matrices(tile), "lanes, 16 B each" if version == TCGEN05 else "stmatrix"
    if swapped:
        return Access(size, tuple(tile.address(lane % 4 * 2, lane // 4 * size) for lane in range(LANES))), "lanes, 4 B each"
    return Access(2 * size, tuple(tile.address(lane // 4, lane % 4 * 2 * size) for lane in range(LANES))), "lanes, 8 B each"


def conflict_wavefronts(table: ScheduleTable, lowering: Lowering, problem: Problem) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Clocks of an SM's shared memory that conflicts add: per K step of a CTA, and per tile of C. Zeros where no access conflicts.

    Tiles that tensor cores multiply are swizzled so that nothing conflicts. FMAs read operands whose rows lie along K column by column, and
    32-bit sums that TMA stores conflict as they are staged.
    """
    steps, tiles = np.zeros(table.shape), np.zeros(table.shape)
    by_fma = (lowering.mma_version == FMA) & ~streams(table)
    if by_fma.any():
        steps = np.where(by_fma, sum(_fma_conflicts(table, problem, place) for place in (0, 1)), 0.0)
    if problem.out_bytes == 4:
        staged = loads_by_tma(table) & stores_by_tma(table, problem) & (table.split_k == 1) & (table.stream_k == 0)
        tiles = np.where(staged, _c_conflicts(table, lowering, problem), 0.0)
    return steps, tiles


def _fma_conflicts(table: ScheduleTable, problem: Problem, place: int) -> NDArray[np.float64]:
    size, lanes, held = fma_grid(table, place)
    swapped = table.swap_ab == 1
    along_k = np.where(swapped, _factor(place, True, problem)[1], _factor(place, False, problem)[1])
    banks_hit = BANKS // np.gcd(size * table.cta_k * FMA_BYTES // WORD_BYTES, BANKS)
    ways = np.where(along_k, -(-lanes // banks_hit), 1)
    return np.asarray(table.warps.astype(np.float64) * table.cta_k * held * (ways - 1))


def _c_conflicts(table: ScheduleTable, lowering: Lowering, problem: Problem) -> NDArray[np.float64]:
    rules, ring, swapped = RingRules(table, problem, True), ringed(table), table.swap_ab == 1
    slices = np.where(ring, rules.slice_width, table.cta_n // np.maximum(table.epilogue_subtile, 1))
    rest = np.where(ring, rules.rest, 0)
    found = np.zeros(table.shape)
    for columns, width in ((table.cta_n - rest, slices), (rest, rest)):
        inner = np.where(swapped, table.cta_m, width)
        # rows of 32 elements fill the widest swizzle: longer ones conflict as they do
        ways = np.ones(table.shape)
        for few, is_swapped in product((8, 16, 32), (False, True)):
            ways = np.where((np.minimum(inner, 32) == few) & (swapped == is_swapped), _c_ways(few, is_swapped), ways)
        found += (ways - 1) * table.cta_m * columns * problem.out_bytes / PHASE_BYTES
    return np.where(lowering.mma_version == TCGEN05, 0.0, found)


@cache
def _c_ways(inner: int, swapped: bool) -> int:
    return _accumulator_write(_c_tile(LANES, inner, 4), swapped, WGMMA)[0].ways
