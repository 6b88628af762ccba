"""The family `pointer`: loads through pointers, for any strides and alignment; one CTA a tile and split."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import triton
import triton.language as tl

from tuner.kernels import launch, partition, raster, reduction
from tuner.kernels.launch import Call, Scratch, exchanged, tensor_obstacle
from tuner.kernels.partition import add_splits, add_to_sum, chunk_rows, is_last, is_unordered, part_scratch, partition_obstacle, store_part
from tuner.kernels.raster import tile_of
from tuner.kernels.reduction import split_scratch, sum_splits_call

if TYPE_CHECKING:
    import torch


@triton.jit
def multiple(x, UNIT: tl.constexpr):
    """x in 64 bits, known to be a multiple of UNIT: Triton itself learns of multiples of 16 alone, and 8 elements make 16 bytes."""
    return tl.multiple_of(tl.cast(x, tl.int64), UNIT)


@triton.jit
def wrapped(places, EXTENT, UNIT: tl.constexpr):
    """Places past the end wrap to ones that exist: their sums are not stored, and the loads need no mask. EXTENT is a multiple of UNIT."""
    return tl.max_contiguous(tl.multiple_of(places % EXTENT, UNIT), UNIT).to(tl.int64)


@triton.jit
def pointer_gemm(
    a, b, c, partials, arrivals, M, N, K, stride_am, stride_ak, stride_bk, stride_bn, stride_cm,
    UNIT_M: tl.constexpr, UNIT_N: tl.constexpr, UNIT_K: tl.constexpr, UNIT_A: tl.constexpr, UNIT_B: tl.constexpr, UNIT_C: tl.constexpr,
    CTA_M: tl.constexpr, CTA_N: tl.constexpr, CTA_K: tl.constexpr, GROUP_M: tl.constexpr, SPLIT_K: tl.constexpr,
    WHOLE_STEPS: tl.constexpr, SWAPPED: tl.constexpr, CHUNK: tl.constexpr, UNORDERED: tl.constexpr,
):  # fmt: skip
    """C = A @ B; SWAPPED: to C^T. With SPLIT_K > 1 and no CHUNK, c is [SPLIT_K, M, N] and split z writes the partial sums of its share of K
    to c[z]; with CHUNK they go to `partials`, and the last of a tile's splits to arrive adds them, so many rows at a time.

    WHOLE_STEPS: every split has work, and all its steps lie within K, so that loads need no mask.
    """
    tile = tl.program_id(0)
    tile_m, tile_n = tile_of(tile, tl.cdiv(M, CTA_M), tl.cdiv(N, CTA_N), GROUP_M)
    rows = tile_m * CTA_M + tl.arange(0, CTA_M)
    columns = tile_n * CTA_N + tl.arange(0, CTA_N)
    inner = tl.arange(0, CTA_K)

    steps = tl.cdiv(K, CTA_K)
    split = tl.program_id(1)
    steps_per_split = tl.cdiv(steps, SPLIT_K)
    first = split * steps_per_split
    # at least one step, of zeros where a split has no work: a loop that may be skipped makes ptxas run 128x256 tiles' wgmma one by one
    count = tl.maximum(tl.minimum(steps - first, steps_per_split), 1)

    a_row, a_column = multiple(stride_am, UNIT_A[0]), multiple(stride_ak, UNIT_A[1])
    b_row, b_column = multiple(stride_bk, UNIT_B[0]), multiple(stride_bn, UNIT_B[1])
    a_step, b_step = a_column * CTA_K, b_row * CTA_K
    a_tile = a + first * a_step + wrapped(rows, M, UNIT_M)[:, None] * a_row + inner[None, :] * a_column
    b_tile = b + first * b_step + inner[:, None] * b_row + wrapped(columns, N, UNIT_N)[None, :] * b_column
    accumulator = tl.zeros((CTA_M, CTA_N), dtype=tl.float32)
    for step in range(count):
        if WHOLE_STEPS:
            a_part = tl.load(a_tile)
            b_part = tl.load(b_tile)
        else:
            left = tl.multiple_of(K - (first + step) * CTA_K, UNIT_K)
            a_part = tl.load(a_tile, mask=inner[None, :] < left, other=0.0)
            b_part = tl.load(b_tile, mask=inner[:, None] < left, other=0.0)
        accumulator = tl.dot(a_part, b_part, accumulator)
        a_tile += a_step
        b_tile += b_step

    height, width = multiple(M, UNIT_M), multiple(N, UNIT_N)
    inside = (rows < height)[:, None] & (columns < width)[None, :]
    if CHUNK:
        if UNORDERED:
            add_to_sum(partials, tile, accumulator)
        else:
            store_part(partials, tile * SPLIT_K + split, accumulator)
        if is_last(arrivals, tile, SPLIT_K):
            add_splits(
                partials, c, tile_m * CTA_M, tile_n * CTA_N, height, width, multiple(stride_cm, UNIT_C), tile, SPLIT_K,
                CTA_M, CTA_N, CHUNK, SWAPPED, UNORDERED,
            )  # fmt: skip
    elif SWAPPED:
        tl.store(c + rows[:, None] + columns[None, :] * multiple(stride_cm, UNIT_C), accumulator.to(c.dtype.element_ty), mask=inside)
    else:
        places = c + split * (M * width) + rows[:, None] * multiple(stride_cm, UNIT_C) + columns[None, :]
        tl.store(places, accumulator.to(c.dtype.element_ty), mask=inside)


def unit(x: int) -> int:
    """The largest power of two up to 16 that x is a multiple of."""
    return math.gcd(x, 16)


def pointer_supports(a: torch.Tensor, b: torch.Tensor, c: torch.Tensor, schedule: Any) -> str | None:
    """Why this schedule cannot run on these tensors; None where it can."""
    if schedule.split_k > 65535:
        return f"split_k = {schedule.split_k} passes 65535, the most CTAs along the second axis of a grid"
    return tensor_obstacle(a, b, c, schedule) or partition_obstacle(*exchanged(a, b, schedule), schedule)


def pointer_tiles(a: torch.Tensor, b: torch.Tensor, schedule: Any) -> int:
    x, y = exchanged(a, b, schedule)
    return int(triton.cdiv(x.shape[0], schedule.cta_m) * triton.cdiv(y.shape[1], schedule.cta_n))


def pointer_scratch(a: torch.Tensor, b: torch.Tensor, c: torch.Tensor, schedule: Any, sms: int) -> dict[str, Scratch]:
    """There is no persistent grid here: `sms` makes no difference."""
    return split_scratch(c, schedule) | part_scratch(schedule, pointer_tiles(a, b, schedule), 0)


def pointer_calls(
    a: torch.Tensor, b: torch.Tensor, c: torch.Tensor, schedule: Any, sms: int, scratch: dict[str, torch.Tensor]
) -> list[Call]:
    """a: [M, K] and b: [K, N] of any strides; c: [M, N] with rows of neighbouring elements."""
    x, y = exchanged(a, b, schedule)
    (m, k), n = x.shape, y.shape[1]
    if m == 0 or n == 0:
        return []
    out, partials, splits = scratch.get("split_sums", c), scratch.get("partials"), schedule.split_k
    steps = triton.cdiv(k, schedule.cta_k)
    arguments = {
        "a": x,
        "b": y,
        "c": out,
        "partials": partials,
        "arrivals": scratch.get("arrivals"),
        "M": m,
        "N": n,
        "K": k,
        "stride_am": x.stride(0),
        "stride_ak": x.stride(1),
        "stride_bk": y.stride(0),
        "stride_bn": y.stride(1),
        "stride_cm": out.stride(-2),
    }
    constants = {
        "UNIT_M": unit(m) if x.stride(0) == 1 or schedule.swap_ab else 1,
        "UNIT_N": 1 if schedule.swap_ab and y.stride(1) != 1 else unit(n),
        "UNIT_K": unit(k),
        "UNIT_A": (unit(x.stride(0)), unit(x.stride(1))),
        "UNIT_B": (unit(y.stride(0)), unit(y.stride(1))),
        "UNIT_C": unit(out.stride(-2)),
        "CTA_M": schedule.cta_m,
        "CTA_N": schedule.cta_n,
        "CTA_K": schedule.cta_k,
        "GROUP_M": min(schedule.group_m, triton.cdiv(m, schedule.cta_m)),
        "SPLIT_K": splits,
        "WHOLE_STEPS": k % schedule.cta_k == 0 and steps > triton.cdiv(steps, splits) * (splits - 1),
        "SWAPPED": bool(schedule.swap_ab),
        "CHUNK": 0 if partials is None else chunk_rows(schedule),
        "UNORDERED": is_unordered(schedule),
    }
    gemm = Call(pointer_gemm, (pointer_tiles(a, b, schedule), splits, 1), arguments, constants, schedule.warps, schedule.stages)
    return [gemm] if out is c else [gemm, sum_splits_call(out, c)]


supports = pointer_supports
scratch = pointer_scratch
calls = pointer_calls
EXPORTS = (
    *launch.EXPORTS,
    *raster.EXPORTS,
    *reduction.EXPORTS,
    *partition.EXPORTS,
    *(multiple, wrapped, pointer_gemm, unit, pointer_supports, pointer_tiles, pointer_scratch, pointer_calls),
)
