"""The family `gemv`: few rows of A against a B that is read once, multiplied by FMAs; for any strides and alignment.

A thread keeps sums of its own along K in registers, and threads add theirs once, at the end of a tile. M over 16 is for other families.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import triton
import triton.language as tl

from tuner.kernels import launch, partition
from tuner.kernels.launch import Call, Scratch, tensor_obstacle
from tuner.kernels.partition import add_splits, chunk_rows, is_last, is_unordered, part_scratch
from tuner.kernels.pointer import multiple, unit

if TYPE_CHECKING:
    import torch


@triton.jit
def lanes(x, VECTOR: tl.constexpr):
    """x's columns 0, VECTOR, 2 VECTOR, ..., then 1, VECTOR + 1, ... and so on: VECTOR neighbours lie in one thread, so nothing moves.
    Their order in the tuple is that of reversed bits."""
    found = (x,)
    for level in tl.static_range(VECTOR.bit_length() - 1):
        halves = ()
        for place in tl.static_range(2**level):
            part = found[place]
            even, odd = tl.split(tl.reshape(part, (part.shape[0], part.shape[1] // 2, 2)))
            halves += (even, odd)  # type: ignore[assignment]
        found = halves  # type: ignore[assignment]
    return found


@triton.jit
def store_sums(
    c, partials, arrivals, sums, tile, split, row, column, M, N, stride_cm,
    CTA_M: tl.constexpr, CTA_N: tl.constexpr, SPLIT_K: tl.constexpr, CHUNK: tl.constexpr,
    UNORDERED: tl.constexpr,
):  # fmt: skip
    """The threads' sums of each row of A, added, into C; of a share of K into its slot, and into C by the last to arrive."""
    if SPLIT_K == 1:
        places = column + tl.arange(0, CTA_N)
        for r in tl.static_range(len(sums)):
            total = tl.sum(sums[r], axis=1).to(c.dtype.element_ty)
            if row + r < M:
                tl.store(c + (row + r) * multiple(stride_cm, 1) + places, total, mask=places < N)
    else:
        slot = tl.cast(tile if UNORDERED else tile * SPLIT_K + split, tl.int64) * (CTA_M * CTA_N)
        for r in tl.static_range(len(sums)):
            places = partials + slot + r * CTA_N + tl.arange(0, CTA_N)
            if UNORDERED:
                tl.atomic_add(places, tl.sum(sums[r], axis=1), sem="relaxed")
            else:
                tl.store(places, tl.sum(sums[r], axis=1))
        if is_last(arrivals, tile, SPLIT_K):
            add_splits(partials, c, row, column, M, N, stride_cm, tile, SPLIT_K, CTA_M, CTA_N, CHUNK, False, UNORDERED)


