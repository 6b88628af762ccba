"""The family `tma`: loads, and stores where C allows it, by tensor descriptors made on the host; one CTA a tile, or a persistent grid."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import triton
import triton.language as tl
from triton.tools.tensor_descriptor import TensorDescriptor

from tuner.kernels import launch, packing, partition, raster, reduction
from tuner.kernels.launch import Call, Scratch, exchanged, tensor_obstacle
from tuner.kernels.packing import as_packed, as_stored, is_transposed, pack_calls, pack_scratch, packed_operand
from tuner.kernels.partition import (
    add_parts,
    add_splits,
    add_to_sum,
    chunk_rows,
    first_unit,
    is_last,
    is_unordered,
    owner_of,
    part_scratch,
    partition_obstacle,
    store_part,
    whole_tiles,
)
from tuner.kernels.raster import tile_of
from tuner.kernels.reduction import split_scratch, sum_splits_call

if TYPE_CHECKING:
    import torch


@triton.jit
def store_block(c, block, row, column, split, M, N, stride_cm, TMA_STORE: tl.constexpr, SWAPPED: tl.constexpr):
    if TMA_STORE and SWAPPED:
        c.store([column, row], tl.trans(block).to(c.dtype))
    elif TMA_STORE:
        c.store([row, column], block.to(c.dtype))
    else:
        # 32-bit offsets take half the registers of 64-bit ones; with absolute columns they are not held from tile to tile
        rows, columns = row + tl.arange(0, block.shape[0]), column + tl.arange(0, block.shape[1])
        if SWAPPED:
            corner = c + tl.cast(column, tl.int64) * stride_cm
            offsets = rows[:, None] + (columns - column)[None, :] * stride_cm
        else:
            corner = c + (split * tl.cast(M, tl.int64) + row) * stride_cm
            offsets = (rows - row)[:, None] * stride_cm + columns[None, :]
        tl.store(corner + offsets, block.to(c.dtype.element_ty), mask=(rows < M)[:, None] & (columns < N)[None, :])


@triton.jit
def store_tile(
    c, tile, row, column, split, M, N, stride_cm, TMA_STORE: tl.constexpr, EPILOGUE_SUBTILE: tl.constexpr, SWAPPED: tl.constexpr
):
    CTA_M: tl.constexpr = tile.shape[0]
    CTA_N: tl.constexpr = tile.shape[1]
    if EPILOGUE_SUBTILE == 2:
        left, right = tl.split(tl.permute(tl.reshape(tile, (CTA_M, 2, CTA_N // 2)), (0, 2, 1)))
        store_block(c, left, row, column, split, M, N, stride_cm, TMA_STORE, SWAPPED)
        store_block(c, right, row, column + CTA_N // 2, split, M, N, stride_cm, TMA_STORE, SWAPPED)
    else:
        store_block(c, tile, row, column, split, M, N, stride_cm, TMA_STORE, SWAPPED)


@triton.jit
def tma_sum(
    a,
    b,
    row,
    column,
    start,
    steps,
    CTA_M: tl.constexpr,
    CTA_N: tl.constexpr,
    CTA_K: tl.constexpr,
    A_TRANSPOSED: tl.constexpr,
    B_TRANSPOSED: tl.constexpr,
):
    """The fp32 sum over `steps` steps of K from `start` on; what lies outside a matrix is loaded as zero."""
    accumulator = tl.zeros((CTA_M, CTA_N), dtype=tl.float32)
    for step in range(steps):
        inner = start + step * CTA_K
        if A_TRANSPOSED:
            a_part = a.load([inner, row]).T
        else:
            a_part = a.load([row, inner])
        if B_TRANSPOSED:
            b_part = b.load([column, inner]).T
        else:
            b_part = b.load([inner, column])
        accumulator = tl.dot(a_part, b_part, accumulator)
    return accumulator


@triton.jit
def tma_tile(
    a,
    b,
    c,
    partials,
    arrivals,
    M,
    N,
    K,
    stride_cm,
    index,
    CTA_M: tl.constexpr,
    CTA_N: tl.constexpr,
    CTA_K: tl.constexpr,
    GROUP_M: tl.constexpr,
    SPLIT_K: tl.constexpr,
    A_TRANSPOSED: tl.constexpr,
    B_TRANSPOSED: tl.constexpr,
    TMA_STORE: tl.constexpr,
    EPILOGUE_SUBTILE: tl.constexpr,
    SWAPPED: tl.constexpr,
    CHUNK: tl.constexpr,
    UNORDERED: tl.constexpr,
):
    """The tile, or share of a tile, at place `index`. CHUNK: rows in which the last of a tile's splits adds them; 0 where it does not."""
    tiles_m, tiles_n = tl.cdiv(M, CTA_M), tl.cdiv(N, CTA_N)
    tile, split = index % (tiles_m * tiles_n), index // (tiles_m * tiles_n)
    tile_m, tile_n = tile_of(tile, tiles_m, tiles_n, GROUP_M)
    row, column = tile_m * CTA_M, tile_n * CTA_N
    # every split takes as many steps, or the loops over tiles and K could not be fused. At least one, since a loop that may be skipped
    # makes ptxas run the wgmma of 128x256 tiles one by one (C7515), at two thirds of the speed
    steps = tl.maximum(tl.cdiv(tl.cdiv(K, CTA_K), SPLIT_K), 1)
    total = tma_sum(a, b, row, column, split * steps * CTA_K, steps, CTA_M, CTA_N, CTA_K, A_TRANSPOSED, B_TRANSPOSED)
    if CHUNK:
        if UNORDERED:
            add_to_sum(partials, tile, total)
        else:
            store_part(partials, tile * SPLIT_K + split, total)
        if is_last(arrivals, tile, SPLIT_K):
            add_splits(partials, c, row, column, M, N, stride_cm, tile, SPLIT_K, CTA_M, CTA_N, CHUNK, SWAPPED, UNORDERED)
    else:
        store_tile(c, total, row, column, split, M, N, stride_cm, TMA_STORE, EPILOGUE_SUBTILE, SWAPPED)


