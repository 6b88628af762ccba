"""Is the answer right? Guard zones around every buffer, poisoned outputs, a float32 reference, and a bound that grows with K.

Works on any torch device, so that all of it is tested without a GPU.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import torch

from tuner.operands import View

GUARD_ELEMENTS = 2048  # before and after each matrix: a tile's row of the widest kernel
POISON = float("nan")
PATTERN = -1234.0  # exact in fp16, bf16 and fp32; what no kernel would write into a guard zone by chance
ROUNDING = {torch.float16: 2.0**-11, torch.bfloat16: 2.0**-8, torch.float32: 2.0**-24}  # half a unit in the last place, of 1
SAFETY = (
    16.0  # over the expected error of a random sum: tensor cores truncate where fp32 would round, and the worst of millions is looked at
)
CHUNK_ELEMENTS = 2**27  # of fp32 that the reference makes at once
KEEP_ELEMENTS = 2**28  # a reference up to this size is made once and kept


@dataclass(frozen=True)
class Guarded:
    """A matrix inside a larger buffer. `matrix` is the view that kernels get."""

    buffer: torch.Tensor
    matrix: torch.Tensor
    view: View

    def poison(self, inside: float = POISON) -> None:
        """NaN where an answer belongs, the pattern everywhere else: before, after, and between the rows."""
        self.buffer.fill_(PATTERN)
        self.matrix.fill_(inside)

    def overwritten(self) -> int:
        """Elements outside the matrix that no longer hold the pattern."""
        changed = self.buffer.view(_BITS[self.buffer.dtype]) != _pattern_bits(self.buffer)
        changed[GUARD_ELEMENTS : GUARD_ELEMENTS + self.view.elements].as_strided(self.view.shape, self.view.strides).fill_(False)
        return int(changed.sum())


_BITS = {torch.float16: torch.int16, torch.bfloat16: torch.int16, torch.float32: torch.int32, torch.int32: torch.int32}


def _pattern_bits(buffer: torch.Tensor) -> torch.Tensor:
    return torch.full((1,), PATTERN, dtype=buffer.dtype, device=buffer.device).view(_BITS[buffer.dtype])


def guarded(view: View, device: str, *, shift_elements: int = 0) -> Guarded:
    """shift_elements: how far the matrix starts from the alignment that the allocator gives."""
    fill = POISON if view.dtype.is_floating_point else PATTERN
    buffer = torch.full((view.elements + 2 * GUARD_ELEMENTS + shift_elements,), fill, dtype=view.dtype, device=device)
    inner = buffer[shift_elements:] if shift_elements else buffer
    return Guarded(inner, inner[GUARD_ELEMENTS:].as_strided(view.shape, view.strides), view)


def guarded_random(view: View, device: str, generator: torch.Generator, *, shift_elements: int = 0) -> Guarded:
    """Random normal numbers; the guard zones and the gaps between rows are NaN, so that a read outside shows in the answer."""
    operand = guarded(view, device, shift_elements=shift_elements)
    rows = max(1, CHUNK_ELEMENTS // max(view.shape[1], 1))
    for first in range(0, view.shape[0], rows):
        part = operand.matrix[first : first + rows]
        part.copy_(torch.randn(part.shape, generator=generator, device=device, dtype=torch.float32))
    return operand


@dataclass(frozen=True)
class Verdict:
    """relative_error: Frobenius norm of the error over that of the reference. worst: largest error over its own bound; right at <= 1."""

    relative_error: float
    error_bound: float
    worst: float
    message: str

    @property
    def right(self) -> bool:
        return not self.message


def error_bound(k: int, out_dtype: torch.dtype) -> float:
    """Largest relative error, in Frobenius norm, that a right kernel makes: one rounding to the output's type, and fp32 sums of K products.

    Rounding errors of a sum of K terms grow like sqrt(K) (Higham and Mary 2019), and random normal operands cancel alike.
    """
    return ROUNDING[out_dtype] + SAFETY * ROUNDING[torch.float32] * math.sqrt(max(k, 1))


class Reference:
    """The float32 product of A [M, K] and B [K, N], and how far each element of an answer may be off it.

    One rounding of the element's own value, plus what fp32 sums of its row and column can lose: small elements, too, must be right, which a
    kernel that rounds partial sums to 16 bits fails.
    """

    def __init__(self, a: torch.Tensor, b: torch.Tensor, out_dtype: torch.dtype) -> None:
        self._a, self._b, self._out_dtype = a, b, out_dtype
        self._k = a.shape[1]
        keep = a.shape[0] * b.shape[1] <= KEEP_ELEMENTS
        self._kept = list(self._chunks()) if keep else None

    def _chunks(self) -> Iterator[tuple[int, torch.Tensor, torch.Tensor]]:
        """(first row, reference, allowed error), some rows at a time."""
        b = self._b.float()
        column = b.norm(dim=0)[None, :] * (SAFETY * ROUNDING[torch.float32])
        rows = max(1, CHUNK_ELEMENTS // max(b.shape[1], 1))
        for first in range(0, self._a.shape[0], rows):
            a = self._a[first : first + rows].float()
            reference = a @ b
            # K roundings of terms of the size |row| |column| / K: linear, since truncation has a sign
            allowed = a.norm(dim=1)[:, None] * column + reference.abs() * (ROUNDING[self._out_dtype] * 1.01) + 1e-30
            yield first, reference, allowed

    def check(self, c: Guarded) -> Verdict:
        """Compare every element of C, and the guard zones around it."""
        bound = error_bound(self._k, self._out_dtype)
        squares_error = squares = worst = 0.0
        for first, reference, allowed in self._kept or self._chunks():
            error = (c.matrix[first : first + reference.shape[0]].float() - reference).abs_()
            squares_error += float(error.square().sum(dtype=torch.float64))
            squares += float(reference.square().sum(dtype=torch.float64))
            ratio = float(error.div_(allowed).max())
            worst = ratio if math.isnan(ratio) else max(worst, ratio)
        relative = math.sqrt(squares_error / squares) if squares > 0 else math.sqrt(squares_error)
        return Verdict(relative, bound, worst, _complaint(relative, bound, worst, c.overwritten()))


def _complaint(relative: float, bound: float, worst: float, overwritten: int) -> str:
    if overwritten:
        return f"{overwritten} elements outside C were overwritten"
    if math.isnan(worst) or math.isnan(relative):
        return "C holds NaN: elements that were not written, or that used what lies outside A and B"
    if relative > bound:
        return f"relative error {relative:.3g} is over the bound of {bound:.3g}"
    if worst > 1:
        return f"an element is off by {worst:.3g} times what rounding explains"
    return ""
