"""The family `skinny`: few rows of A against a B that is read once, multiplied by mma.sync; both operands go from memory straight into the
registers that the MMA reads. Written in Gluon. Rows of both must lie along K and be 16-byte aligned; more than 32 rows of A are for others.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import triton
import triton.experimental.gluon.language as gl
from triton.experimental import gluon
from triton.experimental.gluon.language.nvidia.ampere import mma_v2

from tuner.kernels import launch, partition
from tuner.kernels.launch import Call, Scratch, tensor_obstacle
from tuner.kernels.partition import part_scratch

if TYPE_CHECKING:
    from collections.abc import Mapping

    import torch


@gluon.jit
def skinny_sync():
    barrier: gl.constexpr = getattr(gl, "barrier" if hasattr(gl, "barrier") else "thread_barrier")  # until Triton 3.6
    barrier()


@gluon.jit
def skinny_load(places, inner, left, MASKED: gl.constexpr, POLICY: gl.constexpr):
    """Pairs of elements, of which `left` are left along K. As pairs, for 16-bit values would go round a loop in a register each."""
    if MASKED:
        return gl.load(places, mask=inner < left // 2, other=0, eviction_policy=POLICY)
    return gl.load(places, eviction_policy=POLICY)


@gluon.jit
def skinny_fragment(pairs, dtype: gl.constexpr, SUMS: gl.constexpr, OPERAND: gl.constexpr):
    """The elements as the MMA wants them. Along K it may have any order, the same for both operands; in this one the two registers that an
    instruction reads of a column of B are neighbours, as they were loaded, and nothing has to be moved."""
    if OPERAND == 0:
        split = gl.reshape(pairs, [pairs.shape[0], pairs.shape[1], 2, 4, 2, 2])
        moved = gl.reshape(gl.permute(split, (0, 1, 5, 3, 2, 4)), pairs.shape)
    else:
        split = gl.reshape(pairs, [pairs.shape[0], 2, 4, 2, 2, pairs.shape[2]])
        moved = gl.reshape(gl.permute(split, (0, 4, 2, 1, 3, 5)), pairs.shape)
    low, high = moved.to(gl.int16).to(dtype, bitcast=True), (moved >> 16).to(gl.int16).to(dtype, bitcast=True)
    both = gl.join(low, high)
    if OPERAND == 0:
        elements = gl.reshape(both, [pairs.shape[0], pairs.shape[1], 2 * pairs.shape[2]])
    else:
        elements = gl.reshape(gl.permute(both, (0, 1, 3, 2)), [pairs.shape[0], 2 * pairs.shape[1], pairs.shape[2]])
    LAYOUT: gl.constexpr = gl.DotOperandLayout(operand_index=OPERAND, parent=SUMS, k_width=8)
    return gl.convert_layout(elements, LAYOUT, assert_trivial=True)


@gluon.jit
def skinny_round(
    total, ring, a, b, a_inner, b_inner, left, dtype: gl.constexpr, SLICE: gl.constexpr, STEP: gl.constexpr,
    MASKED: gl.constexpr, RENEWED: gl.constexpr, AHEAD_MASKED: gl.constexpr,
):  # fmt: skip
    """Multiplies what is in the ring, and asks for what is to follow each piece as soon as its registers are free."""
    SUMS: gl.constexpr = total.type.layout
    PIECES: gl.constexpr = SLICE // 64
    renewed = ()
    for place in gl.static_range(len(ring)):
        offset = place // PIECES * STEP + place % PIECES * 64
        a_part = skinny_load(a + offset // 2, a_inner, left - offset, MASKED, "evict_last")
        total = mma_v2(skinny_fragment(a_part, dtype, SUMS, 0), skinny_fragment(ring[place], dtype, SUMS, 1), total)
        if RENEWED:
            ahead = offset + len(ring) // PIECES * STEP
            renewed += (skinny_load(b + ahead // 2, b_inner, left - ahead, AHEAD_MASKED, "evict_first"),)  # type: ignore[assignment]
    return total, renewed


@gluon.jit
def skinny(
    a,
    b,
    c,
    partials,
    arrivals,
    M,
    N,
    K,
    stride_am,
    stride_bn,
    stride_cm,
    CTA_M: gl.constexpr,
    CTA_N: gl.constexpr,
    CTA_K: gl.constexpr,
    SPLIT_K: gl.constexpr,
    STAGES: gl.constexpr,
    WARPS_K: gl.constexpr,
    WARPS_N: gl.constexpr,
    WHOLE: gl.constexpr,
):
    """C = A @ B. WARPS_K warps share the K of a step, each in one run, and their sums are added once, at the end of a tile.

    STAGES steps of B are in registers or on their way there. Columns past N and rows past M repeat the last one there is.
    WHOLE: each split has so many elements of K that they are a multiple of STAGES steps, and not none.
    """
    SLICE: gl.constexpr = CTA_K // WARPS_K
    ROUND: gl.constexpr = STAGES * CTA_K
    MASKED: gl.constexpr = not WHOLE
    SUMS: gl.constexpr = gl.NVMMADistributedLayout(version=[2, 0], warps_per_cta=[WARPS_K, 1, WARPS_N], instr_shape=[1, 16, 8])
    # a thread loads 16 bytes along K: eight elements, four pairs
    A_PAIRS: gl.constexpr = gl.DotOperandLayout(operand_index=0, parent=SUMS, k_width=4)
    B_PAIRS: gl.constexpr = gl.DotOperandLayout(operand_index=1, parent=SUMS, k_width=4)
    OUT: gl.constexpr = gl.SliceLayout(0, SUMS)
    dtype: gl.constexpr = b.dtype.element_ty

    tiles_n = gl.cdiv(N, CTA_N)
    tile, split = gl.program_id(0), gl.program_id(1)
    row, column = tile // tiles_n * CTA_M, tile % tiles_n * CTA_N
    share = gl.cdiv(gl.cdiv(K, CTA_K), SPLIT_K) * CTA_K
    first = split * share
    left = gl.multiple_of(gl.minimum(K - first, share), 8)

    a_warps = gl.arange(0, WARPS_K, layout=gl.SliceLayout(1, gl.SliceLayout(2, A_PAIRS))).expand_dims(1).expand_dims(2)
    a_rows = gl.arange(0, CTA_M, layout=gl.SliceLayout(0, gl.SliceLayout(2, A_PAIRS))).expand_dims(0).expand_dims(2)
    a_inner = gl.arange(0, 32, layout=gl.SliceLayout(0, gl.SliceLayout(1, A_PAIRS))).expand_dims(0).expand_dims(1)
    a_inner += a_warps * (SLICE // 2)
    b_warps = gl.arange(0, WARPS_K, layout=gl.SliceLayout(1, gl.SliceLayout(2, B_PAIRS))).expand_dims(1).expand_dims(2)
    b_columns = gl.arange(0, CTA_N, layout=gl.SliceLayout(0, gl.SliceLayout(1, B_PAIRS))).expand_dims(0).expand_dims(1)
    b_inner = gl.arange(0, 32, layout=gl.SliceLayout(0, gl.SliceLayout(2, B_PAIRS))).expand_dims(0).expand_dims(2)
    b_inner += b_warps * (SLICE // 2)
    # Triton itself learns of multiples of 16 alone, and 8 elements make 16 bytes
    a += (row + gl.minimum(a_rows, M - 1 - row)).to(gl.int64) * gl.multiple_of(stride_am.to(gl.int64), 8) + first
    b += (column + gl.minimum(b_columns, N - 1 - column)).to(gl.int64) * gl.multiple_of(stride_bn.to(gl.int64), 8) + first
    a_pairs = a.to(gl.pointer_type(gl.int32)) + a_inner
    b_pairs = b.to(gl.pointer_type(gl.int32)) + b_inner

    ring = ()
    for place in gl.static_range(STAGES * SLICE // 64):
        offset = place // (SLICE // 64) * CTA_K + place % (SLICE // 64) * 64
        ring += (skinny_load(b_pairs + offset // 2, b_inner, left - offset, MASKED, "evict_first"),)  # type: ignore[assignment]
    total = gl.zeros([WARPS_K, CTA_M, CTA_N], gl.float32, SUMS)
    for _ in range(left // ROUND - 1):  # rounds that are followed by another whole one
        total, ring = skinny_round(total, ring, a_pairs, b_pairs, a_inner, b_inner, left, dtype, SLICE, CTA_K, False, True, False)
        a_pairs += ROUND // 2
        b_pairs += ROUND // 2
        left -= ROUND
    if MASKED:
        total, ring = skinny_round(total, ring, a_pairs, b_pairs, a_inner, b_inner, left, dtype, SLICE, CTA_K, True, True, True)
        a_pairs += ROUND // 2
        left -= ROUND
    total, _ = skinny_round(total, ring, a_pairs, b_pairs, a_inner, b_inner, left, dtype, SLICE, CTA_K, MASKED, False, False)

    sums = gl.sum(total, axis=0)
    out_rows = gl.arange(0, CTA_M, layout=gl.SliceLayout(1, OUT)).expand_dims(1)
    out_columns = gl.arange(0, CTA_N, layout=gl.SliceLayout(0, OUT)).expand_dims(0)
    last = True
    if SPLIT_K > 1:
        TILE: gl.constexpr = CTA_M * CTA_N
        slots = partials + (tile * SPLIT_K).to(gl.int64) * TILE + out_rows * CTA_N + out_columns
        present = out_rows < M - row
        gl.store(slots + split * TILE, sums, mask=present)
        skinny_sync()  # the whole CTA's part is stored before one thread says so
        last = gl.atomic_add(arrivals + tile, 1, sem="acq_rel") == SPLIT_K - 1
        if last:
            gl.store(arrivals + tile, 0)
            sums = gl.load(slots, mask=present, cache_modifier=".cg")
            for part in gl.static_range(1, SPLIT_K):
                sums += gl.load(slots + part * TILE, mask=present, cache_modifier=".cg")
    if last:
        places = c + (row + out_rows).to(gl.int64) * stride_cm + column + out_columns
        gl.store(places, sums.to(c.dtype.element_ty), mask=(out_rows < M - row) & (out_columns < N - column))


def skinny_warps(schedule: Any) -> tuple[int, int]:
    """Warps along K and along N."""
    along_n = max(schedule.warps_n, 1)
    return schedule.warps // along_n, along_n


def skinny_tile_obstacle(schedule: Any) -> str | None:
    """Why a tile cannot be shared out among warps and instructions."""
    along_k, along_n = skinny_warps(schedule)
    if schedule.cta_m not in (16, 32):
        return f"cta_m = {schedule.cta_m}; skinny multiplies 16 or 32 rows of A at a time"
    if along_k * along_n != schedule.warps:
        return f"{schedule.warps} warps, {along_n} of them along N; they must go round"
    if schedule.cta_n % (8 * along_n):
        return f"cta_n = {schedule.cta_n} for {along_n} warps along N; each takes a multiple of 8 columns"
    if schedule.cta_k % (64 * along_k):
        return f"cta_k = {schedule.cta_k} for {along_k} warps along K; each takes a multiple of 64 elements"
    if schedule.split_k > 65535:
        return f"split_k = {schedule.split_k} passes 65535, the most CTAs along the second axis of a grid"
    if schedule.split_k > 1 and not schedule.fused_reduction:
        return f"split_k = {schedule.split_k} with fused_reduction = 0; skinny adds its splits in the same launch: fused_reduction = 1"
    return None


def skinny_supports(a: torch.Tensor, b: torch.Tensor, c: torch.Tensor, schedule: Any) -> str | None:
    """Why this schedule cannot run on these tensors; None where it can."""
    m, k = a.shape
    if m > 32:
        return f"M = {m} is over the 32 rows that skinny takes; use another family"
    if k and (a.stride(1) != 1 or b.stride(0) != 1):
        return f"neighbours along K are {a.stride(1)} elements apart in A, {b.stride(0)} in B; skinny needs them side by side in both"
    for name, x, stride in (("A", a, a.stride(0)), ("B", b, b.stride(1))):
        if k and (stride * x.element_size() % 16 or x.data_ptr() % 16):
            return f"{name} starts at {x.data_ptr()}, its rows along K {stride * x.element_size()} B apart; skinny needs multiples of 16 B"
    if k % 8:
        return f"K = {k} is no multiple of the 8 elements that skinny loads at once"
    return skinny_tile_obstacle(schedule) or tensor_obstacle(a, b, c, schedule)


def skinny_scratch(a: torch.Tensor, b: torch.Tensor, c: torch.Tensor, schedule: Any, sms: int) -> dict[str, Scratch]:
    m, n = c.shape
    return part_scratch(schedule, triton.cdiv(m, schedule.cta_m) * triton.cdiv(n, schedule.cta_n), 0)


def skinny_calls(
    a: torch.Tensor, b: torch.Tensor, c: torch.Tensor, schedule: Any, sms: int, scratch: Mapping[str, torch.Tensor]
) -> list[Call]:
    """a: [M, K] and b: [K, N], both with neighbours along K side by side; c: [M, N] with rows of neighbouring elements."""
    (m, k), n = a.shape, b.shape[1]
    if m == 0 or n == 0:
        return []
    along_k, along_n = skinny_warps(schedule)
    arguments = {
        "a": a,
        "b": b,
        "c": c,
        "partials": scratch.get("partials"),
        "arrivals": scratch.get("arrivals"),
        "M": m,
        "N": n,
        "K": k,
        "stride_am": a.stride(0) if k else 0,  # of an empty row it may be anything
        "stride_bn": b.stride(1) if k else 0,
        "stride_cm": c.stride(0),
    }
    constants = {
        "CTA_M": schedule.cta_m,
        "CTA_N": schedule.cta_n,
        "CTA_K": schedule.cta_k,
        "SPLIT_K": schedule.split_k,
        "STAGES": schedule.stages,
        "WARPS_K": along_k,
        "WARPS_N": along_n,
        "WHOLE": k > 0 and k % (schedule.cta_k * schedule.stages * schedule.split_k) == 0,
    }
    tiles = triton.cdiv(m, schedule.cta_m) * triton.cdiv(n, schedule.cta_n)
    return [Call(skinny, (tiles, schedule.split_k, 1), arguments, constants, schedule.warps, schedule.stages)]


supports = skinny_supports
scratch = skinny_scratch
calls = skinny_calls
EXPORTS = (
    *launch.EXPORTS,
    partition.part_scratch,
    skinny_sync,
    skinny_load,
    skinny_fragment,
    skinny_round,
    skinny,
    skinny_warps,
    skinny_tile_obstacle,
    skinny_supports,
    skinny_scratch,
    skinny_calls,
)
