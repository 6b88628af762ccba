"""What a schedule of the family `wgmma` comes to before any tensor is seen: parts of a tile, layouts, how an SM's registers are shared out,
and what no kernel can be built for."""

from __future__ import annotations

from typing import Any

import triton.experimental.gluon.language as gl


def shared_layout(dtype_bits: int, box: tuple[int, int], swizzle_bytes: int) -> gl.NVMMASharedLayout:
    """swizzle_bytes: 0 takes the widest that a row of the box fills."""
    widest = max(width for width in (0, 32, 64, 128) if width <= box[1] * dtype_bits // 8)
    return gl.NVMMASharedLayout(swizzle_byte_width=min(swizzle_bytes or 128, widest), element_bitwidth=dtype_bits, rank=2)


def part_widths(cta_n: int) -> tuple[int, ...]:
    """The powers of two that a tile's columns are made of, the widest first."""
    return tuple(1 << bit for bit in reversed(range(cta_n.bit_length())) if cta_n >> bit & 1)


def instruction_n(schedule: Any, width: int) -> int:
    """N of the wgmma: the widest that a warp's part of these columns has room for, unless the schedule names one."""
    return int(schedule.instruction_n) or min(width // max(schedule.warps_n, 1), 256)


def mma_layouts(schedule: Any) -> tuple[gl.NVMMADistributedLayout, ...]:
    warps_n = max(schedule.warps_n, 1)
    warps = [schedule.warps // schedule.consumers // warps_n, warps_n]
    return tuple(
        gl.NVMMADistributedLayout(version=[3, 0], warps_per_cta=warps, instr_shape=[16, instruction_n(schedule, width), 16])
        for width in part_widths(schedule.cta_n)
    )


def slice_widths(schedule: Any) -> tuple[int, ...]:
    """Columns of a slice of each part of a tile. The second part is one slice."""
    first, *rest = part_widths(schedule.cta_n)
    return (first // schedule.epilogue_subtile, *rest)


def store_boxes(schedule: Any) -> list[tuple[int, int]]:
    """Rows and columns of C that one TMA store of each part writes."""
    return [(width, schedule.cta_m) if schedule.swap_ab else (schedule.cta_m, width) for width in slice_widths(schedule)]


def epilogue_buffers(schedule: Any) -> int:
    """Slices of a tile's first part that are on their way out of a consumer at once."""
    return 2 if schedule.epilogue_subtile > 2 else 1


def resident_ctas(schedule: Any, out_bytes: int) -> int:
    """CTAs that are to share an SM; without a persistent grid as many as find shared memory, and registers enough not to spill.

    out_bytes: of an element of C where TMA stores it, 0 where it leaves through pointers.
    """
    if schedule.persistent_ctas_per_sm:
        return int(schedule.persistent_ctas_per_sm)
    width, *rest = slice_widths(schedule)
    leaving = schedule.consumers * schedule.cta_m * (epilogue_buffers(schedule) * width + sum(rest))
    taken = 2 * schedule.stages * (schedule.cta_m + schedule.cta_n) * schedule.cta_k + leaving * out_bytes
    widest = instruction_n(schedule, part_widths(schedule.cta_n)[0])
    accumulators = schedule.cta_m * schedule.cta_n * schedule.consumers // (32 * schedule.warps)
    for ctas in (4, 3, 2):
        enough = launch_registers(schedule, ctas) >= widest // 2 + 26 and consumer_registers(schedule, ctas) >= accumulators + 80
        if enough and ctas * (taken + 1536) <= 233472:  # barriers, and 1 KiB that every CTA gives up
            return ctas
    return 1


def launch_registers(schedule: Any, ctas: int) -> int:
    """Registers a thread that a CTA is launched with: all that an SM has, by the CTAs that are to share it."""
    return min(65536 // (32 * (schedule.warps + 4) * ctas) // 8 * 8, 256)


def consumer_registers(schedule: Any, ctas: int) -> int:
    """What a thread of the consumers gets when the producer's warp group, of 4 warps, has given back what it does not need."""
    launched = launch_registers(schedule, ctas) * (schedule.warps + 4)
    return min((launched - 4 * producer_registers(schedule)) // schedule.warps // 8 * 8, 256)


def producer_registers(schedule: Any) -> int:
    return int(schedule.producer_registers) or 24  # the fewest that a warp can have


def tile_obstacle(schedule: Any) -> str | None:
    """Why a tile cannot be cut into instructions."""
    widths, warps_n = part_widths(schedule.cta_n), max(schedule.warps_n, 1)
    n, warps_m = instruction_n(schedule, widths[0]), schedule.warps // schedule.consumers // warps_n
    if len(widths) > 1 and (len(widths) > 2 or widths[1] < 16 or warps_n * schedule.consumers > 1 or schedule.instruction_n):
        return f"a tile of {schedule.cta_n} columns; it must be a power of two, or the sum of two from 16 on, with neither n, i nor c"
    if schedule.consumers not in (1, 2) or warps_m % 4 or warps_m * warps_n * schedule.consumers != schedule.warps:
        return f"{schedule.warps} warps for {schedule.consumers} consumers of {warps_n} along N: each needs a multiple of 4 along M"
    if schedule.cta_m % 64 or warps_m * 16 > schedule.cta_m:
        return f"{warps_m} warps of 16 rows along M for a tile of {schedule.cta_m} rows; it must have as many, and a multiple of 64"
    if n % 8 or n > 256 or widths[0] % (n * warps_n):
        return f"instruction N {n} for {warps_n} warps along {schedule.cta_n} columns; it must divide a warp's, a multiple of 8 up to 256"
    return None


def wgmma_obstacle(schedule: Any, steps: int) -> str | None:
    """Why no kernel can be built for the schedule, with `steps` steps of K to a tile; None where one can."""
    if tile_obstacle(schedule):
        return tile_obstacle(schedule)
    warps_n, slices, first = max(schedule.warps_n, 1), schedule.epilogue_subtile, part_widths(schedule.cta_n)[0]
    width, least = first // slices, max(8, schedule.cta_n - first)
    if schedule.split_k == 1 and (width < least or width * slices != first):
        return f"{slices} slices of {first} of the tile's {schedule.cta_n} columns; each must hold a power of two, {least} at least"
    if schedule.split_k == 1 and warps_n > 1 and width % (instruction_n(schedule, schedule.cta_n) * warps_n):
        return f"a slice of {width} columns; it must hold whole instructions of all {warps_n} warps along N"
    if schedule.stages < 2:
        return f"{schedule.stages} stages; a step's buffers are given back while the next one runs, which takes 2"
    if schedule.flatten and (schedule.consumers > 1 or steps < 2):
        return f"flatten with {schedule.consumers} consumers and {steps} steps of K; it needs 1 consumer and 2 steps"
    return None


EXPORTS = (
    *(shared_layout, part_widths, instruction_n, mma_layouts, slice_widths, store_boxes, epilogue_buffers, resident_ctas),
    *(launch_registers, consumer_registers, producer_registers, tile_obstacle, wgmma_obstacle),
)
