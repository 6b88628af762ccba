"""Which share of the K steps a CTA takes where tiles are not worked on whole, and how the last CTA of a tile to arrive adds the parts: in
one fixed order, so that the same input gives the same bits; or, where that was asked for, as they come.

No CTA ever waits for another, so that nothing depends on which of them are resident at once.
"""

from __future__ import annotations

from typing import Any

import triton
import triton.language as tl

from tuner.kernels.launch import Scratch


@triton.jit
def whole_tiles(tiles, ctas):
    """How many tiles are worked on whole under stream-K: all, where they go round; else so many that each CTA keeps between one and two
    tiles' steps to share. A part of less than a tile costs its CTA as long a prologue and a sum that nothing hides."""
    return tl.where(tiles % ctas == 0, tiles, tl.maximum(tiles // ctas - 1, 0) * ctas)


@triton.jit
def first_unit(cta, units, ctas):
    """Where the share of a CTA begins: the first CTAs take one unit more where units do not go round."""
    return units // ctas * cta + tl.minimum(cta, units % ctas)


@triton.jit
def owner_of(unit, units, ctas):
    """Which CTA's share a unit is in."""
    least, more = units // ctas, units % ctas
    early = unit // (least + 1)
    return tl.where(early < more, early, (unit - more) // tl.maximum(least, 1))


@triton.jit
def store_part(partials, slot, block):
    """Puts an fp32 tile into its slot, whole."""
    CTA_M: tl.constexpr = block.shape[0]
    CTA_N: tl.constexpr = block.shape[1]
    offsets = tl.arange(0, CTA_M)[:, None] * CTA_N + tl.arange(0, CTA_N)[None, :]
    tl.store(partials + tl.cast(slot, tl.int64) * (CTA_M * CTA_N) + offsets, block)


@triton.jit
def add_to_sum(partials, slot, block):
    """Adds an fp32 tile to the slot's, which was zero before the first one came: in whatever order they come."""
    CTA_M: tl.constexpr = block.shape[0]
    CTA_N: tl.constexpr = block.shape[1]
    offsets = tl.arange(0, CTA_M)[:, None] * CTA_N + tl.arange(0, CTA_N)[None, :]
    tl.atomic_add(partials + tl.cast(slot, tl.int64) * (CTA_M * CTA_N) + offsets, block, sem="relaxed")


@triton.jit
def is_last(arrivals, tile, count):
    """Whether all `count` parts of the tile are stored now, this CTA's as the last. The counter is then zero again, for the next launch."""
    tl.debug_barrier()  # the whole CTA's part is stored before one thread says so
    last = tl.atomic_add(arrivals + tile, 1, sem="acq_rel") == count - 1
    if last:
        tl.store(arrivals + tile, 0)
    return last


@triton.jit
def add_parts(
    partials,
    c,
    row,
    column,
    M,
    N,
    stride_cm,
    first,
    second,
    step,
    count,
    CTA_M: tl.constexpr,
    CTA_N: tl.constexpr,
    CHUNK: tl.constexpr,
    AT_ONCE: tl.constexpr,
    SWAPPED: tl.constexpr,
    TO_ZERO: tl.constexpr,
):
    """C's tile at (row, column) from its `count` parts, in the slots first, second, second + step, ... TO_ZERO: the first is zero then."""
    columns = tl.arange(0, CTA_N)[None, :]
    width: tl.constexpr = CTA_M * CTA_N
    for chunk in range(CTA_M // CHUNK):
        rows = chunk * CHUNK + tl.arange(0, CHUNK)[:, None]
        inside = (rows < M - row) & (columns < N - column)
        offsets = rows * CTA_N + columns
        total = tl.load(partials + tl.cast(first, tl.int64) * width + offsets, mask=inside, other=0.0, cache_modifier=".cg")
        # unrolled, so that the parts are under way together: a way to L2 and back takes as long as adding ten thousand elements
        for part in tl.static_range(AT_ONCE - 1):
            place = partials + tl.cast(second + part * step, tl.int64) * width
            there = inside & (rows < tl.where(part + 1 < count, CTA_M, 0))
            total += tl.load(place + offsets, mask=there, other=0.0, cache_modifier=".cg")
        for part in range(AT_ONCE - 1, count - 1):
            place = partials + tl.cast(second + part * step, tl.int64) * width
            total += tl.load(place + offsets, mask=inside, other=0.0, cache_modifier=".cg")
        if TO_ZERO:
            tl.debug_barrier()  # all threads have read
            tl.store(partials + tl.cast(first, tl.int64) * width + offsets, tl.zeros((CHUNK, CTA_N), tl.float32))
        if SWAPPED:
            corner = c + tl.cast(column, tl.int64) * stride_cm + row
            tl.store(corner + columns * stride_cm + rows, total.to(c.dtype.element_ty), mask=inside)
        else:
            corner = c + tl.cast(row, tl.int64) * stride_cm + column
            tl.store(corner + rows * stride_cm + columns, total.to(c.dtype.element_ty), mask=inside)


@triton.jit
def add_splits(
    partials,
    c,
    row,
    column,
    M,
    N,
    stride_cm,
    tile,
    SPLIT_K: tl.constexpr,
    CTA_M: tl.constexpr,
    CTA_N: tl.constexpr,
    CHUNK: tl.constexpr,
    SWAPPED: tl.constexpr,
    UNORDERED: tl.constexpr,
):
    """C's tile from the parts of its splits, or from the sum that they were added to as they came."""
    if UNORDERED:
        add_parts(partials, c, row, column, M, N, stride_cm, tile, tile, 1, 1, CTA_M, CTA_N, CHUNK, 1, SWAPPED, True)
    else:
        first = tile * SPLIT_K
        add_parts(
            partials, c, row, column, M, N, stride_cm, first, first + 1, 1, SPLIT_K, CTA_M, CTA_N, CHUNK, min(SPLIT_K, 8), SWAPPED, False
        )


def is_unordered(schedule: Any) -> bool:
    """Whether partial sums are added as they come, so that bits may differ from run to run."""
    return bool(schedule.split_k > 1 and schedule.fused_reduction == 2)


def chunk_rows(schedule: Any) -> int:
    """Rows of a tile that are added at once."""
    elements = 32 * 32 * schedule.warps  # 32 a thread: of four parts at once in flight, as many registers as an accumulator takes
    return int(max(min(elements // schedule.cta_n, schedule.cta_m), 1))


def part_scratch(schedule: Any, tiles: int, ctas: int) -> dict[str, Scratch]:
    """What the parts of tiles need, with `ctas` CTAs in a persistent grid: an empty dict where tiles are worked on whole."""
    if schedule.stream_k:
        slots, counters = 2 * ctas, min(tiles, 2 * ctas)
    elif schedule.split_k > 1 and schedule.fused_reduction:
        slots, counters = tiles * (1 if is_unordered(schedule) else schedule.split_k), tiles
    else:
        return {}
    partials = Scratch("fp32", (slots, schedule.cta_m, schedule.cta_n), is_unordered(schedule))
    return {"partials": partials, "arrivals": Scratch("int32", (counters,), True)}


def partition_obstacle(a: Any, b: Any, schedule: Any) -> str | None:
    """Why K cannot be shared out like this; a and b as the kernel sees them."""
    if schedule.swap_ab and schedule.split_k > 1 and not schedule.fused_reduction:
        return "swap_ab with split_k needs fused_reduction: the second launch adds parts of C, not of C^T"
    if not schedule.stream_k:
        return None
    if schedule.split_k > 1 or schedule.persistent_ctas_per_sm < 1:
        return f"stream_k with split_k = {schedule.split_k} and {schedule.persistent_ctas_per_sm} CTAs per SM; it needs 1 and at least 1"
    steps = -(-a.shape[0] // schedule.cta_m) * -(-b.shape[1] // schedule.cta_n) * -(-a.shape[1] // schedule.cta_k)
    return f"{steps} steps of all tiles pass 2**30, the most that are counted" if steps > 2**30 else None


EXPORTS = (
    *(partition_obstacle, whole_tiles, first_unit, owner_of, store_part, add_to_sum, is_last, add_parts, add_splits, is_unordered),
    *(chunk_rows, part_scratch),
)
