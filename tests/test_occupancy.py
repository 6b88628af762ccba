"""Residency of CTAs, against worked examples and Nsight Compute."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from search_spaces.gpu_files import load_gpu
from search_spaces.occupancy import occupancy


def test_rtx_5090_as_nsight_compute_shows_it() -> None:
    """4 warps; registers and shared memory for 2 CTAs each: 8 of 48 warps."""
    found = occupancy(load_gpu("rtx-5090"), warps=4, registers_per_thread=255, shared_memory_bytes=49 * 1024)
    assert (found.limit_ctas, found.limit_registers, found.limit_shared_memory, found.limit_warps) == (24, 2, 2, 12)
    assert found.warps_per_sm == 8
    assert round(100 * float(found.theoretical), 2) == 16.67


@pytest.mark.parametrize(
    ("gpu", "registers", "warps", "kib", "ctas"),
    [
        ("h100", 168, 4, 96, 2),
        ("h100", 128, 8, 192, 1),
        ("h100", 255, 4, 48, 2),  # registers bind
        ("a100", 128, 8, 96, 1),  # 164 KiB of shared memory
    ],
)
def test_worked_examples(gpu: str, registers: int, warps: int, kib: int, ctas: int) -> None:
    assert occupancy(load_gpu(gpu), warps=warps, registers_per_thread=registers, shared_memory_bytes=kib * 1024).ctas_per_sm == ctas


def test_full_width_registers_leave_an_h100_eight_warps() -> None:
    """255 registers are allocated as 256: 8192 a warp, two warps in each of four sub-partitions."""
    assert occupancy(load_gpu("h100"), warps=1, registers_per_thread=255, shared_memory_bytes=0).warps_per_sm == 8


@pytest.mark.parametrize(("kind", "limit"), [("shared_memory_bytes", 232449), ("registers_per_thread", 256), ("warps", 33)])
def test_what_cannot_run_is_not_resident(kind: str, limit: int) -> None:
    needs = {"warps": 4, "registers_per_thread": 32, "shared_memory_bytes": 0} | {kind: limit}
    assert occupancy(load_gpu("h100"), **needs).ctas_per_sm == 0


@given(st.integers(1, 32), st.integers(16, 255), st.integers(0, 232448))
def test_more_of_a_resource_never_lets_more_ctas_in(warps: int, registers: int, shared: int) -> None:
    h100 = load_gpu("h100")
    here = occupancy(h100, warps=warps, registers_per_thread=registers, shared_memory_bytes=shared)
    more = occupancy(h100, warps=warps, registers_per_thread=min(registers + 8, 255), shared_memory_bytes=min(shared + 1024, 232448))
    assert more.ctas_per_sm <= here.ctas_per_sm
    assert here.warps_per_sm <= 64


def test_arrays_give_what_single_values_give() -> None:
    h100, warps = load_gpu("h100"), np.array([1, 4, 8])
    together = occupancy(h100, warps=warps, registers_per_thread=128, shared_memory_bytes=50_000).ctas_per_sm
    assert list(together) == [
        int(occupancy(h100, warps=w, registers_per_thread=128, shared_memory_bytes=50_000).ctas_per_sm) for w in warps
    ]
