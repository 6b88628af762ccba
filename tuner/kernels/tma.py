"""The family `tma`: loads, and stores where C allows it, by tensor descriptors made on the host; one CTA a tile, or a persistent grid."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import triton
import triton.language as tl
from triton.tools.tensor_descriptor import TensorDescriptor

from tuner.kernels import launch, raster, reduction
from tuner.kernels.launch import Call, tensor_obstacle
from tuner.kernels.raster import tile_of
from tuner.kernels.reduction import split_workspace, sum_splits_call

if TYPE_CHECKING:
    import torch


@triton.jit
def store_block(c, block, row, column, split, M, N, stride_cm, TMA_STORE: tl.constexpr):
    if TMA_STORE:
        c.store([row, column], block.to(c.dtype))
    else:
        # 32-bit offsets take half the registers of 64-bit ones; with absolute columns they are not held from tile to tile
        rows, columns = row + tl.arange(0, block.shape[0]), column + tl.arange(0, block.shape[1])
        corner = c + (split * tl.cast(M, tl.int64) + row) * stride_cm
        offsets = (rows - row)[:, None] * stride_cm + columns[None, :]
        tl.store(corner + offsets, block.to(c.dtype.element_ty), mask=(rows < M)[:, None] & (columns < N)[None, :])


@triton.jit
def tma_tile(
    a,
    b,
    c,
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
):
    tiles_m, tiles_n = tl.cdiv(M, CTA_M), tl.cdiv(N, CTA_N)
    split = index // (tiles_m * tiles_n)
    tile_m, tile_n = tile_of(index % (tiles_m * tiles_n), tiles_m, tiles_n, GROUP_M)
    row, column = tile_m * CTA_M, tile_n * CTA_N
    # every split takes as many steps, or the loops over tiles and K could not be fused; what lies outside a matrix is loaded as zero. At
    # least one, since a loop that may be skipped makes ptxas run the wgmma of 128x256 tiles one by one (C7515), at two thirds of the speed
    steps = tl.maximum(tl.cdiv(tl.cdiv(K, CTA_K), SPLIT_K), 1)
    start = split * steps * CTA_K
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
    if EPILOGUE_SUBTILE == 2:
        left, right = tl.split(tl.permute(tl.reshape(accumulator, (CTA_M, 2, CTA_N // 2)), (0, 2, 1)))
        store_block(c, left, row, column, split, M, N, stride_cm, TMA_STORE)
        store_block(c, right, row, column + CTA_N // 2, split, M, N, stride_cm, TMA_STORE)
    else:
        store_block(c, accumulator, row, column, split, M, N, stride_cm, TMA_STORE)


@triton.jit
def tma_gemm(
    a,
    b,
    c,
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
    PERSISTENT: tl.constexpr,
    FLATTEN: tl.constexpr,
):
    """C = A @ B. a and b are descriptors of the stored matrices, c is one with TMA_STORE and a pointer without.

    With SPLIT_K > 1, c is [SPLIT_K, M, N] and split z writes the partial sums of its share of K to c[z].
    """
    if PERSISTENT:
        total = tl.cdiv(M, CTA_M) * tl.cdiv(N, CTA_N) * SPLIT_K
        for index in tl.range(tl.program_id(0), total, tl.num_programs(0), flatten=FLATTEN):
            tma_tile(
                a, b, c, M, N, K, stride_cm, index,
                CTA_M, CTA_N, CTA_K, GROUP_M, SPLIT_K, A_TRANSPOSED, B_TRANSPOSED, TMA_STORE, EPILOGUE_SUBTILE,
            )  # fmt: skip
    else:
        tma_tile(
            a, b, c, M, N, K, stride_cm, tl.program_id(0),
            CTA_M, CTA_N, CTA_K, GROUP_M, SPLIT_K, A_TRANSPOSED, B_TRANSPOSED, TMA_STORE, EPILOGUE_SUBTILE,
        )  # fmt: skip


def is_transposed(x: torch.Tensor) -> bool:
    """Whether the matrix is stored by columns."""
    return x.stride(1) != 1 and x.stride(0) == 1


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
    return (x.t(), (columns, rows)) if is_transposed(x) else (x, (rows, columns))


def tma_stores(c: torch.Tensor, schedule: Any) -> bool:
    """TMA writes whole 16-byte chunks, even past the last column: rows of C must be whole chunks. Partial sums go through pointers."""
    box = (schedule.cta_m, schedule.cta_n // schedule.epilogue_subtile)
    return schedule.split_k == 1 and c.shape[1] * c.element_size() % 16 == 0 and descriptor_obstacle("C", c, box) is None


def tma_supports(a: torch.Tensor, b: torch.Tensor, c: torch.Tensor, schedule: Any) -> str | None:
    """Why this schedule cannot run on these tensors; None where it can."""
    if schedule.epilogue_subtile not in (1, 2):
        return f"epilogue_subtile is {schedule.epilogue_subtile}; it must be 1 or 2"
    row_stride = c.shape[1] if schedule.split_k > 1 else c.stride(0)
    if not tma_stores(c, schedule) and row_stride * schedule.cta_m + c.shape[1] > 2**31:
        return f"rows of C are {row_stride} elements apart: a tile of {schedule.cta_m} rows passes the 2**31 elements of its 32-bit offsets"
    obstacle_a = descriptor_obstacle("A", *stored(a, schedule.cta_m, schedule.cta_k))
    obstacle_b = descriptor_obstacle("B", *stored(b, schedule.cta_k, schedule.cta_n))
    return tensor_obstacle(a, b, c, schedule) or obstacle_a or obstacle_b


def tma_calls(
    a: torch.Tensor, b: torch.Tensor, c: torch.Tensor, schedule: Any, sms: int, workspace: torch.Tensor | None = None
) -> list[Call]:
    """a: [M, K] and b: [K, N], stored by rows or by columns; c: [M, N] with rows of neighbouring elements; see `tma_supports`."""
    (m, k), n = a.shape, b.shape[1]
    splits = schedule.split_k
    if splits > 1 and workspace is None:
        workspace = split_workspace(c, splits)
    out = c if workspace is None or splits == 1 else workspace
    tma_store = tma_stores(c, schedule)
    box_c = [schedule.cta_m, schedule.cta_n // schedule.epilogue_subtile]
    a_stored, box_a = stored(a, schedule.cta_m, schedule.cta_k)
    b_stored, box_b = stored(b, schedule.cta_k, schedule.cta_n)
    tiles_m, tiles_n = triton.cdiv(m, schedule.cta_m), triton.cdiv(n, schedule.cta_n)
    work = tiles_m * tiles_n * splits
    persistent = schedule.persistent_ctas_per_sm > 0
    arguments = {
        "a": TensorDescriptor.from_tensor(a_stored, list(box_a)),
        "b": TensorDescriptor.from_tensor(b_stored, list(box_b)),
        "c": TensorDescriptor.from_tensor(c, box_c) if tma_store else out,
        "M": m,
        "N": n,
        "K": k,
        "stride_cm": out.stride(-2),
    }
    constants = {
        "CTA_M": schedule.cta_m,
        "CTA_N": schedule.cta_n,
        "CTA_K": schedule.cta_k,
        "GROUP_M": min(schedule.group_m, tiles_m),
        "SPLIT_K": splits,
        "A_TRANSPOSED": a_stored is not a,
        "B_TRANSPOSED": b_stored is not b,
        "TMA_STORE": tma_store,
        "EPILOGUE_SUBTILE": schedule.epilogue_subtile,
        "PERSISTENT": persistent,
        "FLATTEN": bool(schedule.flatten),
    }
    grid = (min(schedule.persistent_ctas_per_sm * sms, work) if persistent else work, 1, 1)
    gemm = Call(tma_gemm, grid, arguments, constants, schedule.warps, schedule.stages)
    return [gemm] if out is c else [gemm, sum_splits_call(out, c)]


supports = tma_supports
calls = tma_calls
EXPORTS = (
    *launch.EXPORTS,
    *raster.EXPORTS,
    *reduction.EXPORTS,
    *(store_block, tma_tile, tma_gemm, is_transposed, descriptor_obstacle, stored, tma_stores, tma_supports, tma_calls),
)
