"""Copies of operands whose rows are not aligned, as TMA needs them to be, to scratch matrices whose rows are: part of the launches, and of
their time."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import triton
import triton.language as tl

from tuner.kernels.launch import Call, Scratch

if TYPE_CHECKING:
    import torch


@triton.jit
def copy_rows(
    source, target, ROWS, COLUMNS, stride_source, stride_target, UNIT: tl.constexpr, BLOCK: tl.constexpr, ROWS_AT_ONCE: tl.constexpr
):
    """UNIT: what COLUMNS and stride_source are multiples of."""
    blocks = tl.cdiv(stride_target, BLOCK)
    rows = tl.program_id(0) // blocks * ROWS_AT_ONCE + tl.arange(0, ROWS_AT_ONCE)[:, None]
    columns = tl.program_id(0) % blocks * BLOCK + tl.arange(0, BLOCK)[None, :]
    step = tl.multiple_of(tl.cast(stride_source, tl.int64), UNIT)
    values = tl.load(source + rows * step + columns, mask=(rows < ROWS) & (columns < tl.multiple_of(COLUMNS, UNIT)), other=0.0)
    # rows of the copy are filled with zeros to their end, in whole vectors
    tl.store(target + rows.to(tl.int64) * stride_target + columns, values, mask=(rows < ROWS) & (columns < stride_target))


def is_transposed(x: torch.Tensor) -> bool:
    """Whether the matrix is stored by columns."""
    return x.stride(1) != 1 and x.stride(0) == 1


def as_stored(x: torch.Tensor) -> torch.Tensor:
    """The matrix by rows as they lie in memory."""
    return x.t() if is_transposed(x) else x


def needs_packing(x: torch.Tensor) -> bool:
    """Whether rows of neighbouring elements start between multiples of 16 bytes."""
    outer, inner = as_stored(x).stride()
    return inner == 1 and (x.data_ptr() % 16 != 0 or outer * x.element_size() % 16 != 0)


def packed_shape(x: torch.Tensor) -> tuple[int, int]:
    """Of the copy: its rows are whole lines of 128 bytes."""
    rows, columns = as_stored(x).shape
    line = 128 // x.element_size()
    return rows, -(-columns // line) * line


def pack_scratch(a: torch.Tensor, b: torch.Tensor, schedule: Any) -> dict[str, Scratch]:
    names = {"torch.float16": "fp16", "torch.bfloat16": "bf16"}
    unaligned = {"packed_a": a, "packed_b": b} if schedule.pad else {}
    return {name: Scratch(names[str(x.dtype)], packed_shape(x)) for name, x in unaligned.items() if needs_packing(x)}


def packed_operand(x: torch.Tensor, copy: Any) -> torch.Tensor:
    """The operand as its copy [rows, columns and more] holds it; x itself where there is none."""
    if copy is None:
        return x
    columns = as_stored(x).shape[1]
    view = copy.narrow(1, 0, columns)
    return view.t() if is_transposed(x) else view


def as_packed(x: torch.Tensor, schedule: Any) -> torch.Tensor:
    """The operand as the kernel will be given it, by shape and strides alone where it is to be copied."""
    import torch

    to_copy = schedule.pad and needs_packing(x)
    return packed_operand(x, torch.empty(packed_shape(x), dtype=x.dtype, device="meta") if to_copy else None)


def pack_calls(a: torch.Tensor, b: torch.Tensor, scratch: dict[str, torch.Tensor]) -> list[Call]:
    """What fills the copies."""
    calls = []
    for name, x in (("packed_a", a), ("packed_b", b)):
        if name not in scratch:
            continue
        source, target = as_stored(x), scratch[name]
        (rows, columns), block, at_once = source.shape, 1024, 4
        arguments = {
            "source": source,
            "target": target,
            "ROWS": rows,
            "COLUMNS": columns,
            "stride_source": source.stride(0),
            "stride_target": target.stride(0),
        }
        constants = {"UNIT": math.gcd(columns, source.stride(0), 16), "BLOCK": block, "ROWS_AT_ONCE": at_once}
        grid = (triton.cdiv(rows, at_once) * triton.cdiv(target.stride(0), block), 1, 1)
        calls.append(Call(copy_rows, grid, arguments, constants, 4, 1))
    return calls


EXPORTS = (copy_rows, is_transposed, as_stored, needs_packing, packed_shape, pack_scratch, packed_operand, as_packed, pack_calls)
