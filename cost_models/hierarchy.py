"""How long a schedule takes, from the levels it works through: tensor cores, shared memory, the way from L2, L2 itself, DRAM, the latency
that its buffers hide, the issue of instructions; then waves and tail, epilogue, split-K reduction.

In a K step all levels work at once and the slowest sets the pace, held up the more the closer the others are (the fourth root of a sum
of fourth powers); waves of CTAs follow each other, the last one thinner. What is left out: clock changes within a launch; of bank conflicts
those of TMA's own writes and of sums that are regrouped on their way out (`shared_layouts`). Terms and sources: each function's docstring.
"Landscapes" are 21,503 schedules of 14 shapes measured on an H200.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from cost_models.calibration import Calibration
from cost_models.estimate import EstimateTable, Seconds
from cost_models.raster import dram_bytes, footprint, l2_step_elements
from cost_models.streaming import streaming_levels
from cost_models.work import FILL_BYTES_PER_CLOCK, Work, prepare
from search_spaces.hardware import Hardware
from search_spaces.lowering import CP_ASYNC_LEAST_BYTES, FMA, MMA_SYNC, WGMMA, Lowering, load_vector_bytes
from search_spaces.problem import ACCUMULATOR_BYTES, Problem
from search_spaces.schedule import UNORDERED
from search_spaces.shared_layouts import conflict_wavefronts
from search_spaces.table import ScheduleTable

SHARED_MEMORY_BYTES_PER_CLOCK = 128.0  # per SM, every architecture since Volta; 127.9 measured (arXiv 2402.13499)
LINE_BYTES = 128
WARP_COPY_BYTES = 512  # of one warp-wide 16-byte copy
WARP_LOAD_CLOCKS = 4.0  # of an SM's load unit for one warp-wide load that is too narrow for cp.async


def estimate(table: ScheduleTable, lowering: Lowering, problem: Problem, hardware: Hardware, calibration: Calibration) -> EstimateTable:
    """Seconds and terms of every row."""
    return evaluate(prepare(table, lowering, problem, hardware), calibration)


def evaluate(w: Work, c: Calibration) -> EstimateTable:
    # stream-K shares the last wave out, too
    full_waves = np.where(w.table.stream_k == 1, w.ctas / w.slots, np.floor(w.ctas / w.slots))
    rest = w.ctas - full_waves * w.slots
    wave = np.minimum(w.slots, w.ctas)
    dram = dram_bytes(w.ctas, w.slots, _kept_bytes(w, c), w.table, w.lowering, w.problem)
    at_end = _stored_at_end(w)
    levels = _levels(w, c, dram + (w.ctas - at_end) * _stored_bytes(w))
    main = full_waves * levels.wave(w.resident, wave)
    main = main + np.where(rest > 0, levels.wave(np.maximum(np.ceil(rest / w.sms), 1), np.maximum(rest, 1)), 0.0)
    starts, stores = _prologue(w, c, full_waves + (rest > 0)), _epilogue(w, c, at_end)
    reduction, copies = _reduction(w, c), _copies(w, c)
    seconds = c.launch_seconds + copies + starts + main * w.steps + stores + reduction
    terms = levels.terms(w, wave)
    terms |= {
        "copies": copies,
        "prologue": starts,
        "epilogue": stores,
        "reduction": reduction,
        "launch": np.full(len(starts), c.launch_seconds),
    }
    facts = {
        "waves": w.ctas / w.slots,
        "tail": np.where(rest > 0, rest / w.slots, 1.0),
        "resident_ctas": w.resident,
        "dram_bytes": dram,
        "l2_hit": np.maximum(1 - dram / np.maximum(w.ctas * w.steps * w.step_bytes, 1), 0.0),
        "bytes_in_flight_per_sm": w.resident * np.minimum(_ahead(w), w.steps) * w.step_bytes,
    }
    return EstimateTable(np.maximum(seconds, _floor(w)), terms, facts)


@dataclass(frozen=True)
class _Levels:
    """Seconds that each level takes for one K step of one CTA, or, of `dram`, for the share of one CTA in all DRAM traffic."""

    per_cta: dict[str, Seconds]  # what the CTAs of an SM share
    apart: dict[str, Seconds]  # what each CTA waits for on its own
    dram: Seconds
    in_turns: NDArray[np.bool_]  # two tiles are worked on at once, and one multiplies while the other waits

    def wave(self, resident: Seconds, ctas: Seconds) -> Seconds:
        """Seconds of one K step of `ctas` CTAs, `resident` on an SM: the fourth root of the sum of the levels' fourth powers.

        It is never less than the slowest level and little more where that is far ahead; levels that are close hold each other up. A high
        power would be the slowest level alone. 4, 5 and 6 rank the landscapes about equally well, and 4 needs two square roots. Of two
        tiles in turn, one fills the other's gaps in the SM: sixteenth powers there put 128x128 tiles in turn level with 128x256 tiles one
        by one, which they led by 1 to 4 % on six shapes measured on an H200.
        """
        fourths = [_fourth(resident * level) for level in self.per_cta.values()]
        shared = sum(fourths)
        if self.in_turns.any():
            shared = np.where(self.in_turns, np.sqrt(np.sqrt(sum(_fourth(fourth) for fourth in fourths))), shared)
        own = sum(_fourth(level) for level in self.apart.values())
        return np.asarray(np.sqrt(np.sqrt(shared + own + _fourth(ctas * self.dram))))

    def terms(self, w: Work, wave: Seconds) -> dict[str, Seconds]:
        """What each level alone would take for the whole launch."""
        turns = w.ctas / wave * w.steps
        terms = {name: level * w.resident * turns for name, level in self.per_cta.items()}
        return terms | {name: level * turns for name, level in self.apart.items()} | {"dram": self.dram * wave * turns}


def _fourth(level: Seconds) -> Seconds:
    square = level * level
    return np.asarray(square * square)


def _levels(w: Work, c: Calibration, dram: Seconds) -> _Levels:
    """dram: bytes that the whole launch moves while it multiplies."""
    per_cta = {
        "tensor_core": _tensor_core_step(w, c) + _narrow_load_step(w, c),
        "shared_memory": _shared_memory_step(w),
        "fill": _fill_step(w, c),
        "l2": _l2_step(w, c),
        "issue": _issue_step(w, c),
    }
    apart = {"latency": _latency_step(w, c), "hot_line": _hot_line_step(w, c)}
    if w.stream.any():
        own = streaming_levels(w, c)
        per_cta = {name: np.where(w.stream, own.get(name, level), level) for name, level in per_cta.items()}
        apart = {name: np.where(w.stream, own.get(name, level), level) for name, level in apart.items()}
    dram_step = dram / (w.ctas * w.steps) / (w.hardware.dram_bytes_per_second * c.dram_share)
    return _Levels(per_cta, apart, dram_step, w.table.consumers > 1)


def _floor(w: Work) -> float:
    """No launch beats the published peak or the published bandwidth with every byte moved once."""
    chip = w.hardware
    peak = chip.fma_per_sm_per_clock[w.problem.dtype] * 2 * w.sms * (chip.max_clock_mhz or chip.need("peak_clock_mhz")) * 1e6
    return max(w.problem.flops / peak, w.problem.least_bytes / chip.dram_bytes_per_second)


def _tensor_core_step(w: Work, c: Calibration) -> Seconds:
    """If only the tensor cores of the SM worked.

    wgmma m64nN takes N/2 clocks per k16 and 16 + N/4 clocks of shared memory reads when both operands lie there (fits the N sweep of arXiv
    2402.13499). mma.sync reaches `mma_sync_share` of a chip whose full rate is wgmma's.
    """
    low, table, chip = w.lowering, w.table, w.hardware
    # a tile shorter than the instruction is filled up to it; FMAs have nothing to fill
    rows, columns = np.maximum(table.cta_m, low.mma_m), np.maximum(table.cta_n, low.mma_n)
    rows, columns = np.where(low.mma_version == FMA, table.cta_m, rows), np.where(low.mma_version == FMA, table.cta_n, columns)
    macs = rows.astype(np.float64) * columns * table.cta_k
    rate = np.full(len(macs), chip.fma_per_sm_per_clock[w.problem.dtype], dtype=np.float64)
    narrow = np.maximum(1.0, (16 + low.mma_n / 4) / (low.mma_n / 2))
    rate = np.where(low.mma_version == WGMMA, rate / narrow, rate)
    if chip.compute_capability[0] >= 9 and chip.compute_capability[0] != 12:
        rate = np.where(low.mma_version == MMA_SYNC, rate * c.mma_sync_share, rate)
    rate = np.where(low.mma_version == FMA, chip.fma_per_sm_per_clock.get("fp32", 64.0), rate)
    issue = np.where(w.tma, 1.0, c.pointer_issue_share)
    # fewer than four warps leave sub-partitions, each with its own tensor core, without work
    busy = np.minimum(table.warps / chip.subpartitions_per_sm, 1.0)
    return macs / (rate * c.tensor_core_share * issue * busy * w.clock_hz)


def _shared_memory_step(w: Work) -> Seconds:
    """If only the SM's shared memory port worked: tiles written once and read once by wgmma (per 64 rows of A, B again), and by mma.sync
    once per warp that shares them; and what bank conflicts add, of C shared out over the K steps of its tile."""
    low, table = w.lowering, w.table
    row_groups = np.where(low.mma_version == WGMMA, np.maximum(table.cta_m / 64, 1), low.warps_m)
    # each part of a tile's columns reads A: 144 of them are an instruction of 128 and one of 16
    column_groups = np.where(low.mma_version == WGMMA, np.ceil(np.maximum(table.cta_n / low.mma_n, 1)), low.warps_n)
    reads = table.cta_k * w.problem.element_bytes * (table.cta_m * column_groups + table.cta_n * row_groups)
    of_step, of_tile = conflict_wavefronts(table, low, w.problem)
    conflicts = of_step + of_tile / w.lowering.k_steps
    return np.asarray(((w.tile_bytes + reads) / SHARED_MEMORY_BYTES_PER_CLOCK + conflicts) / w.clock_hz)


def _fill_step(w: Work, c: Calibration) -> Seconds:
    """If only the way from L2 into the SM worked, and TMA zeroing what lies past the end.

    TMA fetches nothing for rows past the end but zeroes them, 128 bytes at a time and far slower than it moves data: on an H200 a 64-row
    tile of an A with 1 row takes 4.2 ns for each missing row, 1.4 ns for one that is there.
    """
    missing = w.tile_bytes - w.step_bytes
    clocks = w.step_bytes / FILL_BYTES_PER_CLOCK + np.where(w.tma, missing, 0.0) / LINE_BYTES * c.missing_row_clocks
    return np.asarray(clocks / w.clock_hz)


def _l2_step(w: Work, c: Calibration) -> Seconds:
    """If only L2 worked, with an SM's share of what it delivers: some 5.5 kB a clock in all on H100 (DeepGEMM takes 64 B an SM or 6.1 kB).
    Neighbours that want the same rows are served at once."""
    elements = l2_step_elements(c.merging_ctas, w.ctas, (w.rows, w.columns), w.table, w.lowering)
    return np.asarray(w.table.cta_k * elements * w.problem.element_bytes / (c.l2_bytes_per_clock_per_sm * w.clock_hz))


def _issue_step(w: Work, c: Calibration) -> Seconds:
    """If only the schedulers worked: each warp has its loop's instructions, barriers included, and pointer loads have their addresses and
    copies besides."""
    copies = np.where(w.tma, 0.0, w.tile_bytes / WARP_COPY_BYTES)
    clocks = w.table.warps * c.step_clocks + copies * c.copy_clocks
    return np.asarray(clocks / (w.hardware.subpartitions_per_sm * w.clock_hz))


def _narrow_load_step(w: Work, c: Calibration) -> Seconds:
    """If only the load unit worked, where rows are aligned too badly for asynchronous copies: then each element is a load of its own, and
    its latency is not hidden either."""
    narrow = [load_vector_bytes(w.problem, operand) < CP_ASYNC_LEAST_BYTES for operand in ("a", "b")]
    elements = w.table.cta_k * (w.table.cta_m * narrow[0] + w.table.cta_n * narrow[1])
    seconds = elements / 32 * WARP_LOAD_CLOCKS / w.clock_hz + c.load_latency_seconds * any(narrow)
    return np.where(w.tma, 0.0, seconds)


def _ahead(w: Work) -> Seconds:
    """K steps whose operands are under way while one is worked on. wgmma and tcgen05 hold a buffer longer than mma.sync does."""
    return np.maximum(np.where(w.wgmma, w.lowering.buffers - 1, w.lowering.buffers), 1).astype(np.float64)


def _latency_step(w: Work, c: Calibration) -> Seconds:
    """If a CTA only waited: what is in flight arrives once per latency (Little's law), and a longer tile takes longer.

    The product of buffers and step time is constant until another level limits (SemiAnalysis' main loop sweep on B200, and the landscapes).
    """
    latency = c.load_latency_seconds + c.load_seconds_per_kib * w.step_bytes / 1024
    return np.asarray(latency / _ahead(w))


def _hot_line_step(w: Work, c: Calibration) -> Seconds:
    """If only the busiest line of L2 worked: where pointer loads wrap a matrix of few rows, every row of the tile, in every CTA beside it,
    asks for the same line."""
    rows, columns = footprint(np.minimum(w.slots, w.ctas), w.table, w.lowering)
    again_a = w.table.cta_m / np.minimum(w.table.cta_m, w.lowering.m) * columns
    again_b = w.table.cta_n / np.minimum(w.table.cta_n, w.lowering.n) * rows
    again = np.where(w.tma, 1.0, np.maximum(again_a, again_b))
    lines = w.table.cta_k * w.problem.element_bytes / LINE_BYTES
    return np.asarray(again * lines * c.hot_line_clocks / w.clock_hz)


def _kept_bytes(w: Work, c: Calibration) -> float:
    """What may be read again and still be in L2."""
    return c.l2_resident_share * w.hardware.need("l2_bytes")


def _copies(w: Work, c: Calibration) -> Seconds:
    """Operands with unaligned rows copied beforehand: read and written once, each in a launch."""
    seconds = c.launch_seconds + 2 * w.problem.packed_bytes / (w.hardware.dram_bytes_per_second * c.dram_share)
    return np.where(w.table.pad == 1, seconds, 0.0)


def _prologue(w: Work, c: Calibration, waves: Seconds) -> Seconds:
    """The first tile's way from DRAM, once per wave. CTAs that share an SM overlap it, and a fused loop over tiles has it once. A share of
    stream-K begins once more for each part of a tile."""
    waves = waves + np.where(w.table.stream_k == 1, 1.0 + w.lowering.tiles / w.ctas, 0.0)
    return np.where(w.runs_on, c.load_latency_seconds, c.load_latency_seconds * (1 + (waves - 1) / w.resident))


def _epilogue(w: Work, c: Calibration, at_end: Seconds) -> Seconds:
    """Seconds to store C in its own type, or fp32 partials, of the CTA tiles that nothing is multiplied beside."""
    return np.asarray(at_end * _stored_bytes(w) / (w.hardware.dram_bytes_per_second * c.store_share))


def _stored_at_end(w: Work) -> Seconds:
    """CTA tiles, of all that are stored, beside whose stores nobody multiplies; the others' stores only take their part of DRAM.

    A fused loop over tiles leaves the last wave's. Of CTAs that share an SM the others multiply while one stores: at 128x32768x512 on an
    H200 two on each SM are 5 % ahead of one that stores aside, which is ahead of one alone.
    """
    alone = np.where(w.stores_aside, np.minimum(w.slots, w.ctas), w.ctas)
    return np.asarray(alone / w.resident)


def _stored_bytes(w: Work) -> Seconds:
    """Of one CTA tile."""
    bytes_out = np.where(w.table.split_k > 1, ACCUMULATOR_BYTES, w.problem.out_bytes)
    return np.asarray(np.minimum(w.table.cta_m, w.lowering.m) * np.minimum(w.table.cta_n, w.lowering.n) * bytes_out)


def _reduction(w: Work, c: Calibration) -> Seconds:
    """Adding what split-K and stream-K leave in parts: in a second launch that reads the parts, from L2 where they fit, and writes C; or by
    the last CTA of each tile to arrive, which says so, waits, and reads the parts on its own."""
    outputs = float(w.problem.m) * w.problem.n
    partials = outputs * w.table.split_k * ACCUMULATOR_BYTES
    l2_rate = c.l2_bytes_per_clock_per_sm * w.clock_hz * w.sms
    dram_rate = w.hardware.dram_bytes_per_second * c.dram_share
    read = partials / np.where(partials <= _kept_bytes(w, c), l2_rate, dram_rate)
    launched = c.reduction_seconds + read + outputs * w.problem.out_bytes / dram_rate
    stream = w.table.stream_k == 1
    parts = np.where(stream, 1 + w.ctas / np.maximum(w.lowering.tiles, 1), w.table.split_k)
    parts = np.where(w.table.fused_reduction == UNORDERED, 1, parts)  # added on their way, one sum is read
    tile_bytes = w.table.cta_m.astype(np.float64) * w.table.cta_n * ACCUMULATOR_BYTES
    # stored, the arrival counted, read again: each a way to L2 and back
    arrived = np.where(stream, 6, 3) * c.load_latency_seconds + np.where(stream, 2, 1) * (1 + parts) * tile_bytes / (
        FILL_BYTES_PER_CLOCK * w.clock_hz
    )
    in_launch = stream | (w.table.fused_reduction > 0)
    return np.where(w.table.split_k > 1, np.where(in_launch, arrived, launched), np.where(stream, arrived, 0.0))