@triton.jit
def gemv(
    a, b, c, partials, arrivals, M, N, K, stride_am, stride_ak, stride_bk, stride_bn, stride_cm,
    UNIT_N: tl.constexpr, UNIT_K: tl.constexpr, UNIT_A: tl.constexpr, UNIT_B: tl.constexpr, ROWS: tl.constexpr,
    CTA_M: tl.constexpr, CTA_N: tl.constexpr, CTA_K: tl.constexpr, SPLIT_K: tl.constexpr, CHUNK: tl.constexpr, UNORDERED: tl.constexpr,
    STAGES: tl.constexpr, LANES: tl.constexpr, VECTOR: tl.constexpr, WHOLE_STEPS: tl.constexpr,
    WHOLE_TILES: tl.constexpr, WHOLE_ROWS: tl.constexpr,
):  # fmt: skip
    """C = A @ B. A CTA multiplies ROWS rows of A with CTA_N columns of B; LANES threads share a column, each loads VECTOR elements at once.

    STAGES: 1 loads a step's elements into registers together; more go through shared memory, so many steps ahead.
    WHOLE_STEPS: all steps of all splits lie within K; WHOLE_TILES: all tiles within N. Loads need no mask then. WHOLE_ROWS: within M.
    """
    PIECE: tl.constexpr = LANES * VECTOR
    tiles_n = tl.cdiv(N, CTA_N)
    tile, split = tl.program_id(0), tl.program_id(1)
    row, column = tile // tiles_n * CTA_M, tile % tiles_n * CTA_N
    columns = column + tl.arange(0, CTA_N)[:, None]
    inner = tl.arange(0, PIECE)[None, :]

    steps = tl.cdiv(K, CTA_K)
    steps_per_split = tl.cdiv(steps, SPLIT_K)
    first = split * steps_per_split
    count = tl.minimum(steps - first, steps_per_split)

    a_row, a_column = multiple(stride_am, UNIT_A[0]), multiple(stride_ak, UNIT_A[1])
    b_row, b_column = multiple(stride_bk, UNIT_B[0]), multiple(stride_bn, UNIT_B[1])
    a_step, b_step = a_column * CTA_K, b_row * CTA_K
    a_line = a + row * a_row + first * a_step + inner * a_column
    b_tile = b + first * b_step + columns * b_column + inner * b_row
    within = columns < multiple(N, UNIT_N)
    sums = ()
    for _ in tl.static_range(ROWS):
        sums += (tl.zeros((CTA_N, LANES), dtype=tl.float32),)  # type: ignore[assignment]
    for step in tl.range(0, count, num_stages=STAGES):
        left = tl.multiple_of(K - (first + step) * CTA_K, UNIT_K)
        b_parts = ()
        for piece in tl.static_range(CTA_K // PIECE):
            place = b_tile + piece * (b_row * PIECE)
            if WHOLE_STEPS and WHOLE_TILES:
                b_part = tl.load(place, eviction_policy="evict_first")
            else:
                b_part = tl.load(place, mask=within & (inner < left - piece * PIECE), other=0.0, eviction_policy="evict_first")
            b_parts += (b_part,)  # type: ignore[assignment]
        for piece in tl.static_range(CTA_K // PIECE):
            b_lanes = lanes(b_parts[piece].to(tl.float32), VECTOR)
            added = ()
            for r in tl.static_range(ROWS):
                # the last tile's rows past M repeat the last row there is
                last = r if WHOLE_ROWS else tl.minimum(r, M - 1 - row)
                place = a_line + last * a_row + piece * (a_column * PIECE)
                if WHOLE_STEPS:
                    a_part = tl.load(place, eviction_policy="evict_last")
                else:
                    a_part = tl.load(place, mask=inner < left - piece * PIECE, other=0.0, eviction_policy="evict_last")
                a_lanes = lanes(a_part.to(tl.float32), VECTOR)
                total = sums[r]
                for lane in tl.static_range(VECTOR):
                    total += a_lanes[lane] * b_lanes[lane]
                added += (total,)
            sums = added
        a_line += a_step
        b_tile += b_step

    store_sums(c, partials, arrivals, sums, tile, split, row, column, M, N, stride_cm, CTA_M, CTA_N, SPLIT_K, CHUNK, UNORDERED)


def vector(b: torch.Tensor) -> int:
    """Elements of B that a thread loads at once: 16 bytes, or what the starts of rows or columns are known to be a multiple of."""
    far = b.stride(1) if along_k(b) else b.stride(0)
    near = b.stride(0) if along_k(b) else b.stride(1)
    return min(unit(far), 16 // b.element_size()) if near == 1 else 1


def along_k(b: torch.Tensor) -> bool:
    """Whether neighbours in memory are neighbours along K."""
    near_k, near_n = b.stride()
    return bool(near_k == 1 or near_n != 1)


def shares(b: torch.Tensor, schedule: Any) -> tuple[int, int]:
    """How many threads share a column of B, and how many neighbours along K each loads at once."""
    threads, width = 32 * schedule.warps, vector(b)
    return (threads, width) if along_k(b) else (max(threads * width // schedule.cta_n, 1), 1)


def gemv_supports(a: torch.Tensor, b: torch.Tensor, c: torch.Tensor, schedule: Any) -> str | None:
    """Why this schedule cannot run on these tensors; None where it can."""
    m = a.shape[0]
    if m > 16:
        return f"M = {m} is over the 16 rows that gemv takes; use another family"
    if schedule.cta_m > 16:
        return f"cta_m = {schedule.cta_m} is over the 16 rows that gemv takes"
    if schedule.split_k > 65535:
        return f"split_k = {schedule.split_k} passes 65535, the most CTAs along the second axis of a grid"
    if schedule.split_k > 1 and not schedule.fused_reduction:
        return f"split_k = {schedule.split_k} with fused_reduction = 0; gemv adds its splits in the same launch: fused_reduction = 1"
    sharing, width = shares(b, schedule)
    if schedule.cta_k % (sharing * width):
        return (
            f"cta_k = {schedule.cta_k} is no multiple of {sharing * width}: {sharing} threads of {schedule.warps} warps share a column, "
            f"and each loads {width} elements of it at once"
        )
    return tensor_obstacle(a, b, c, schedule)


def gemv_scratch(a: torch.Tensor, b: torch.Tensor, c: torch.Tensor, schedule: Any, sms: int) -> dict[str, Scratch]:
    m, n = c.shape
    return part_scratch(schedule, triton.cdiv(m, schedule.cta_m) * triton.cdiv(n, schedule.cta_n), 0)


def gemv_calls(a: torch.Tensor, b: torch.Tensor, c: torch.Tensor, schedule: Any, sms: int, scratch: dict[str, torch.Tensor]) -> list[Call]:
    """a: [M, K] and b: [K, N] of any strides; c: [M, N] with rows of neighbouring elements."""
    (m, k), n = a.shape, b.shape[1]
    if m == 0 or n == 0:
        return []
    sharing, width = shares(b, schedule)
    splits = schedule.split_k
    tiles = triton.cdiv(m, schedule.cta_m) * triton.cdiv(n, schedule.cta_n)
    arguments = {
        "a": a,
        "b": b,
        "c": c,
        "partials": scratch.get("partials"),
        "arrivals": scratch.get("arrivals"),
        "M": m,
        "N": n,
        "K": k,
        "stride_am": a.stride(0),
        "stride_ak": a.stride(1),
        "stride_bk": b.stride(0),
        "stride_bn": b.stride(1),
        "stride_cm": c.stride(0),
    }
    constants = {
        "UNIT_N": unit(n),
        "UNIT_K": unit(k),
        "UNIT_A": (unit(a.stride(0)), unit(a.stride(1))),
        "UNIT_B": (unit(b.stride(0)), unit(b.stride(1))),
        "ROWS": min(schedule.cta_m, m),
        "CTA_M": schedule.cta_m,
        "CTA_N": schedule.cta_n,
        "CTA_K": schedule.cta_k,
        "SPLIT_K": splits,
        "CHUNK": chunk_rows(schedule),
        "UNORDERED": is_unordered(schedule),
        "STAGES": schedule.stages,
        "LANES": sharing,
        "VECTOR": width,
        "WHOLE_STEPS": k % schedule.cta_k == 0,
        "WHOLE_TILES": n % schedule.cta_n == 0,
        "WHOLE_ROWS": m % min(schedule.cta_m, m) == 0,
    }
    return [Call(gemv, (tiles, splits, 1), arguments, constants, schedule.warps, schedule.stages)]


supports = gemv_supports
scratch = gemv_scratch
calls = gemv_calls
EXPORTS = (
    *launch.EXPORTS,
    *partition.EXPORTS,
    multiple,
    unit,
    lanes,
    store_sums,
    gemv,
    along_k,
    vector,
    shares,
    gemv_supports,
    gemv_scratch,
    gemv_calls,
)
