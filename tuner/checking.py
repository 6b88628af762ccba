"""Is the answer right? Guard zones around every buffer, poisoned outputs, a float32 reference, and bounds that grow with K.

Works on any torch device, so that all of it is tested without a GPU.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import torch

from tuner.memory_plan import GUARD_ELEMENTS, MOST_BLOCK_BYTES
from tuner.operands import View

POISON = float("nan")
PATTERN = -1234.0  # exact in fp16, bf16 and fp32; what no kernel would write into a guard zone by chance
ACCUMULATOR_ROUNDING = 2.0**-24  # of fp32: half a unit in the last place, of 1
LEAST_ACCUMULATED = 2.0**-149  # the smallest fp32 above zero: each addition may lose half of it
SAFETY = (
    16.0  # over the expected error of a random sum: tensor cores truncate where fp32 would round, and the worst of millions is looked at
)
ELEMENT_BYTES = 40  # that an element of C takes while it is compared: the reference, its bounds, the answer, errors
SAMPLED_ROWS = 256  # of C, where the reference is not kept and the schedule has been looked at in full
PRINTED_ELEMENTS = 2**22  # at once
_BITS = {torch.float16: torch.int16, torch.bfloat16: torch.int16, torch.float32: torch.int32, torch.int32: torch.int32}
_WEIGHTS = (0x1E3779B97F4A7C15, 0x2545F4914F6CDD1D)  # of rows and columns: any large odd numbers do


@dataclass(frozen=True)
class Guarded:
    """A matrix inside a larger buffer, GUARD_ELEMENTS from its start. `matrix` is the view that kernels get."""

    buffer: torch.Tensor
    matrix: torch.Tensor
    view: View

    def poison(self, inside: float = POISON) -> None:
        """NaN where an answer belongs, the pattern everywhere else: before, after, and between the rows."""
        self.buffer.fill_(PATTERN)
        self.matrix.fill_(inside)

    def overwritten(self) -> int:
        """Elements outside the matrix that no longer hold the pattern."""
        pattern = _pattern_bits(self.buffer)
        return sum(int((zone.view(_BITS[zone.dtype]) != pattern).sum()) for zone in self._zones())

    def _zones(self) -> Iterator[torch.Tensor]:
        """All of the buffer that is not the matrix, in views of no more than PRINTED_ELEMENTS or one row's gap."""
        yield self.buffer[:GUARD_ELEMENTS]
        yield self.buffer[GUARD_ELEMENTS + self.view.elements :]
        if len(self.view.shape) != 2:
            return  # scratch, whose rows follow each other
        (stride, rows), (_, columns) = sorted(zip(self.view.strides, self.view.shape, strict=True), reverse=True)
        gap = stride - columns
        at_once = max(PRINTED_ELEMENTS // max(gap, 1), 1)
        for first in range(0, rows - 1 if gap > 0 else 0, at_once):
            start = self.buffer[GUARD_ELEMENTS + first * stride + columns :]
            yield start.as_strided((min(at_once, rows - 1 - first), gap), (stride, 1))


def _pattern_bits(buffer: torch.Tensor) -> torch.Tensor:
    return torch.full((1,), PATTERN, dtype=buffer.dtype, device=buffer.device).view(_BITS[buffer.dtype])


def guarded(view: View, device: str) -> Guarded:
    fill = POISON if view.dtype.is_floating_point else PATTERN
    buffer = torch.full((view.elements + 2 * GUARD_ELEMENTS,), fill, dtype=view.dtype, device=device)
    return Guarded(buffer, buffer[GUARD_ELEMENTS:].as_strided(view.shape, view.strides), view)


@dataclass(frozen=True)
class Verdict:
    """relative_error: Frobenius norm of the error over that of the reference. worst: the error furthest over what rounding explains, as a
    multiple of that; 0 where none is over it."""

    relative_error: float
    error_bound: float
    worst: float
    message: str

    @property
    def right(self) -> bool:
        return not self.message


def error_bound(k: int, out_dtype: torch.dtype, *, mean_size: float = math.inf) -> float:
    """Largest relative error, in Frobenius norm, that a right kernel makes: one rounding to the output's type, and fp32 sums of K products.

    Rounding errors of a sum of K terms grow like sqrt(K) (Higham and Mary 2019), and random normal operands cancel alike. mean_size: root
    mean square of the answer; where it nears the smallest numbers of the output's type, roundings are no share of it any more.
    """
    floor = min(_half_smallest(out_dtype) / max(mean_size, LEAST_ACCUMULATED), 1.0)
    return torch.finfo(out_dtype).eps / 2 + floor + SAFETY * ACCUMULATOR_ROUNDING * math.sqrt(max(k, 1))


def _half_smallest(dtype: torch.dtype) -> float:
    """What rounding may lose of any number, however small: half the smallest subnormal."""
    kind = torch.finfo(dtype)
    return kind.smallest_normal * kind.eps / 2


def block_shape(m: int, n: int, k: int, budget_bytes: int) -> tuple[int, int]:
    """(rows, columns) of the blocks in which C [M, N] is compared, so that a block with its part of A and B in fp32 takes no more bytes,
    if one element of C does not take more alone."""
    columns = min(n, max(budget_bytes // 2 // (4 * k + 1), 1))
    rows = (budget_bytes - 4 * k * columns) // (4 * k + ELEMENT_BYTES * columns)
    return min(max(rows, 1), max(m, 1)), max(columns, 1)


class _Block(NamedTuple):
    """Of C: the reference, and by row and column what fp32 sums may lose."""

    rows: slice
    columns: slice
    reference: torch.Tensor
    row_spread: torch.Tensor
    column_spread: torch.Tensor


class Reference:
    """The float32 product of A [M, K] and B [K, N], and how far each element of an answer may be off it.

    An element is right where rounding, to the output's type, a sum that is no further from the reference than fp32 sums of its row and
    column may be could have made it. So one rule holds for every type and size: normal numbers, subnormals, and infinity where that is
    what the sum rounds to. Small elements, too, must be right, which a kernel that rounds partial sums to 16 bits fails.

    keep: whether the product, of 4 bytes an element, is made once and kept; else it is made anew for each check.
    """

    def __init__(
        self, a: torch.Tensor, b: torch.Tensor, out_dtype: torch.dtype, *, keep: bool = True, budget_bytes: int = MOST_BLOCK_BYTES
    ) -> None:
        self._a, self._b, self._out_dtype, self._budget = a, b, out_dtype, budget_bytes
        self.keeps = keep
        self._kept: list[_Block] | None = None

    def release(self) -> None:
        """Keep nothing from now on, for want of memory."""
        self.keeps, self._kept = False, None

    def _blocks(self, a: torch.Tensor) -> Iterator[_Block]:
        (m, k), n = a.shape, self._b.shape[1]
        rows, columns = block_shape(m, n, k, self._budget)
        for left in range(0, n, columns):
            b = self._b[:, left : left + columns].float()
            column_spread = torch.linalg.vector_norm(b, dim=0, dtype=torch.float64).mul_(SAFETY * ACCUMULATOR_ROUNDING).float()
            for top in range(0, m, rows):
                part = a[top : top + rows].float()
                # K roundings of terms of the size |row| |column| / K: linear, since truncation has a sign
                row_spread = torch.linalg.vector_norm(part, dim=1, dtype=torch.float64).float()
                yield _Block(slice(top, top + rows), slice(left, left + columns), part @ b, row_spread, column_spread)

    def _all_blocks(self) -> Iterator[_Block] | list[_Block]:
        if not self.keeps:
            return self._blocks(self._a)
        if self._kept is None:
            self._kept = list(self._blocks(self._a))
        return self._kept

    def check(self, c: Guarded, *, sampled: bool = False) -> Verdict:
        """Compare every element of C, and the guard zones around it. sampled: where the reference is not kept, SAMPLED_ROWS rows of C are
        compared, evenly spread over it."""
        answer, blocks = c.matrix, None
        if sampled and not self.keeps:
            rows = torch.linspace(0, answer.shape[0] - 1, min(SAMPLED_ROWS, answer.shape[0]), dtype=torch.float64)
            rows = rows.long().to(answer.device)
            answer, blocks = answer.index_select(0, rows), self._blocks(self._a.index_select(0, rows))
        tally = _Tally(self._out_dtype, self._a.shape[1], answer.device)
        for block in blocks or self._all_blocks():
            tally.add(answer[block.rows, block.columns], block)
        return tally.verdict(answer.numel(), c.overwritten())


class _Tally:
    """Counts over the blocks of one answer, on the device until the end."""

    def __init__(self, out_dtype: torch.dtype, k: int, device: torch.device) -> None:
        self._out_dtype, self._k = out_dtype, k
        self._squares_error, self._squares, self._nans, self._worst = torch.zeros(4, dtype=torch.float64, device=device)

    def add(self, answer: torch.Tensor, block: _Block) -> None:
        reference, value = block.reference, answer.float()
        spread = torch.outer(block.row_spread, block.column_spread).add_((self._k + 1) * LEAST_ACCUMULATED)
        right = value >= (reference - spread).to(self._out_dtype)
        right &= value <= (reference + spread).to(self._out_dtype)
        overflowed = right & value.isinf()  # as it should
        error = (value - reference).abs_().masked_fill_(overflowed, 0.0)
        size = reference.abs().masked_fill_(overflowed, 0.0)
        self._squares_error += error.square().sum(dtype=torch.float64)
        self._squares += size.square().sum(dtype=torch.float64)
        self._nans += value.isnan().sum()
        kind = torch.finfo(self._out_dtype)
        explained = spread.add_(size.mul_(kind.eps / 2).clamp_(min=max(_half_smallest(self._out_dtype), LEAST_ACCUMULATED)))
        off = error.div_(explained).nan_to_num_(nan=math.inf, posinf=math.inf).masked_fill_(right, 0.0)
        self._worst = torch.maximum(self._worst, off.max())

    def verdict(self, elements: int, overwritten: int) -> Verdict:
        squares_error, squares, nans, worst = (
            float(value) for value in torch.stack([self._squares_error, self._squares, self._nans, self._worst])
        )
        bound = error_bound(self._k, self._out_dtype, mean_size=math.sqrt(squares / max(elements, 1)))
        relative = math.sqrt(squares_error / squares) if squares > 0 else math.sqrt(squares_error)
        return Verdict(relative, bound, worst, _complaint(relative, bound, worst, nans > 0, overwritten))


def _complaint(relative: float, bound: float, worst: float, has_nan: bool, overwritten: int) -> str:
    if overwritten:
        return f"{overwritten} elements outside C were overwritten"
    if has_nan:
        return "C holds NaN: elements that were not written, or that used what lies outside A and B"
    if relative > bound:
        return f"relative error {relative:.3g} is over the bound of {bound:.3g}"
    if worst > 0:
        return f"an element is off by {worst:.3g} times what rounding explains"
    return ""


def fingerprints(matrices: torch.Tensor) -> list[int]:
    """A number for the bits of each of [copies, rows, columns]: other bits, another number. It takes the place of a copy, for which there
    may be no memory."""
    bits = matrices.view(_BITS[matrices.dtype])
    copies, rows, columns = bits.shape
    row_weights, column_weights = (
        torch.arange(extent, dtype=torch.int64, device=bits.device).mul_(weight).bitwise_or_(1)
        for extent, weight in zip((rows, columns), _WEIGHTS, strict=True)
    )
    rows_at_once = max(PRINTED_ELEMENTS // max(columns, 1), 1)
    at_once = max(rows_at_once // max(rows, 1), 1)
    prints = torch.zeros(copies, dtype=torch.int64, device=bits.device)
    for first in range(0, copies, at_once):
        for top in range(0, rows, rows_at_once):
            part = bits[first : first + at_once, top : top + rows_at_once].long().mul_(column_weights)
            prints[first : first + at_once] += part.sum(dim=2).mul_(row_weights[top : top + rows_at_once]).sum(dim=1)
    return [int(value) for value in prints]
