"""What becomes of a schedule of a family that streams B once past few rows of A: who shares a column, buffers, shared memory, registers.

The rules are those of `tuner/kernels/gemv.py` as Triton 3.6 and 3.9 compile it for sm_90; tests/test_streaming.py keeps compiled numbers.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from search_spaces.counting import product
from search_spaces.families import families
from search_spaces.hardware import Hardware
from search_spaces.problem import ACCUMULATOR_BYTES, Problem
from search_spaces.table import Column, ScheduleTable

MOST_ROWS = 16  # of A: more make FMAs, not DRAM, the limit
MOST_LOADS = 16  # of a thread in a K step
VECTOR_BYTES = 16  # that a thread loads at once


def streams(table: ScheduleTable) -> NDArray[np.bool_]:
    return table.is_family(name for name, family in families().items() if family.loads == "stream")


def is_along_k(problem: Problem) -> bool:
    """Whether neighbours of B in memory are neighbours along K: those of a single dense column are, whatever the layout."""
    return problem.b_transposed or problem.ldb == 1


def vector_elements(problem: Problem) -> int:
    """Elements of B that a thread loads at once: 16 bytes, or what the starts of stored rows are a multiple of."""
    return math.gcd(problem.ldb * problem.element_bytes, VECTOR_BYTES) // problem.element_bytes


def column_sharing(table: ScheduleTable, problem: Problem) -> tuple[Column, Column]:
    """Threads that share a column of B, and elements along K that a CTA's threads load of it at once."""
    threads, width = 32 * table.warps, vector_elements(problem)
    if is_along_k(problem):
        return threads, threads * width
    along_k = np.maximum(threads * width // np.maximum(table.cta_n, 1), 1)
    return along_k, along_k


def streamed(table: ScheduleTable, problem: Problem, hardware: Hardware) -> dict[str, NDArray[np.int64]]:
    """The columns of a lowering that differ from those of a family that multiplies tiles. Only rows that stream mean anything here."""
    threads = 32 * table.warps
    sharing, _ = column_sharing(table, problem)
    rows = np.minimum(table.cta_m, problem.m)
    asynchronous = hardware.has_cp_async and problem.row_alignment_bytes("b") >= 4
    buffers = np.where(asynchronous, np.maximum(table.stages - 1, 1), 1)
    through_shared = asynchronous & (table.stages > 1)
    # A is copied ahead, too, where a thread takes neighbours of it along K
    rows_ahead = rows if problem.b_transposed and not problem.a_transposed else 0 * rows
    buffered = product(buffers, table.cta_k, table.cta_n + rows_ahead, problem.element_bytes)
    operand_bytes = np.where(through_shared, buffered, 0)
    summing_bytes = np.where(table.warps > 1, table.cta_n * table.warps * ACCUMULATOR_BYTES, 0)
    sums = product(rows, table.cta_n, sharing) // threads
    # median over 36 compiled kernels: along K a thread has eight values of each row of A beside its sums
    registers = 36 + 2 * sums if problem.b_transposed else 32 + 4 * sums // 3
    one = np.ones_like(table.warps)
    return {
        "mma_m": one,
        "mma_n": one,
        "mma_k": one,
        "warps_m": one,
        "warps_n": one,
        "buffers": buffers,
        "operand_bytes": operand_bytes,
        "shared_memory_bytes": np.maximum(operand_bytes, summing_bytes),
        "accumulators_per_thread": sums,
        "registers_per_thread": registers,
    }
