"""How the partial sums of split-K become the output: added in fp32, in one fixed order, so that the same input gives the same bits."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import triton
import triton.language as tl

from tuner.kernels.launch import Call, Scratch

if TYPE_CHECKING:
    import torch


@triton.jit
def sum_splits(workspace, c, M, N, stride_cm, SPLIT_K: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr):
    blocks_n = tl.cdiv(N, BLOCK_N)
    block = tl.program_id(0)
    rows = (block // blocks_n * BLOCK_M + tl.arange(0, BLOCK_M)).to(tl.int64)[:, None]
    columns = (block % blocks_n * BLOCK_N + tl.arange(0, BLOCK_N))[None, :]
    inside = (rows < M) & (columns < N)
    partials = workspace + rows * N + columns
    slab = tl.cast(M, tl.int64) * N
    total = tl.zeros((BLOCK_M, BLOCK_N), dtype=tl.float32)
    for split in tl.static_range(SPLIT_K):
        total += tl.load(partials + split * slab, mask=inside, other=0.0)
    tl.store(c + rows * stride_cm + columns, total.to(c.dtype.element_ty), mask=inside)


def sum_splits_call(workspace: torch.Tensor, c: torch.Tensor) -> Call:
    """workspace: fp32 [splits, M, N] without gaps; c: [M, N] with rows of neighbouring elements."""
    splits, m, n = workspace.shape
    elements = 512  # 16 bytes of every split for each thread of 4 warps
    block_n = min(triton.next_power_of_2(n), elements)
    block_m = elements // block_n
    grid = (triton.cdiv(m, block_m) * triton.cdiv(n, block_n), 1, 1)
    arguments: dict[str, Any] = {"workspace": workspace, "c": c, "M": m, "N": n, "stride_cm": c.stride(0)}
    return Call(sum_splits, grid, arguments, {"SPLIT_K": splits, "BLOCK_M": block_m, "BLOCK_N": block_n}, 4, 1)


def split_scratch(c: torch.Tensor, schedule: Any) -> dict[str, Scratch]:
    """What split-K needs that is added in a second launch."""
    in_two_launches = schedule.split_k > 1 and not schedule.fused_reduction
    return {"split_sums": Scratch("fp32", (schedule.split_k, *c.shape))} if in_two_launches else {}


EXPORTS = (sum_splits, sum_splits_call, split_scratch)
