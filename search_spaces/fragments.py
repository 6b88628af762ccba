"""What becomes of a schedule of a family that loads operands straight into the registers that mma.sync reads: warps along K and N, the
ring of B in registers, and which schedules such a kernel takes.

The rules are those of `tuner/kernels/skinny.py` as Triton 3.6 and 3.9 compile it for sm_90; tests/test_fragments.py keeps compiled numbers.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from search_spaces.families import families
from search_spaces.problem import ACCUMULATOR_BYTES, Problem
from search_spaces.table import Column, ScheduleTable

MOST_ROWS = 32  # of A
MMA_M, MMA_N, MMA_K = 16, 8, 16
PIECE = 64  # elements along K that a warp loads at once: 8 in each of 4 threads, twice
WARP_LOAD_BYTES = 512  # of 32 threads, 16 each
MOST_LOADS = 32  # of a thread under way at once: 128 registers


def fragmented(table: ScheduleTable) -> NDArray[np.bool_]:
    return table.is_family(name for name, family in families().items() if family.loads == "fragment")


def warp_shares(table: ScheduleTable) -> tuple[Column, Column]:
    """Warps along K and along N."""
    along_n = np.maximum(table.warps_n, 1)
    return np.maximum(table.warps // along_n, 1), along_n


def ring_loads(table: ScheduleTable) -> NDArray[np.int64]:
    """Loads of B that a thread has under way at once."""
    return np.asarray(table.stages.astype(np.int64) * table.cta_k * table.cta_n * 2 // (WARP_LOAD_BYTES * np.maximum(table.warps, 1)))


def fragment_columns(table: ScheduleTable) -> dict[str, NDArray[np.int64]]:
    """The columns of a lowering that differ from those of a family that multiplies tiles. Only rows that load fragments mean anything."""
    along_k, along_n = warp_shares(table)
    one = np.ones_like(table.warps)
    elements = table.cta_m.astype(np.int64) * table.cta_n
    # Triton 3.6 puts all warps' sums into shared memory to add them, 3.9 a part at a time
    summing_bytes = np.where(along_k > 1, elements * along_k * ACCUMULATOR_BYTES, 0)
    return {
        "mma_m": MMA_M * one,
        "mma_n": MMA_N * one,
        "mma_k": MMA_K * one,
        "warps_m": one,
        "warps_n": along_n,
        "buffers": table.stages,
        "operand_bytes": 0 * elements,
        "shared_memory_bytes": summing_bytes,
        "accumulators_per_thread": elements // (32 * along_n),
        # median over compiled kernels: beside the ring, half as much of A and of what is being moved
        "registers_per_thread": 40 + 6 * ring_loads(table),
    }


def fragment_alignment_bytes(problem: Problem) -> int:
    """What rows along K of both operands start at a multiple of; 0 where they do not lie along K."""
    if problem.a_transposed or not problem.b_transposed:
        return 0
    return min(problem.row_alignment_bytes("a"), problem.row_alignment_bytes("b"))
