"""What a cost model's terms share and no constant changes: who works at once, on how many K steps, asking for which rows and columns."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from cost_models.estimate import Seconds
from search_spaces.hardware import Hardware
from search_spaces.lowering import FMA, MMA_SYNC, Lowering, loads_by_tma
from search_spaces.occupancy import occupancy
from search_spaces.problem import Problem
from search_spaces.ringed import launched_warps, ringed
from search_spaces.streaming import streams
from search_spaces.table import ScheduleTable

FILL_BYTES_PER_CLOCK = 64.0  # from L2 into one SM; what DeepGEMM's heuristics take for sm_90, and where the fit to the landscapes ends up


@dataclass(frozen=True)
class Work:
    """What the terms share and no constant changes. Floats, one per row."""

    table: ScheduleTable
    lowering: Lowering
    problem: Problem
    hardware: Hardware
    resident: Seconds  # CTAs per SM that work at once
    steps: Seconds
    ctas: Seconds  # CTA tiles times splits; under stream-K no fewer than work at once
    tma: NDArray[np.bool_]
    wgmma: NDArray[np.bool_]
    stream: NDArray[np.bool_]  # B is read once past few rows of A
    rows: Seconds  # of A that a CTA asks for: TMA leaves out those past the end, pointers wrap to ones that exist
    columns: Seconds  # of B

    @property
    def clock_hz(self) -> float:
        return self.hardware.clock_hz

    @property
    def sms(self) -> float:
        return self.hardware.need("sms")

    @property
    def runs_on(self) -> NDArray[np.bool_]:
        """Whether a CTA loads for its next tile while it is still at one."""
        return np.asarray((ringed(self.table) & (self.table.persistent_ctas_per_sm > 0)) | (self.table.flatten == 1))

    @property
    def stores_aside(self) -> NDArray[np.bool_]:
        """Whether it stores a tile while it multiplies another."""
        return np.asarray((self.table.flatten == 1) | (self.table.consumers > 1))

    @property
    def slots(self) -> Seconds:
        """CTAs that work at once on the whole chip."""
        return self.sms * self.resident

    @property
    def step_bytes(self) -> Seconds:
        """Operand bytes that one CTA fetches for one K step."""
        return np.asarray(self.table.cta_k * (self.rows + self.columns) * self.problem.element_bytes)

    @property
    def tile_bytes(self) -> Seconds:
        """Operand bytes that one K step takes in shared memory, with what lies past the end."""
        return (self.table.cta_k * (self.table.cta_m + self.table.cta_n) * self.problem.element_bytes).astype(np.float64)


def prepare(table: ScheduleTable, lowering: Lowering, problem: Problem, hardware: Hardware) -> Work:
    registers = np.minimum(lowering.registers_per_thread, hardware.max_registers_per_thread)
    fits = occupancy(
        hardware, warps=launched_warps(table), registers_per_thread=registers, shared_memory_bytes=lowering.shared_memory_bytes
    )
    resident = np.maximum(fits.ctas_per_sm, 1).astype(np.float64)
    resident = np.where(table.persistent_ctas_per_sm > 0, np.minimum(resident, table.persistent_ctas_per_sm), resident)
    stream = table.stream_k == 1
    tiles = lowering.tiles.astype(np.float64)
    ctas = np.where(stream, np.maximum(tiles, hardware.need("sms") * table.persistent_ctas_per_sm), tiles * table.split_k)
    resident = np.minimum(resident, np.maximum(np.ceil(ctas / hardware.need("sms")), 1.0))
    tma = loads_by_tma(table)
    rows = np.where(tma, lowering.m / np.maximum(lowering.tiles_m, 1), table.cta_m)
    columns = np.where(tma, lowering.n / np.maximum(lowering.tiles_n, 1), table.cta_n)
    steps = np.where(stream, lowering.k_steps * tiles / ctas, lowering.k_steps)
    wgmma = (lowering.mma_version != MMA_SYNC) & (lowering.mma_version != FMA)
    return Work(table, lowering, problem, hardware, resident, steps, ctas, tma, wgmma, streams(table), rows, columns)