@triton.jit
def tma_share(
    a,
    b,
    c,
    partials,
    arrivals,
    M,
    N,
    K,
    stride_cm,
    CTA_M: tl.constexpr,
    CTA_N: tl.constexpr,
    CTA_K: tl.constexpr,
    GROUP_M: tl.constexpr,
    A_TRANSPOSED: tl.constexpr,
    B_TRANSPOSED: tl.constexpr,
    SWAPPED: tl.constexpr,
    CHUNK: tl.constexpr,
):
    """A CTA's share of all K steps under stream-K: parts of tiles first, then whole tiles, whose stores are all that is left at the end."""
    tiles_m, tiles_n, steps = tl.cdiv(M, CTA_M), tl.cdiv(N, CTA_N), tl.maximum(tl.cdiv(K, CTA_K), 1)
    tiles, cta, ctas = tiles_m * tiles_n, tl.program_id(0), tl.num_programs(0)
    whole = whole_tiles(tiles, ctas)
    shared = tiles - whole
    units = shared * steps
    begin, end = first_unit(cta, units, ctas), first_unit(cta + 1, units, ctas)
    parts = tl.where(end > begin, (end - 1) // steps - begin // steps + 1, 0)
    for turn in range(parts + tl.cdiv(tl.maximum(whole - cta, 0), ctas)):
        in_share = turn < parts
        tile = tl.where(in_share, begin // steps + turn, shared + cta + (turn - parts) * ctas)
        first_step = tl.where(in_share, tl.maximum(begin - tile * steps, 0), 0)
        last_step = tl.where(in_share, tl.minimum(end - tile * steps, steps), steps)
        tile_m, tile_n = tile_of(tile, tiles_m, tiles_n, GROUP_M)
        row, column, count = tile_m * CTA_M, tile_n * CTA_N, tl.maximum(last_step - first_step, 1)
        total = tma_sum(a, b, row, column, first_step * CTA_K, count, CTA_M, CTA_N, CTA_K, A_TRANSPOSED, B_TRANSPOSED)
        if count == steps:
            store_block(c, total, row, column, 0, M, N, stride_cm, False, SWAPPED)
        else:
            # a CTA has at most a part of a tile that others began, in its even slot, and of one that it begins itself, in its odd slot
            store_part(partials, 2 * cta + (first_step == 0).to(tl.int32), total)
            opener = owner_of(tile * steps, units, ctas)
            owners = owner_of(tile * steps + steps - 1, units, ctas) - opener + 1
            if is_last(arrivals, tile, owners):
                first = 2 * opener + 1
                add_parts(partials, c, row, column, M, N, stride_cm, first, first + 1, 2, owners, CTA_M, CTA_N, CHUNK, 3, SWAPPED, False)


@triton.jit
def tma_gemm(
    a,
    b,
    c,
    partials,
    arrivals,
    M,
    N,
    K,
    stride_cm,
    CTA_M: tl.constexpr,
    CTA_N: tl.constexpr,
    CTA_K: tl.constexpr,
    GROUP_M: tl.constexpr,
    SPLIT_K: tl.constexpr,
    A_TRANSPOSED: tl.constexpr,
    B_TRANSPOSED: tl.constexpr,
    TMA_STORE: tl.constexpr,
    EPILOGUE_SUBTILE: tl.constexpr,
    SWAPPED: tl.constexpr,
    CHUNK: tl.constexpr,
    UNORDERED: tl.constexpr,
    PERSISTENT: tl.constexpr,
    FLATTEN: tl.constexpr,
    STREAM_K: tl.constexpr,
):
    """C = A @ B. a and b are descriptors of the stored matrices, c is one with TMA_STORE and a pointer without; SWAPPED: to C^T.

    With SPLIT_K > 1 and no CHUNK, c is [SPLIT_K, M, N] and split z writes the partial sums of its share of K to c[z]; with CHUNK, as under
    stream-K, parts of tiles go to `partials` and the last to arrive adds them.
    """
    if STREAM_K:
        tma_share(
            a, b, c, partials, arrivals, M, N, K, stride_cm, CTA_M, CTA_N, CTA_K, GROUP_M, A_TRANSPOSED, B_TRANSPOSED, SWAPPED, CHUNK
        )  # fmt: skip
    elif PERSISTENT:
        total = tl.cdiv(M, CTA_M) * tl.cdiv(N, CTA_N) * SPLIT_K
        for index in tl.range(tl.program_id(0), total, tl.num_programs(0), flatten=FLATTEN):
            tma_tile(
                a, b, c, partials, arrivals, M, N, K, stride_cm, index,
                CTA_M, CTA_N, CTA_K, GROUP_M, SPLIT_K, A_TRANSPOSED, B_TRANSPOSED, TMA_STORE, EPILOGUE_SUBTILE, SWAPPED, CHUNK, UNORDERED,
            )  # fmt: skip
    else:
        tma_tile(
            a, b, c, partials, arrivals, M, N, K, stride_cm, tl.program_id(0),
            CTA_M, CTA_N, CTA_K, GROUP_M, SPLIT_K, A_TRANSPOSED, B_TRANSPOSED, TMA_STORE, EPILOGUE_SUBTILE, SWAPPED, CHUNK, UNORDERED,
        )  # fmt: skip


def descriptor_obstacle(name: str, x: torch.Tensor, box: tuple[int, int]) -> str | None:
    """Why no descriptor of the stored matrix x can be made; None where one can. The rules are those of cuTensorMapEncodeTiled."""
    outer, inner = x.stride()
    if 0 in x.shape:
        return f"{name} is empty, {tuple(x.shape)}; a tensor descriptor needs at least one element"
    if inner != 1:
        return f"neither rows nor columns of {name} are stored side by side (strides {outer} and {inner})"
    if x.data_ptr() % 16:
        return f"{name} starts {x.data_ptr() % 16} bytes past a multiple of 16"
    if outer * x.element_size() % 16 or outer < x.shape[1]:
        row_bytes = x.shape[1] * x.element_size()
        return f"row stride of {name} is {outer * x.element_size()} bytes; it must be a multiple of 16, at least the {row_bytes} of a row"
    if max(box) > 256 or box[1] * x.element_size() < 16:
        return f"a box of {box[0]}x{box[1]} elements of {name}: an edge takes at most 256 elements, and a row at least 16 bytes"
    return None


def stored(x: torch.Tensor, rows: int, columns: int) -> tuple[torch.Tensor, tuple[int, int]]:
    """The matrix as it lies in memory, and the box of it that is a tile of `rows` x `columns`."""
    return as_stored(x), (columns, rows) if is_transposed(x) else (rows, columns)


def tma_box(schedule: Any) -> tuple[int, int]:
    """Rows and columns of C that one TMA store writes. Where a family has tiles of two powers of two, of the first of them."""
    columns = (1 << schedule.cta_n.bit_length() - 1) // schedule.epilogue_subtile
    return (columns, schedule.cta_m) if schedule.swap_ab else (schedule.cta_m, columns)


def tma_stores(c: torch.Tensor, schedule: Any) -> bool:
    """TMA writes whole 16-byte chunks, even past the last column: rows of C must be whole chunks. Parts of tiles go through pointers."""
    if schedule.split_k > 1 or schedule.stream_k:
        return False
    return c.shape[1] * c.element_size() % 16 == 0 and descriptor_obstacle("C", c, tma_box(schedule)) is None


def tma_supports(a: torch.Tensor, b: torch.Tensor, c: torch.Tensor, schedule: Any) -> str | None:
    """Why this schedule cannot run on these tensors; None where it can."""
    if schedule.epilogue_subtile not in (1, 2):
        return f"epilogue_subtile is {schedule.epilogue_subtile}; it must be 1 or 2"
    x, y = exchanged(as_packed(a, schedule), as_packed(b, schedule), schedule)
    row_stride = c.shape[1] if schedule.split_k > 1 and not schedule.fused_reduction else c.stride(0)
    rows = schedule.cta_n if schedule.swap_ab else schedule.cta_m
    if not tma_stores(c, schedule) and row_stride * rows + c.shape[1] > 2**31:
        return f"rows of C are {row_stride} elements apart: a tile of {rows} rows passes the 2**31 elements of its 32-bit offsets"
    obstacle_a = descriptor_obstacle("B" if schedule.swap_ab else "A", *stored(x, schedule.cta_m, schedule.cta_k))
    obstacle_b = descriptor_obstacle("A" if schedule.swap_ab else "B", *stored(y, schedule.cta_k, schedule.cta_n))
    return tensor_obstacle(a, b, c, schedule) or partition_obstacle(x, y, schedule) or obstacle_a or obstacle_b


def tma_grid(a: torch.Tensor, b: torch.Tensor, schedule: Any, sms: int) -> tuple[int, int]:
    """(tiles, CTAs) of the launch."""
    x, y = exchanged(a, b, schedule)
    tiles = triton.cdiv(x.shape[0], schedule.cta_m) * triton.cdiv(y.shape[1], schedule.cta_n)
    work, persistent = tiles * schedule.split_k, schedule.persistent_ctas_per_sm * sms
    if schedule.stream_k:
        return tiles, persistent
    return tiles, min(persistent, work) if persistent else work


def tma_scratch(a: torch.Tensor, b: torch.Tensor, c: torch.Tensor, schedule: Any, sms: int) -> dict[str, Scratch]:
    return pack_scratch(a, b, schedule) | split_scratch(c, schedule) | part_scratch(schedule, *tma_grid(a, b, schedule, sms))


def tma_calls(a: torch.Tensor, b: torch.Tensor, c: torch.Tensor, schedule: Any, sms: int, scratch: dict[str, torch.Tensor]) -> list[Call]:
    """a: [M, K] and b: [K, N], stored by rows or by columns; c: [M, N] with rows of neighbouring elements; see `tma_supports`."""
    copies = pack_calls(a, b, scratch)
    x, y = exchanged(packed_operand(a, scratch.get("packed_a")), packed_operand(b, scratch.get("packed_b")), schedule)
    out = scratch.get("split_sums", c)
    tma_store, partials = tma_stores(c, schedule), scratch.get("partials")
    x_stored, box_x = stored(x, schedule.cta_m, schedule.cta_k)
    y_stored, box_y = stored(y, schedule.cta_k, schedule.cta_n)
    arguments = {
        "a": TensorDescriptor.from_tensor(x_stored, list(box_x)),
        "b": TensorDescriptor.from_tensor(y_stored, list(box_y)),
        "c": TensorDescriptor.from_tensor(c, list(tma_box(schedule))) if tma_store else out,
        "partials": partials,
        "arrivals": scratch.get("arrivals"),
        "M": x.shape[0],
        "N": y.shape[1],
        "K": x.shape[1],
        "stride_cm": out.stride(-2),
    }
    constants = {
        "CTA_M": schedule.cta_m,
        "CTA_N": schedule.cta_n,
        "CTA_K": schedule.cta_k,
        "GROUP_M": min(schedule.group_m, triton.cdiv(x.shape[0], schedule.cta_m)),
        "SPLIT_K": schedule.split_k,
        "A_TRANSPOSED": x_stored is not x,
        "B_TRANSPOSED": y_stored is not y,
        "TMA_STORE": tma_store,
        "EPILOGUE_SUBTILE": schedule.epilogue_subtile,
        "SWAPPED": bool(schedule.swap_ab),
        "CHUNK": 0 if partials is None else chunk_rows(schedule),
        "UNORDERED": is_unordered(schedule),
        "PERSISTENT": schedule.persistent_ctas_per_sm > 0,
        "FLATTEN": bool(schedule.flatten),
        "STREAM_K": bool(schedule.stream_k),
    }
    grid = (tma_grid(a, b, schedule, sms)[1], 1, 1)
    gemm = Call(tma_gemm, grid, arguments, constants, schedule.warps, schedule.stages)
    return [*copies, gemm] if out is c else [*copies, gemm, sum_splits_call(out, c)]


supports = tma_supports
scratch = tma_scratch
calls = tma_calls
EXPORTS = (
    *launch.EXPORTS,
    *raster.EXPORTS,
    *reduction.EXPORTS,
    *partition.EXPORTS,
    *(store_block, store_tile, tma_sum, tma_tile, tma_share, tma_gemm),
    *packing.EXPORTS,
    *(descriptor_obstacle, stored, tma_box, tma_stores, tma_supports, tma_grid, tma_scratch, tma_calls),
)
