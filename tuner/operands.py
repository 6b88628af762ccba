"""The three matrices of a problem as torch tensors: how they lie in memory, and views of them as A[M,K], B[K,N], C[M,N]."""

from __future__ import annotations

from typing import NamedTuple

import torch

from search_spaces.problem import Problem

TORCH_DTYPES = {"fp16": torch.float16, "bf16": torch.bfloat16, "fp32": torch.float32}


class View(NamedTuple):
    """A matrix in a flat buffer: elements it spans, and its strides as A[M,K], B[K,N] or C[M,N]."""

    dtype: torch.dtype
    shape: tuple[int, int]
    strides: tuple[int, int]

    @property
    def elements(self) -> int:
        """From the first element to the last, gaps between rows included."""
        return 1 + sum((extent - 1) * stride for extent, stride in zip(self.shape, self.strides, strict=True))


def views(problem: Problem) -> tuple[View, View, View]:
    dtype, out = TORCH_DTYPES[problem.dtype], TORCH_DTYPES[problem.out_dtype]
    a = View(dtype, (problem.m, problem.k), (1, problem.lda) if problem.a_transposed else (problem.lda, 1))
    b = View(dtype, (problem.k, problem.n), (1, problem.ldb) if problem.b_transposed else (problem.ldb, 1))
    return a, b, View(out, (problem.m, problem.n), (problem.ldc, 1))


def meta_operands(problem: Problem) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Tensors without memory, for compiling."""
    a, b, c = (torch.empty_strided(v.shape, v.strides, dtype=v.dtype, device="meta") for v in views(problem))
    return a, b, c
