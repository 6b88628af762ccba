"""How long a schedule takes, from the levels it works through: tensor cores, shared memory, L2, DRAM, the latency its buffers hide,
waves and tail, epilogue, split-K reduction.

A CTA's K step takes as long as its slowest level; all CTAs of a wave advance together; waves follow each other, the last one thinner.
What is left out: clock changes within a launch, bank conflicts (Triton's layouts are swizzled), and the two halves of L2. Terms and
sources: each function's docstring.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from cost_models.calibration import Calibration
from cost_models.estimate import EstimateTable, Seconds
from search_spaces.hardware import Hardware
from search_spaces.lowering import CP_ASYNC_LEAST_BYTES, FMA, MMA_SYNC, WGMMA, Lowering, load_vector_bytes, loads_by_tma
from search_spaces.occupancy import occupancy
from search_spaces.problem import ACCUMULATOR_BYTES, Problem
from search_spaces.table import ScheduleTable

SHARED_MEMORY_BYTES_PER_CLOCK = 128.0  # per SM, every architecture since Volta; 127.9 measured (arXiv 2402.13499)
WARP_LOAD_CLOCKS = 4.0  # of an SM's load unit for one warp-wide load that is too narrow for cp.async


@dataclass(frozen=True)
class _Inputs:
    """What the terms share. Floats, one per row unless scalar."""

    table: ScheduleTable
    lowering: Lowering
    problem: Problem
    hardware: Hardware
    calibration: Calibration
    resident: Seconds  # CTAs per SM that work at once
    steps: Seconds
    work: Seconds  # CTA tiles times splits

    @property
    def clock_hz(self) -> float:
        return self.hardware.clock_hz

    @property
    def sms(self) -> float:
        return self.hardware.need("sms")

    @property
    def step_bytes(self) -> Seconds:
        """Operand bytes that one CTA fetches for one K step."""
        return (self.table.cta_k * (self.table.cta_m + self.table.cta_n) * self.problem.element_bytes).astype(np.float64)


def estimate(table: ScheduleTable, lowering: Lowering, problem: Problem, hardware: Hardware, calibration: Calibration) -> EstimateTable:
    """Seconds and terms of every row."""
    inputs = _inputs(table, lowering, problem, hardware, calibration)
    slots = inputs.sms * inputs.resident
    full_waves = np.floor(inputs.work / slots)
    rest = inputs.work - full_waves * slots
    rest_resident = np.ceil(rest / inputs.sms)
    compute = _tensor_core_step(inputs) + _narrow_load_step(inputs)
    shared = _shared_memory_step(inputs)
    dram = _dram_bytes(inputs, slots)
    loop, loop_terms = _wave(inputs, inputs.resident, np.minimum(slots, inputs.work), compute, shared, dram)
    tail_loop, _ = _wave(inputs, np.maximum(rest_resident, 1), np.maximum(rest, 1), compute, shared, dram)
    start, store = _prologue(inputs), _epilogue(inputs)
    flat = table.flatten == 1
    waves = full_waves + (rest > 0)
    overlap = np.maximum(inputs.resident, 1.0)
    starts = np.where(flat, start, start * (1 + (waves - 1) / overlap))
    stores = store * (full_waves + rest / slots)
    main = full_waves * loop + np.where(rest > 0, tail_loop, 0.0)
    reduction = _reduction(inputs)
    seconds = calibration.launch_seconds + starts + main + stores + reduction
    share = inputs.work / np.minimum(slots, inputs.work)
    terms = {name: term * share for name, term in loop_terms.items()}
    terms |= {"prologue": starts, "epilogue": stores, "reduction": reduction, "launch": np.full(len(table), calibration.launch_seconds)}
    facts = {
        "waves": inputs.work / slots,
        "tail": np.where(rest > 0, rest / slots, 1.0),
        "resident_ctas": inputs.resident,
        "dram_bytes": dram,
        "l2_hit": 1 - dram / np.maximum(inputs.work * inputs.steps * inputs.step_bytes, 1),
        "bytes_in_flight_per_sm": _in_flight(inputs, inputs.resident),
    }
    return EstimateTable(np.maximum(seconds, _floor(inputs)), terms, facts)


def _inputs(table: ScheduleTable, lowering: Lowering, problem: Problem, hardware: Hardware, calibration: Calibration) -> _Inputs:
    registers = np.minimum(lowering.registers_per_thread, hardware.max_registers_per_thread)
    fits = occupancy(hardware, warps=table.warps, registers_per_thread=registers, shared_memory_bytes=lowering.shared_memory_bytes)
    resident = np.maximum(fits.ctas_per_sm, 1).astype(np.float64)
    resident = np.where(table.persistent_ctas_per_sm > 0, np.minimum(resident, table.persistent_ctas_per_sm), resident)
    work = lowering.tiles.astype(np.float64) * table.split_k
    resident = np.minimum(resident, np.maximum(np.ceil(work / hardware.need("sms")), 1.0))
    return _Inputs(table, lowering, problem, hardware, calibration, resident, lowering.k_steps.astype(np.float64), work)


def _floor(i: _Inputs) -> float:
    """No launch beats the published peak or the published bandwidth with every byte moved once."""
    peak = (
        i.hardware.fma_per_sm_per_clock[i.problem.dtype] * 2 * i.sms * (i.hardware.max_clock_mhz or i.hardware.need("peak_clock_mhz")) * 1e6
    )
    return max(i.problem.flops / peak, i.problem.least_bytes / i.hardware.dram_bytes_per_second)


def _tensor_core_step(i: _Inputs) -> Seconds:
    """Seconds of one K step of one CTA if only the tensor cores of its SM worked.

    wgmma m64nN takes N/2 clocks per k16 and 16 + N/4 clocks of shared memory reads when both operands lie there (fits the N sweep of arXiv
    2402.13499). mma.sync reaches `mma_sync_share` of a chip whose full rate is wgmma's.
    """
    c, low = i.calibration, i.lowering
    macs = i.table.cta_m.astype(np.float64) * i.table.cta_n * i.table.cta_k
    rate = np.full(len(i.table), i.hardware.fma_per_sm_per_clock[i.problem.dtype], dtype=np.float64)
    narrow = np.maximum(1.0, (16 + low.mma_n / 4) / (low.mma_n / 2))
    rate = np.where(low.mma_version == WGMMA, rate / narrow, rate)
    if i.hardware.compute_capability[0] >= 9 and i.hardware.compute_capability[0] != 12:
        rate = np.where(low.mma_version == MMA_SYNC, rate * c.mma_sync_share, rate)
    rate = np.where(low.mma_version == FMA, i.hardware.fma_per_sm_per_clock.get("fp32", 64.0), rate)
    issue = np.where(loads_by_tma(i.table), 1.0, c.pointer_issue_share)
    # fewer than four warps leave sub-partitions, each with its own tensor core, without work
    busy = np.minimum(i.table.warps / i.hardware.subpartitions_per_sm, 1.0)
    return macs / (rate * c.tensor_core_share * issue * busy * i.clock_hz)


def _shared_memory_step(i: _Inputs) -> Seconds:
    """Seconds of one K step of one CTA if only its SM's shared memory port worked: tiles written once and read once by wgmma (per 64
    rows of A, B again), and by mma.sync once per warp that shares them."""
    low, t, b = i.lowering, i.table, i.problem.element_bytes
    fill = i.step_bytes
    row_groups = np.where(low.mma_version == WGMMA, np.maximum(t.cta_m / 64, 1), low.warps_m)
    column_groups = np.where(low.mma_version == WGMMA, np.maximum(t.cta_n / low.mma_n, 1), low.warps_n)
    reads = t.cta_k * b * (t.cta_m * column_groups + t.cta_n * row_groups)
    return np.asarray((fill + reads) / (SHARED_MEMORY_BYTES_PER_CLOCK * i.clock_hz))


def _narrow_load_step(i: _Inputs) -> Seconds:
    """Seconds of one K step of one CTA if only its SM's load unit worked, where rows are aligned too badly for asynchronous copies: then
    each element is a load of its own, and its latency is not hidden either."""
    narrow = [load_vector_bytes(i.problem, operand) < CP_ASYNC_LEAST_BYTES for operand in ("a", "b")]
    elements = i.table.cta_k * (i.table.cta_m * narrow[0] + i.table.cta_n * narrow[1])
    seconds = elements / 32 * WARP_LOAD_CLOCKS / i.clock_hz + i.calibration.load_latency_seconds * any(narrow)
    return np.where(loads_by_tma(i.table), 0.0, seconds)


def _in_flight(i: _Inputs, resident: NDArray[np.float64]) -> Seconds:
    """Operand bytes that an SM has asked for and not yet got: all buffers but the one being read."""
    waiting = np.maximum(np.minimum(i.lowering.buffers - 1, i.steps), 0.5)
    return np.asarray(resident * waiting * i.step_bytes)


def _dram_bytes(i: _Inputs, slots: Seconds) -> Seconds:
    """Operand bytes read from DRAM by the whole launch.

    A wave of CTAs that advance together needs each row and column of tiles once; in the grouped raster a wave from a group's start
    covers the rows and columns counted here. An operand that L2 keeps between waves is read once.
    """
    low, t, p = i.lowering, i.table, i.problem
    wave = np.minimum(slots, i.work)
    group = np.minimum(t.group_m, low.tiles_m).astype(np.float64)
    per_group = group * low.tiles_n
    groups = np.floor(wave / per_group)
    rest = wave - groups * per_group
    rows = np.minimum(np.where(groups > 0, groups * group + np.minimum(rest, group), np.minimum(wave, group)), low.tiles_m)
    columns = np.where(groups > 0, low.tiles_n, np.minimum(np.ceil(wave / group), low.tiles_n))
    waves = np.maximum(i.work / wave, 1.0)
    k_share = i.problem.k / t.split_k
    whole_a, whole_b = float(p.m) * p.k * p.element_bytes, float(p.n) * p.k * p.element_bytes
    read_a = waves * np.minimum(rows * t.cta_m, p.m) * k_share * p.element_bytes
    read_b = waves * np.minimum(columns * t.cta_n, p.n) * k_share * p.element_bytes
    keep = i.calibration.l2_resident_share * i.hardware.need("l2_bytes")
    read_a = np.maximum(np.where(whole_a <= keep, whole_a, read_a), whole_a)
    read_b = np.maximum(np.where(whole_b <= keep, whole_b, read_b), whole_b)
    return np.asarray(read_a + read_b)


def _wave(
    i: _Inputs, resident: Seconds, ctas: Seconds, compute: Seconds, shared: Seconds, dram: Seconds
) -> tuple[Seconds, dict[str, Seconds]]:
    """Seconds of the K loop of one wave of `ctas` CTAs, `resident` on an SM, and what each level alone would take."""
    c = i.calibration
    l2_rate = c.l2_bytes_per_clock_per_sm * i.clock_hz
    l2 = resident * i.step_bytes / l2_rate
    dram_per_cta_step = dram / (i.work * i.steps)
    dram_step = ctas * dram_per_cta_step / (i.hardware.dram_bytes_per_second * c.dram_share)
    # Little's law: what is in flight arrives once per latency
    latency = (c.load_latency_seconds + i.step_bytes / l2_rate) / np.maximum(i.lowering.buffers - 1, 0.5)
    slowest = np.maximum.reduce([resident * compute, resident * shared, l2, dram_step, latency])
    terms = {
        "tensor_core": resident * compute * i.steps,
        "shared_memory": resident * shared * i.steps,
        "l2": l2 * i.steps,
        "dram": dram_step * i.steps,
        "latency": latency * i.steps,
    }
    return i.steps * (slowest + c.step_seconds / resident), terms


def _prologue(i: _Inputs) -> Seconds:
    """A CTA's start: set-up, and the first tile's way from DRAM, which nothing in the CTA overlaps."""
    return np.full(len(i.table), i.calibration.cta_seconds + i.calibration.load_latency_seconds)


def _epilogue(i: _Inputs) -> Seconds:
    """Seconds to store the tiles of a full wave: C in its own type, or fp32 partials."""
    bytes_out = np.where(i.table.split_k > 1, ACCUMULATOR_BYTES, i.problem.out_bytes)
    m, n = np.minimum(i.table.cta_m, i.problem.m), np.minimum(i.table.cta_n, i.problem.n)
    wave = np.minimum(i.sms * i.resident, i.work)
    store = wave * m * n * bytes_out / (i.hardware.dram_bytes_per_second * i.calibration.store_share)
    return np.asarray(store)


def _reduction(i: _Inputs) -> Seconds:
    """The second launch of split-K: partials read, from L2 where they fit, and C written."""
    outputs = float(i.problem.m) * i.problem.n
    partials = outputs * i.table.split_k * ACCUMULATOR_BYTES
    l2_rate = i.calibration.l2_bytes_per_clock_per_sm * i.clock_hz * i.sms
    dram_rate = i.hardware.dram_bytes_per_second * i.calibration.dram_share
    fits = partials <= i.calibration.l2_resident_share * i.hardware.need("l2_bytes")
    read = partials / np.where(fits, l2_rate, dram_rate)
    return np.where(i.table.split_k > 1, i.calibration.reduction_seconds + read + outputs * i.problem.out_bytes / dram_rate, 0.0)
