"""The classical roofline of a tiled product: every CTA tile reads its own rows of A and columns of B from DRAM, C is written once,
nothing else costs.

It leaves out caches between tiles, waves, latency and instruction shapes; `hierarchy` has those. Williams, Waterman, Patterson 2009.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from cost_models.calibration import Calibration
from cost_models.estimate import EstimateTable
from search_spaces.errors import UserError
from search_spaces.hardware import Hardware
from search_spaces.lowering import Lowering
from search_spaces.problem import ACCUMULATOR_BYTES, Problem
from search_spaces.schedule import Tile
from search_spaces.table import ScheduleTable

CLOCK_ROOM = 1.25  # boards go to 1.2 times their published boost clock (RTX 3090, 4090, 5090)
DRAM_ROOM = 1.1  # memory that a vendor clocks higher
L2_ROOM = 1.25  # chips of one name differ in their L2: 50 MiB of an H100, 60 of a GH200


@dataclass(frozen=True, kw_only=True)
class Roofline:
    """A kernel under a roof: its work, its DRAM traffic, and the roof's two lines.

    `lower_bound_seconds` overlaps compute and memory perfectly, `upper_bound_seconds` not at all.
    """

    flops: float
    dram_bytes: float
    peak_flops: float
    bytes_per_second: float

    @property
    def intensity(self) -> float:
        """FLOPs per byte of DRAM traffic."""
        return self.flops / self.dram_bytes if self.dram_bytes else 0.0

    @property
    def ridge(self) -> float:
        """Intensity at which the two lines meet."""
        return self.peak_flops / self.bytes_per_second

    @property
    def compute_seconds(self) -> float:
        return self.flops / self.peak_flops

    @property
    def memory_seconds(self) -> float:
        return self.dram_bytes / self.bytes_per_second

    @property
    def lower_bound_seconds(self) -> float:
        return max(self.compute_seconds, self.memory_seconds)

    @property
    def upper_bound_seconds(self) -> float:
        return self.compute_seconds + self.memory_seconds

    @property
    def limiter(self) -> str:
        return "compute" if self.compute_seconds >= self.memory_seconds else "memory"

    @property
    def attainable_flops(self) -> float:
        return min(self.peak_flops, self.intensity * self.bytes_per_second)


def read_elements(problem: Problem, cta: Tile | None) -> float:
    """Elements of A and B read from DRAM: `cta` None reads each once; a tile of 1x1 reuses nothing. Tiles at the edge read what there is.

    Equal to MNK (1/BM + 1/BN) where the tile divides the problem; BK cancels.
    """
    if cta is None:
        return problem.m * problem.k + problem.k * problem.n
    tiles_m, tiles_n = -(-problem.m // cta.m), -(-problem.n // cta.n)
    return problem.k * (problem.m * tiles_n + problem.n * tiles_m)


def roofline(problem: Problem, hardware: Hardware, cta: Tile | None = None) -> Roofline:
    """The roofline of one product, tiled by `cta` with no reuse between tiles, or with every element read once."""
    if problem.dtype not in hardware.peak_flops:
        raise UserError(f"gpu {hardware.name} has no {problem.dtype} rate; it has {', '.join(hardware.peak_flops)}")
    traffic = read_elements(problem, cta) * problem.element_bytes + problem.m * problem.n * problem.out_bytes
    return Roofline(
        flops=problem.flops,
        dram_bytes=traffic,
        peak_flops=hardware.peak_flops[problem.dtype],
        bytes_per_second=hardware.dram_bytes_per_second,
    )


def fastest_flops(dtype: str, hardware: Hardware) -> float | None:
    """FLOPs a second that are beyond the GPU: its published peak at the highest clock that it can have. None where no peak is known.

    A peak is published at a boost clock, which boards exceed: by as much as the highest clock says, or, where the file has none because
    boards differ, by CLOCK_ROOM. No kernel comes near even the peak, so no more is allowed for noise.
    """
    peak = hardware.peak_flops.get(dtype)
    if not peak:
        return None
    clocks = hardware.max_clock_mhz, hardware.peak_clock_mhz
    room = max(clocks[0] / clocks[1], 1.0) if clocks[0] and clocks[1] else CLOCK_ROOM
    return peak * room


def beyond_l2_bytes(problem: Problem, hardware: Hardware) -> float:
    """Bytes of A and B that a call must read from DRAM, whatever the call before it left in L2: what L2 cannot hold."""
    reads = read_elements(problem, None) * problem.element_bytes
    return max(reads - L2_ROOM * hardware.l2_bytes, 0.0) if hardware.l2_bytes else 0.0


def shortest_seconds(problem: Problem, hardware: Hardware) -> float | None:
    """No call of this product is shorter on this GPU, warm or cold; None where its peak is not known.

    Its FLOPs at the fastest, and the reads that L2 cannot have held at the bandwidth of DRAM. Neither the launch nor what a schedule adds
    counts: this is no estimate, but what a time is a fault under.
    """
    fastest = fastest_flops(problem.dtype, hardware)
    if fastest is None:
        return None
    return max(problem.flops / fastest, beyond_l2_bytes(problem, hardware) / (DRAM_ROOM * hardware.dram_bytes_per_second))


def on_chip_bytes(cta: Tile, element_bytes: int, *, stages: int = 1) -> tuple[int, int]:
    """(operand buffers, accumulator) that one CTA tile keeps on chip, in bytes."""
    return stages * cta.k * (cta.m + cta.n) * element_bytes, cta.m * cta.n * ACCUMULATOR_BYTES


def estimate(table: ScheduleTable, lowering: Lowering, problem: Problem, hardware: Hardware, calibration: Calibration) -> EstimateTable:
    """The roofline of every schedule, as a cost model: what ranks when nothing but reuse in a tile is believed."""
    tiles_m, tiles_n = lowering.tiles_m.astype(np.float64), lowering.tiles_n.astype(np.float64)
    reads = problem.k * (lowering.m * tiles_n + lowering.n * tiles_m) * problem.element_bytes
    partials = np.where(table.split_k > 1, 2.0 * table.split_k * ACCUMULATOR_BYTES, 0.0)
    dram = reads + problem.m * problem.n * (problem.out_bytes + partials)
    compute = np.full(len(table), problem.flops / hardware.peak_flops[problem.dtype])
    memory = dram / hardware.dram_bytes_per_second
    return EstimateTable(np.maximum(compute, memory), {"tensor_core": compute, "dram": memory}, {"dram_bytes": dram})
