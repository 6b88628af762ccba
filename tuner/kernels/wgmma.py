"""The family `wgmma`, for sm_90: a producer warp fills a ring of buffers by TMA and 4 or 8 consumer warps multiply by wgmma. The warp grid,
the instruction's N, the swizzle width and the producer's registers are axes. Written in Gluon, Triton's language of explicit layouts."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import triton
import triton.experimental.gluon.language as gl
from triton.experimental import gluon
from triton.experimental.gluon.language.nvidia.hopper import fence_async_shared, mbarrier, tma
from triton.experimental.gluon.nvidia import hopper

from tuner.kernels import launch, raster, reduction, wgmma_parts, wgmma_plan
from tuner.kernels import tma as tma_family
from tuner.kernels.launch import Call, Scratch, exchanged, tensor_obstacle
from tuner.kernels.reduction import split_scratch, sum_splits_call
from tuner.kernels.tma import descriptor_obstacle, stored, tma_stores
from tuner.kernels.wgmma_parts import (
    awaited,
    barriers,
    multiply_on,
    multiply_step,
    next_slot,
    packed_parts,
    part_buffers,
    parts_of,
    tile_buffers,
    wgmma_load,
    wgmma_place,
    wgmma_store,
    zero_parts,
)
from tuner.kernels.wgmma_plan import (
    consumer_registers,
    epilogue_buffers,
    launch_registers,
    mma_layouts,
    part_widths,
    producer_registers,
    resident_ctas,
    shared_layout,
    store_boxes,
    wgmma_obstacle,
)

if TYPE_CHECKING:
    import torch


@gluon.jit
def wgmma_multiply(
    c, a_buffers, b_buffers, c_buffers, full, empty, turns, M, N, K, stride_cm,
    CTA_M: gl.constexpr, CTA_N: gl.constexpr, CTA_K: gl.constexpr, GROUP_M: gl.constexpr, SPLIT_K: gl.constexpr,
    STAGES: gl.constexpr, A_TRANSPOSED: gl.constexpr, B_TRANSPOSED: gl.constexpr, TMA_STORE: gl.constexpr,
    LAYOUTS: gl.constexpr, SWAPPED: gl.constexpr, CONSUMERS: gl.constexpr, CONSUMER: gl.constexpr,
):  # fmt: skip
    """A consumer. With two, each takes every other tile, and they take turns: one multiplies while the other stores."""
    dtype: gl.constexpr = c[0].dtype if TMA_STORE else c[0].dtype.element_ty
    zeros = zero_parts(CTA_M, b_buffers, B_TRANSPOSED, LAYOUTS)
    steps = gl.maximum(gl.cdiv(gl.cdiv(K, CTA_K), SPLIT_K), 1)
    total = gl.cdiv(M, CTA_M) * gl.cdiv(N, CTA_N) * SPLIT_K
    slot, phase = CONSUMER * steps % STAGES, CONSUMER * steps // STAGES & 1
    turn_phase = gl.to_tensor(1 - CONSUMER)
    for index in range(gl.program_id(0) + CONSUMER * gl.num_programs(0), total, CONSUMERS * gl.num_programs(0)):
        if CONSUMERS > 1:
            # an mbarrier tells its phase from the next one only, so that nobody may wait for a step while the other waits for one before it
            mbarrier.wait(turns.index(CONSUMER), turn_phase)
            turn_phase ^= 1
        accumulators = multiply_step(a_buffers, b_buffers, full, slot, phase, zeros, A_TRANSPOSED, B_TRANSPOSED, True)
        accumulators = awaited(accumulators, 1)
        row, column, split, _, _ = wgmma_place(index, M, N, K, CTA_M, CTA_N, CTA_K, GROUP_M, SPLIT_K)  # while the first MMAs run
        last = slot
        slot, phase = next_slot(slot, phase, STAGES)
        accumulators, slot, phase, last = multiply_on(
            a_buffers, b_buffers, full, empty, slot, phase, last, accumulators, 1, steps, STAGES, A_TRANSPOSED, B_TRANSPOSED
        )
        if CONSUMERS > 1:
            mbarrier.arrive(turns.index(1 - CONSUMER), count=1)
        accumulators = awaited(accumulators, 0)
        mbarrier.arrive(empty.index(last), count=1)
        wgmma_store(c, c_buffers, packed_parts(accumulators, dtype), row, column, split, M, N, stride_cm, TMA_STORE, LAYOUTS, SWAPPED)
        if CONSUMERS > 1:
            ahead = slot + (CONSUMERS - 1) * steps
            slot, phase = ahead % STAGES, phase ^ (ahead // STAGES & 1)
    if TMA_STORE:
        tma.store_wait(0)


@gluon.jit
def wgmma_multiply_deferred(
    c, a_buffers, b_buffers, c_buffers, full, empty, M, N, K, stride_cm,
    CTA_M: gl.constexpr, CTA_N: gl.constexpr, CTA_K: gl.constexpr, GROUP_M: gl.constexpr, SPLIT_K: gl.constexpr,
    STAGES: gl.constexpr, A_TRANSPOSED: gl.constexpr, B_TRANSPOSED: gl.constexpr, TMA_STORE: gl.constexpr,
    LAYOUTS: gl.constexpr, SWAPPED: gl.constexpr,
):  # fmt: skip
    """A consumer that stores a tile while the first two steps of its next one are multiplied. There must be two steps."""
    zeros = zero_parts(CTA_M, b_buffers, B_TRANSPOSED, LAYOUTS)
    steps = gl.cdiv(gl.cdiv(K, CTA_K), SPLIT_K)
    total = gl.cdiv(M, CTA_M) * gl.cdiv(N, CTA_N) * SPLIT_K
    slot, phase = gl.to_tensor(0), gl.to_tensor(0)
    dtype: gl.constexpr = c[0].dtype if TMA_STORE else c[0].dtype.element_ty
    finished = packed_parts(zeros, dtype)
    row, column, split = M, gl.to_tensor(0), gl.to_tensor(0)  # past the last row: nothing is stored
    for index in range(gl.program_id(0), total, gl.num_programs(0)):
        accumulators = multiply_step(a_buffers, b_buffers, full, slot, phase, zeros, A_TRANSPOSED, B_TRANSPOSED, True)
        first = slot
        slot, phase = next_slot(slot, phase, STAGES)
        accumulators = multiply_step(a_buffers, b_buffers, full, slot, phase, accumulators, A_TRANSPOSED, B_TRANSPOSED, False)
        wgmma_store(c, c_buffers, finished, row, column, split, M, N, stride_cm, TMA_STORE, LAYOUTS, SWAPPED)
        row, column, split, _, _ = wgmma_place(index, M, N, K, CTA_M, CTA_N, CTA_K, GROUP_M, SPLIT_K)
        accumulators = awaited(accumulators, 1)
        mbarrier.arrive(empty.index(first), count=1)
        last = slot
        slot, phase = next_slot(slot, phase, STAGES)
        accumulators, slot, phase, last = multiply_on(
            a_buffers, b_buffers, full, empty, slot, phase, last, accumulators, 2, steps, STAGES, A_TRANSPOSED, B_TRANSPOSED
        )
        accumulators = awaited(accumulators, 0)
        mbarrier.arrive(empty.index(last), count=1)
        finished = packed_parts(accumulators, dtype)
    wgmma_store(c, c_buffers, finished, row, column, split, M, N, stride_cm, TMA_STORE, LAYOUTS, SWAPPED)
    if TMA_STORE:
        tma.store_wait(0)


@gluon.jit
def wgmma_multiply_alone(
    c, a_buffers, b_buffers, c_buffers, full, empty, turns, M, N, K, stride_cm,
    CTA_M: gl.constexpr, CTA_N: gl.constexpr, CTA_K: gl.constexpr, GROUP_M: gl.constexpr, SPLIT_K: gl.constexpr,
    STAGES: gl.constexpr, A_TRANSPOSED: gl.constexpr, B_TRANSPOSED: gl.constexpr, TMA_STORE: gl.constexpr,
    LAYOUTS: gl.constexpr, SWAPPED: gl.constexpr, DEFERRED: gl.constexpr,
):  # fmt: skip
    """The only consumer, of either kind."""
    if DEFERRED:
        wgmma_multiply_deferred(
            c, a_buffers, b_buffers, c_buffers, full, empty, M, N, K, stride_cm, CTA_M, CTA_N, CTA_K, GROUP_M, SPLIT_K, STAGES,
            A_TRANSPOSED, B_TRANSPOSED, TMA_STORE, LAYOUTS, SWAPPED,
        )  # fmt: skip
    else:
        wgmma_multiply(
            c, a_buffers, b_buffers, c_buffers, full, empty, turns, M, N, K, stride_cm, CTA_M, CTA_N, CTA_K, GROUP_M, SPLIT_K, STAGES,
            A_TRANSPOSED, B_TRANSPOSED, TMA_STORE, LAYOUTS, SWAPPED, 1, 0,
        )  # fmt: skip


@gluon.jit
def wgmma_gemm(
    a, b, b_rest, c, c_rest, M, N, K, stride_cm,
    CTA_M: gl.constexpr, CTA_N: gl.constexpr, CTA_K: gl.constexpr, STAGES: gl.constexpr, GROUP_M: gl.constexpr,
    SPLIT_K: gl.constexpr, A_TRANSPOSED: gl.constexpr, B_TRANSPOSED: gl.constexpr, TMA_STORE: gl.constexpr,
    EPILOGUE_BUFFERS: gl.constexpr, LAYOUTS: gl.constexpr, SWAPPED: gl.constexpr,
    DEFERRED: gl.constexpr, CONSUMERS: gl.constexpr, CONSUMER_REGISTERS: gl.constexpr,
    PRODUCER_REGISTERS: gl.constexpr,
):  # fmt: skip
    """C = A @ B, or C^T with SWAPPED. a and b are descriptors of the stored matrices, c is one with TMA_STORE and a pointer without. Where
    CTA_N is no power of two, b_rest and c_rest describe B and C in boxes of the columns that the first power of two leaves of a tile.

    With SPLIT_K > 1, c is [SPLIT_K, M, N] and split z writes the partial sums of its share of K to c[z].
    """
    bs = parts_of(b, b_rest)
    cs = parts_of(c, c_rest)
    a_buffers = tile_buffers(a, STAGES)
    b_buffers = part_buffers(bs, STAGES, STAGES)
    c_buffers = (a_buffers,)  # where C is stored through pointers, these are not used
    c_buffers_of_second = (a_buffers,)
    if TMA_STORE:
        c_buffers = part_buffers(cs, EPILOGUE_BUFFERS, 1)
        if CONSUMERS == 2:
            c_buffers_of_second = part_buffers(cs, EPILOGUE_BUFFERS, 1)
    full, empty = barriers(STAGES, 2)
    turns = full
    if CONSUMERS == 2:
        turns = barriers(2, 1)[0]
    fence_async_shared()
    if CONSUMERS == 2:
        gl.warp_specialize(
            [
                (
                    wgmma_multiply,
                    (cs, a_buffers, b_buffers, c_buffers, full, empty, turns, M, N, K, stride_cm, CTA_M, CTA_N, CTA_K, GROUP_M,
                     SPLIT_K, STAGES, A_TRANSPOSED, B_TRANSPOSED, TMA_STORE, LAYOUTS, SWAPPED, 2, 0),
                ),
                (
                    wgmma_multiply,
                    (cs, a_buffers, b_buffers, c_buffers_of_second, full, empty, turns, M, N, K, stride_cm, CTA_M, CTA_N, CTA_K, GROUP_M,
                     SPLIT_K, STAGES, A_TRANSPOSED, B_TRANSPOSED, TMA_STORE, LAYOUTS, SWAPPED, 2, 1),
                ),
                (
                    wgmma_load,
                    (a, bs, a_buffers, b_buffers, full, empty, M, N, K,
                     CTA_M, CTA_N, CTA_K, GROUP_M, SPLIT_K, STAGES, A_TRANSPOSED, B_TRANSPOSED),
                ),
            ],
            [gl.num_warps(), 1],
            [CONSUMER_REGISTERS, PRODUCER_REGISTERS],
        )  # fmt: skip
    else:
        gl.warp_specialize(
            [
                (
                    wgmma_multiply_alone,
                    (cs, a_buffers, b_buffers, c_buffers, full, empty, turns, M, N, K, stride_cm, CTA_M, CTA_N, CTA_K, GROUP_M,
                     SPLIT_K, STAGES, A_TRANSPOSED, B_TRANSPOSED, TMA_STORE, LAYOUTS, SWAPPED, DEFERRED),
                ),
                (
                    wgmma_load,
                    (a, bs, a_buffers, b_buffers, full, empty, M, N, K,
                     CTA_M, CTA_N, CTA_K, GROUP_M, SPLIT_K, STAGES, A_TRANSPOSED, B_TRANSPOSED),
                ),
            ],
            [1],
            [PRODUCER_REGISTERS],
        )  # fmt: skip


def wgmma_supports(a: torch.Tensor, b: torch.Tensor, c: torch.Tensor, schedule: Any) -> str | None:
    """Why this schedule cannot run on these tensors; None where it can."""
    row_stride = c.shape[1] if schedule.split_k > 1 else c.stride(0)
    rows = schedule.cta_n if schedule.swap_ab else schedule.cta_m
    if not tma_stores(c, schedule) and row_stride * rows + c.shape[1] > 2**31:
        return f"rows of C are {row_stride} elements apart: a tile of {rows} rows passes the 2**31 elements of its 32-bit offsets"
    x, y = exchanged(a, b, schedule)
    obstacle_a = descriptor_obstacle("B" if schedule.swap_ab else "A", *stored(x, schedule.cta_m, schedule.cta_k))
    obstacle_b = descriptor_obstacle("A" if schedule.swap_ab else "B", *stored(y, schedule.cta_k, part_widths(schedule.cta_n)[0]))
    steps = -(-a.shape[1] // schedule.cta_k // schedule.split_k)
    return tensor_obstacle(a, b, c, schedule) or obstacle_a or obstacle_b or wgmma_obstacle(schedule, steps)


def wgmma_scratch(a: torch.Tensor, b: torch.Tensor, c: torch.Tensor, schedule: Any, sms: int) -> dict[str, Scratch]:
    return split_scratch(c, schedule)


def swizzled(x: Any, box: tuple[int, int], swizzle_bytes: int) -> hopper.TensorDescriptor:
    return hopper.TensorDescriptor.from_tensor(x, list(box), shared_layout(8 * x.element_size(), box, swizzle_bytes))


def wgmma_calls(a: torch.Tensor, b: torch.Tensor, c: torch.Tensor, schedule: Any, sms: int, scratch: dict[str, torch.Tensor]) -> list[Call]:
    """a: [M, K] and b: [K, N], stored by rows or by columns; c: [M, N] with rows of neighbouring elements; see `wgmma_supports`."""
    x, y = exchanged(a, b, schedule)
    (m, k), n, splits = x.shape, y.shape[1], schedule.split_k
    out = c if splits == 1 else scratch["split_sums"]
    tma_store = tma_stores(c, schedule)
    x_stored, box_x = stored(x, schedule.cta_m, schedule.cta_k)
    bs = [swizzled(*stored(y, schedule.cta_k, width), schedule.swizzle_bytes) for width in part_widths(schedule.cta_n)]
    cs = [swizzled(c, box, 0) for box in store_boxes(schedule)] if tma_store else [out]
    ctas = resident_ctas(schedule, c.element_size() if tma_store else 0)
    arguments = {
        "a": swizzled(x_stored, box_x, schedule.swizzle_bytes),
        "b": bs[0],
        "b_rest": bs[1] if len(bs) > 1 else None,
        "c": cs[0],
        "c_rest": cs[1] if len(cs) > 1 else None,
        "M": m,
        "N": n,
        "K": k,
        "stride_cm": out.stride(-2),
    }
    constants = {
        "CTA_M": schedule.cta_m,
        "CTA_N": schedule.cta_n,
        "CTA_K": schedule.cta_k,
        "STAGES": schedule.stages,
        "GROUP_M": min(schedule.group_m, triton.cdiv(m, schedule.cta_m)),
        "SPLIT_K": splits,
        "A_TRANSPOSED": x_stored is not x,
        "B_TRANSPOSED": stored(y, 1, 1)[0] is not y,
        "TMA_STORE": tma_store,
        "EPILOGUE_BUFFERS": epilogue_buffers(schedule),
        "LAYOUTS": mma_layouts(schedule),
        "SWAPPED": bool(schedule.swap_ab),
        "DEFERRED": bool(schedule.flatten),
        "CONSUMERS": schedule.consumers,
        "CONSUMER_REGISTERS": consumer_registers(schedule, ctas),
        "PRODUCER_REGISTERS": producer_registers(schedule),
    }
    work = triton.cdiv(m, schedule.cta_m) * triton.cdiv(n, schedule.cta_n) * splits
    grid = (min(schedule.persistent_ctas_per_sm * sms, work) if schedule.persistent_ctas_per_sm else work, 1, 1)
    limit = launch_registers(schedule, ctas) if ctas > 1 else None
    gemm = Call(wgmma_gemm, grid, arguments, constants, schedule.warps // schedule.consumers, schedule.stages, limit)
    return [gemm] if out is c else [gemm, sum_splits_call(out, c)]


supports = wgmma_supports
scratch = wgmma_scratch
calls = wgmma_calls
EXPORTS = (
    *launch.EXPORTS,
    *raster.EXPORTS,
    *reduction.EXPORTS,
    *tma_family.EXPORTS,
    *wgmma_parts.EXPORTS,
    *wgmma_plan.EXPORTS,
    *(wgmma_multiply, wgmma_multiply_deferred, wgmma_multiply_alone, wgmma_gemm, wgmma_supports, wgmma_scratch, swizzled, wgmma_calls),
)
