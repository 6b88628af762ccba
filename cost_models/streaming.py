"""Levels of a family that streams B once past few rows of A and multiplies by FMAs: what differs from tiles that tensor cores multiply."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from cost_models.calibration import Calibration
from cost_models.estimate import Seconds
from cost_models.work import FILL_BYTES_PER_CLOCK, Work
from search_spaces.streaming import VECTOR_BYTES

LANES_PER_CLOCK = 128.0  # an SM issues four warps' instructions a clock
MULTIPLY_ADD = 1.8  # instructions, with what moves around it: by the times of 4 to 16 rows on an H200
CONVERSION = 1.5  # instructions for an element of 16 bits to become one of 32
LOOP_CLOCKS = 20.0  # of a warp, for a step's addresses and branch
SHUFFLES = 5  # for a sum over the 32 lanes of a warp
LOADS_AHEAD = 4  # of a thread that loads into registers: what ptxas leaves together


def streaming_levels(w: Work, c: Calibration) -> Mapping[str, Seconds]:
    """Seconds that each level takes for one K step of one CTA, by the names of `hierarchy`'s levels. Only rows that stream mean anything.

    `tensor_core` is the FMAs, with what makes fp32 of 16 bits; A comes from L1, where the CTAs of an SM share it, so that neither the way
    from L2 nor one of its lines feels it. The counts of instructions are those of the kernel's SASS.
    """
    table, clock = w.table, w.clock_hz
    rows = np.minimum(table.cta_m, w.problem.m).astype(np.float64)
    elements = table.cta_n.astype(np.float64) * table.cta_k
    step_bytes = elements * w.problem.element_bytes
    threads = 32.0 * table.warps
    loads = np.maximum(step_bytes / (threads * VECTOR_BYTES), 1)
    # along K a thread's values of A are its own; along N those of a warp are one value, which each lane converts
    a_elements = rows * table.cta_k if w.problem.b_transposed else rows * elements / 8
    instructions = MULTIPLY_ADD * rows * elements + CONVERSION * (elements + a_elements)
    sums = SHUFFLES * rows * table.cta_n * (threads if w.problem.b_transposed else threads / 8) / np.maximum(w.steps, 1)
    in_flight = np.where(table.stages > 1, (table.stages - 1) * step_bytes, threads * VECTOR_BYTES * np.minimum(loads, LOADS_AHEAD))
    return {
        "tensor_core": (instructions + sums) / (LANES_PER_CLOCK * clock),
        "shared_memory": np.where(table.stages > 1, 2 * step_bytes, 0.0) / (LANES_PER_CLOCK * clock),
        "fill": step_bytes / (FILL_BYTES_PER_CLOCK * clock),
        "l2": step_bytes / (c.l2_bytes_per_clock_per_sm * clock),
        "issue": (LOOP_CLOCKS + loads) * table.warps / (w.hardware.subpartitions_per_sm * clock),
        "latency": c.load_latency_seconds * step_bytes / in_flight,
        "hot_line": np.zeros_like(step_bytes),
    }
