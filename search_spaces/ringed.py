"""What becomes of a schedule of a family whose producer warp fills a ring of buffers by TMA: instruction, warp grid, shared memory,
registers.

The rules are those of `tuner/kernels/wgmma.py` as Triton 3.6 and 3.9 compile it for sm_90; tests/test_wgmma.py keeps compiled numbers.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from search_spaces.counting import product
from search_spaces.families import families
from search_spaces.occupancy import WARP_THREADS
from search_spaces.problem import Problem
from search_spaces.table import Column, ScheduleTable

PRODUCER_WARPS = 4  # one loads; registers are given back by whole warp groups
LEAST_REGISTERS = 24  # of a thread that gives back what it does not need
MOST_REGISTERS = 256  # of a thread that is given more
LOOP_REGISTERS = 48  # of a consumer beside its accumulator
SHARED_LOOP_REGISTERS = 80  # where nobody asked for CTAs that share an SM
CTA_BYTES = 1536  # of barriers, and of what every CTA gives up
RING_OPERAND_BYTES = 2  # of an element
SM_REGISTERS, SM_SHARED_BYTES = 65536, 233472  # of sm_90, the only one that has the instruction


def ringed(table: ScheduleTable) -> NDArray[np.bool_]:
    return table.is_family(name for name, family in families().items() if family.loads == "ring")


def launched_warps(table: ScheduleTable) -> Column:
    """Warps of a CTA, with those that only load."""
    return np.asarray(table.warps + PRODUCER_WARPS * ringed(table), dtype=np.int64)


@dataclass(frozen=True)
class RingRules:
    """Per row. Only rows of a ringed family mean anything."""

    table: ScheduleTable
    problem: Problem
    tma_store: bool  # rows of C are such that TMA can store them

    @property
    def widest(self) -> Column:
        """Columns of a tile's first part: the greatest power of two in it."""
        n = np.maximum(self.table.cta_n, 1)
        return np.asarray(1 << np.floor(np.log2(n)).astype(np.int64), dtype=np.int64)

    @property
    def rest(self) -> Column:
        """Columns of its second part; 0 where there is none."""
        return np.asarray(self.table.cta_n - self.widest, dtype=np.int64)

    @property
    def slice_width(self) -> Column:
        """Columns of a slice of C of the first part. The second is one slice."""
        return np.asarray(self.widest // np.maximum(self.table.epilogue_subtile, 1), dtype=np.int64)

    @property
    def warps_n(self) -> Column:
        return np.asarray(np.maximum(self.table.warps_n, 1))

    @property
    def warps_m(self) -> Column:
        return np.asarray(self.table.warps // np.maximum(self.table.consumers, 1) // self.warps_n, dtype=np.int64)

    @property
    def derived_n(self) -> Column:
        """N of the instruction where the schedule names none."""
        return np.asarray(np.minimum(np.maximum(self.widest // self.warps_n, 1), 256))

    @property
    def instruction_n(self) -> Column:
        return np.where(self.table.instruction_n > 0, self.table.instruction_n, self.derived_n).astype(np.int64)

    @property
    def accumulators(self) -> Column:
        t = self.table
        return np.asarray(t.cta_m * t.cta_n * t.consumers // np.maximum(WARP_THREADS * t.warps, 1), dtype=np.int64)

    @property
    def held(self) -> Column:
        """Registers of a consumer's thread for tiles; with flatten also for the finished one, two of whose 16-bit values share one."""
        whole = (self.problem.out_bytes == 4) | (self.table.split_k > 1)
        finished = np.where(whole, self.accumulators + 8, self.accumulators // 2)
        return np.asarray(self.accumulators + self.table.flatten * finished, dtype=np.int64)

    @property
    def store_bytes(self) -> NDArray[np.int64]:
        """Shared memory of the slices of C that are on their way out by TMA."""
        t = self.table
        columns = np.where(t.epilogue_subtile > 2, 2, 1) * self.slice_width + self.rest
        by_tma = (t.split_k == 1) & self.tma_store
        return np.where(by_tma, product(t.consumers, t.cta_m, columns, self.problem.out_bytes), 0)

    @property
    def operand_bytes(self) -> NDArray[np.int64]:
        t = self.table
        return product(t.stages, t.cta_k, t.cta_m + t.cta_n, RING_OPERAND_BYTES)

    @property
    def shared_memory_bytes(self) -> NDArray[np.int64]:
        """Operands, slices of C, barriers, and what the other warps are told at the start."""
        barriers, pair = 8 * self.table.stages, self.table.consumers == 2
        aligned = -(-barriers // 16) * 16
        alone = aligned + barriers + np.where(self.rest > 0, 132, 116)
        both = 2 * aligned + 16 + np.where(self.store_bytes > 0, 152, 136)
        return np.asarray(self.operand_bytes + self.store_bytes + np.where(pair, both, alone), dtype=np.int64)

    def launch_registers(self, ctas: Column) -> Column:
        """Registers a thread that a CTA is launched with, where so many share an SM."""
        threads = WARP_THREADS * (self.table.warps + PRODUCER_WARPS) * np.maximum(ctas, 1)
        return np.asarray(np.minimum(SM_REGISTERS // threads // 8 * 8, MOST_REGISTERS), dtype=np.int64)

    def consumer_registers(self, ctas: Column) -> Column:
        """What a consumer's thread has when the producer's warps have given back what they do not need."""
        t = self.table
        kept = np.where(t.producer_registers > 0, t.producer_registers, LEAST_REGISTERS)
        launched = self.launch_registers(ctas) * (t.warps + PRODUCER_WARPS)
        return np.asarray(np.minimum((launched - PRODUCER_WARPS * kept) // np.maximum(t.warps, 1) // 8 * 8, MOST_REGISTERS), dtype=np.int64)

    def least_launch_registers(self) -> Column:
        """Below, ptxas spills before the registers are handed over."""
        return np.asarray(self.instruction_n // 2 + 26, dtype=np.int64)

    @property
    def ctas(self) -> Column:
        """CTAs that share an SM: the persistent ones, or as many as find shared memory, and registers enough not to spill."""
        found = np.ones_like(self.accumulators)
        for ctas in (2, 3, 4):
            wanted = np.full_like(found, ctas)
            registers = self.launch_registers(wanted) >= self.least_launch_registers()
            registers = registers & (self.consumer_registers(wanted) >= self.accumulators + SHARED_LOOP_REGISTERS)
            bytes_each = self.operand_bytes + self.store_bytes + CTA_BYTES
            found = np.where(registers & (ctas * bytes_each <= SM_SHARED_BYTES), ctas, found)
        persistent = self.table.persistent_ctas_per_sm
        return np.where(persistent > 0, persistent, found).astype(np.int64)


def lowered_ring(rules: RingRules) -> dict[str, NDArray[np.int64]]:
    """The columns of a lowering that differ from those of plain Triton."""
    same = np.ones_like(rules.accumulators)
    columns = {
        "mma_m": 64 * same,
        "mma_n": rules.instruction_n,
        "mma_k": 16 * same,
        "warps_m": rules.warps_m,
        "warps_n": rules.warps_n,
        "buffers": rules.table.stages,
        "operand_bytes": rules.operand_bytes,
        "shared_memory_bytes": rules.shared_memory_bytes,
        "accumulators_per_thread": rules.accumulators,
        "registers_per_thread": np.minimum(rules.launch_registers(rules.ctas), 255),
    }
    return {name: np.asarray(column) for name, column in columns.items()}
