"""How many CTAs an SM holds at once: the exact rules of `cuda_occupancy.h`, laid out as Nsight Compute shows them."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from search_spaces.hardware import Hardware

WARP_THREADS = 32


@dataclass(frozen=True)
class Occupancy:
    """CTAs per SM that each resource allows, and what follows. Arrays of the inputs' common shape."""

    limit_ctas: NDArray[np.int64]
    limit_registers: NDArray[np.int64]
    limit_shared_memory: NDArray[np.int64]
    limit_warps: NDArray[np.int64]
    ctas_per_sm: NDArray[np.int64]
    warps_per_sm: NDArray[np.int64]
    max_warps_per_sm: int

    @property
    def theoretical(self) -> NDArray[np.float64]:
        """Resident warps over the warps an SM can hold, 0..1."""
        return self.warps_per_sm / self.max_warps_per_sm


def occupancy(hardware: Hardware, *, warps: ArrayLike, registers_per_thread: ArrayLike, shared_memory_bytes: ArrayLike) -> Occupancy:
    """Residency of CTAs of `warps` warps. A CTA that cannot run at all has 0 in the limit that forbids it."""
    warps, registers, shared = (np.asarray(value, dtype=np.int64) for value in (warps, registers_per_thread, shared_memory_bytes))
    unit, granularity = hardware.register_allocation_unit, hardware.shared_memory_granularity_bytes
    registers_per_warp = np.maximum(_round_up(registers * WARP_THREADS, unit), unit)
    warps_by_registers = (hardware.registers_per_sm // hardware.subpartitions_per_sm // registers_per_warp) * hardware.subpartitions_per_sm
    limit_registers = np.where(registers > hardware.max_registers_per_thread, 0, warps_by_registers // warps)
    allocated = _round_up(shared + hardware.reserved_shared_memory_per_cta_bytes, granularity)
    by_shared = hardware.shared_memory_per_sm_bytes // np.maximum(allocated, 1)
    limit_shared = np.where(shared > hardware.shared_memory_per_cta_bytes, 0, np.minimum(by_shared, hardware.max_ctas_per_sm))
    limit_warps = np.where(warps * WARP_THREADS > hardware.max_threads_per_cta, 0, hardware.max_warps_per_sm // warps)
    limit_ctas = np.full(np.broadcast_shapes(warps.shape, registers.shape, shared.shape), hardware.max_ctas_per_sm, dtype=np.int64)
    ctas = np.minimum.reduce(np.broadcast_arrays(limit_ctas, limit_registers, limit_shared, limit_warps))
    return Occupancy(limit_ctas, limit_registers, limit_shared, limit_warps, ctas, ctas * warps, hardware.max_warps_per_sm)


def _round_up(value: NDArray[np.int64], multiple: int) -> NDArray[np.int64]:
    return -(-value // multiple) * multiple
