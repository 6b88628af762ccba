"""How a product's measuring shares out the device's memory. Its operands are there in so many copies that they are cold, as in production:
between two uses of a copy more than L2 passes. The rest is for what checks the answers. Pure arithmetic."""

from __future__ import annotations

import math
from dataclasses import dataclass

from search_spaces.problem import DTYPE_BYTES, Problem

L2_SHARE = 3.0  # so many times L2 passes between two uses of a set: at once or twice, much of it would still be there
MOST_SETS = 512  # each costs a launch to prepare and a graph node for every schedule, together 25 ms; smaller products flush L2 besides
FIRST_PROTOCOL_SETS = 64  # what `graph-rotating-1` went round at most, and then called warm operands cold
MEMORY_SHARE = 0.5  # of what is free, for operands
FLUSH_SHARE = 0.25  # of what is free, for what flushes L2
GUARD_ELEMENTS = 2048  # before and after each matrix: a tile's row of the widest kernel
SET_STEP_BYTES = 512  # sets start at multiples of this, as torch's allocations do
KEEP_SHARE = 0.5  # of what is free beside the operands, for references that are kept
BLOCK_SHARE = 0.125  # of the same, for the block of C that is compared at once
MOST_BLOCK_BYTES, LEAST_BLOCK_BYTES = 2**31, 2**27
CHECKING_BYTES = 2**28  # what there must be besides one set: such a block, and the library's workspace
REFERENCE_BYTES = 4  # an element of C


@dataclass(frozen=True, kw_only=True)
class SetPlan:
    """flush_bytes: written before each replay where the sets are too few. over_l2: what passes between two uses of a set, over L2.
    needed_bytes: of device memory, for one set and its checking: with less, nothing can be measured."""

    count: int
    flush_bytes: int
    over_l2: float
    needed_bytes: int


def step_elements(span: int, shift: int, itemsize: int) -> int:
    """Elements from one copy of a matrix to the next, where it spans so many and starts so many after what is aligned."""
    step = SET_STEP_BYTES // itemsize
    return -(-(span + 2 * GUARD_ELEMENTS + shift) // step) * step


def set_bytes(problem: Problem) -> int:
    """Device memory of one set with its guard zones; a little more than it is."""
    guards = 2 * GUARD_ELEMENTS * (2 * problem.element_bytes + DTYPE_BYTES[problem.out_dtype])
    return problem.buffer_bytes + guards + 3 * 2 * SET_STEP_BYTES


def _wanted(problem: Problem, l2_bytes: int) -> int:
    return math.ceil(L2_SHARE * l2_bytes / max(problem.least_bytes, 1)) + 1


def plan_sets(problem: Problem, l2_bytes: int, free_bytes: int) -> SetPlan:
    one = set_bytes(problem)
    count = max(min(_wanted(problem, l2_bytes), MOST_SETS, int(MEMORY_SHARE * free_bytes / one)), 1)
    passing, target = count * problem.least_bytes, math.ceil(L2_SHARE * l2_bytes)
    flush = target if passing < target <= FLUSH_SHARE * free_bytes else 0
    return SetPlan(count=count, flush_bytes=flush, over_l2=(passing + flush) / max(l2_bytes, 1), needed_bytes=one + CHECKING_BYTES)


def plan_references(elements: int, kinds: int, free_bytes: int) -> tuple[tuple[bool, ...], int]:
    """(whether the reference of each kind of data is kept, bytes of the block that is compared at once), with so many elements of C and
    so many bytes free beside the operands."""
    keeps = tuple(REFERENCE_BYTES * elements * (kind + 1) <= KEEP_SHARE * free_bytes for kind in range(kinds))
    return keeps, min(max(int(BLOCK_SHARE * free_bytes), LEAST_BLOCK_BYTES), MOST_BLOCK_BYTES)


def protocol_for(problem: Problem, l2_bytes: int | None) -> str:
    """The rules of timing that hold for this product, by name. Those of products that were cold under the first ones are the same still;
    what was timed warm is to be timed anew."""
    was_cold = l2_bytes is not None and _wanted(problem, l2_bytes) <= FIRST_PROTOCOL_SETS
    return "graph-rotating-1" if was_cold else "graph-rotating-2"


def gibibytes(amount: int) -> str:
    return f"{amount / 2**30:.1f} GiB"
