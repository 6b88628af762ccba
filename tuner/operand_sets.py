"""Copies of a product's matrices on the device, a buffer for all copies of one: thousands of small allocations would take longer than
what they are for. Works on any torch device."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from search_spaces.problem import Problem
from tuner.checking import PATTERN, POISON, Guarded
from tuner.memory_plan import GUARD_ELEMENTS, step_elements
from tuner.operands import View, views

SEEDS = (0, 1, 2)  # set i holds the values of seed i modulo their number: answers are looked at on each of them
DRAWN_ELEMENTS = 2**24  # of fp32 at once: it is no more where much is free, as the values depend on it


@dataclass(frozen=True)
class Stack:
    """One matrix in all its copies. matrices: [copies, rows, columns], a view of all of them in `pool`."""

    pool: torch.Tensor
    copies: tuple[Guarded, ...]
    matrices: torch.Tensor

    def poison(self) -> None:
        """As each copy's."""
        self.pool.fill_(PATTERN)
        self.matrices.fill_(POISON)


def make_stack(view: View, count: int, device: str, *, shift_elements: int = 0) -> Stack:
    """shift_elements: how far each copy starts from the alignment that the allocator gives. All is NaN."""
    step = step_elements(view.elements, shift_elements, view.dtype.itemsize)
    pool = torch.full((count * step,), POISON, dtype=view.dtype, device=device)
    first = shift_elements + GUARD_ELEMENTS
    buffers = (pool[i * step + shift_elements : (i + 1) * step] for i in range(count))
    copies = tuple(Guarded(buffer, buffer[GUARD_ELEMENTS:].as_strided(view.shape, view.strides), view) for buffer in buffers)
    return Stack(pool, copies, pool.as_strided((count, *view.shape), (step, *view.strides), first))


def fill(stack: Stack, generators: tuple[torch.Generator, ...]) -> None:
    """Random normal numbers, each copy those of its generator in turn; guard zones and the gaps between rows stay NaN, so that a read
    outside shows in the answer."""
    for k, generator in enumerate(generators[: len(stack.copies)]):
        matrix = stack.matrices[k]
        rows = max(1, DRAWN_ELEMENTS // max(matrix.shape[1], 1))
        for begin in range(0, matrix.shape[0], rows):
            part = matrix[begin : begin + rows]
            part.copy_(torch.randn(part.shape, generator=generator, device=part.device, dtype=torch.float32))
        stack.matrices[k + len(generators) :: len(generators)].copy_(matrix)


def make_operands(problem: Problem, count: int, device: str) -> tuple[Stack, Stack, Stack]:
    """A, B and C in so many copies."""
    off = problem.alignment_bytes
    a, b, c = (make_stack(view, count, device, shift_elements=off // view.dtype.itemsize if off < 16 else 0) for view in views(problem))
    generators = tuple(torch.Generator(device).manual_seed(seed) for seed in SEEDS)
    fill(a, generators)
    fill(b, generators)
    return a, b, c


def how_drawn(flushed: bool) -> str:
    """For the record: how the operands' values were drawn, and what else keeps them out of L2."""
    return f"normal, seeds {' '.join(map(str, SEEDS))}" + (", L2 flushed before each replay" if flushed else "")
