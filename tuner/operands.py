"""The three matrices of a problem: how they lie in memory, as views of torch tensors for what runs, and as outlines for what is only
compiled, which need no torch."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, NamedTuple

from search_spaces.problem import DTYPE_BYTES, Problem

if TYPE_CHECKING:
    import torch

    from tuner.kernels.launch import Scratch

TORCH_NAMES = {"fp16": "float16", "bf16": "bfloat16", "fp32": "float32", "int32": "int32"}
ITEM_BYTES = DTYPE_BYTES | {"int32": 4}


class View(NamedTuple):
    """A matrix in a flat buffer: elements it spans, and its strides as A[M,K], B[K,N] or C[M,N]."""

    dtype: torch.dtype
    shape: tuple[int, ...]
    strides: tuple[int, ...]

    @property
    def elements(self) -> int:
        """From the first element to the last, gaps between rows included."""
        return 1 + sum((extent - 1) * stride for extent, stride in zip(self.shape, self.strides, strict=True))


@dataclass(frozen=True, kw_only=True)
class ElementType:
    """Stands for a torch.dtype, whose text it has."""

    name: str
    itemsize: int

    def __str__(self) -> str:
        return f"torch.{TORCH_NAMES[self.name]}"


@dataclass(frozen=True, kw_only=True)
class Outline:
    """Stands for a tensor where nothing is run: it answers what kernels, and Triton's descriptors, ask of one."""

    dtype: ElementType
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    address: int = 0  # of which only what it is a multiple of counts

    def stride(self, axis: int | None = None) -> Any:
        return self.strides if axis is None else self.strides[axis]

    def element_size(self) -> int:
        return self.dtype.itemsize

    def data_ptr(self) -> int:
        return self.address

    def t(self) -> Outline:
        return replace(self, shape=self.shape[::-1], strides=self.strides[::-1])

    def narrow(self, axis: int, start: int, length: int) -> Outline:
        """As torch's, from the start of the axis only."""
        assert start == 0
        return replace(self, shape=(*self.shape[:axis], length, *self.shape[axis + 1 :]))


def outline(dtype: str, shape: tuple[int, ...], strides: tuple[int, ...], address: int = 0) -> Outline:
    return Outline(dtype=ElementType(name=dtype, itemsize=ITEM_BYTES[dtype]), shape=shape, strides=strides, address=address)


def outlines(problem: Problem) -> tuple[Outline, Outline, Outline]:
    address = problem.alignment_bytes % 16
    a = outline(problem.dtype, (problem.m, problem.k), (1, problem.lda) if problem.a_transposed else (problem.lda, 1), address)
    b = outline(problem.dtype, (problem.k, problem.n), (1, problem.ldb) if problem.b_transposed else (problem.ldb, 1), address)
    return a, b, outline(problem.out_dtype, (problem.m, problem.n), (problem.ldc, 1), address)


def scratch_outline(scratch: Scratch) -> Outline:
    """Rows follow each other without gaps."""
    strides = tuple(math.prod(scratch.shape[axis + 1 :]) for axis in range(len(scratch.shape)))
    return outline(scratch.dtype, scratch.shape, strides)


def view_of(x: Outline) -> View:
    import torch  # late: what compiles does not wait for it

    return View(getattr(torch, TORCH_NAMES[x.dtype.name]), x.shape, x.strides)


def views(problem: Problem) -> tuple[View, View, View]:
    a, b, c = map(view_of, outlines(problem))
    return a, b, c
