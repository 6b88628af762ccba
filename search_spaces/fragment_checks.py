"""Which schedules a family can run, and is worth running, that loads operands straight into the registers that mma.sync reads."""

from __future__ import annotations

import numpy as np

from search_spaces.checks import Check, Facts
from search_spaces.fragments import (
    MMA_M,
    MMA_N,
    MOST_LOADS,
    MOST_ROWS,
    PIECE,
    fragment_alignment_bytes,
    fragmented,
    ring_loads,
    warp_shares,
)


def fragment_operands(f: Facts) -> Check:
    """Rows of A and columns of B lie along K, start at multiples of 16 bytes, and end with one."""
    aligned = fragment_alignment_bytes(f.problem) if f.problem.k % 8 == 0 else 0
    sentence = "operands lie along K in steps of {limit} B; a family that loads fragments needs {need}"
    fits = aligned == 16 and f.hardware.has_triton_mma
    return Check(sentence, 16, aligned, ok=~fragmented(f.table) | fits)


def fragment_rows(f: Facts) -> Check:
    """A family that loads fragments takes up to 32 rows of A, all at once: B is read once."""
    enough = (f.table.cta_m >= min(f.problem.m, MOST_ROWS)) & (f.table.cta_m % MMA_M == 0) & (f.table.cta_m <= MOST_ROWS)
    sentence = "{cta_m} of {need} rows of A at a time; loading fragments takes all of up to {limit}, in multiples of 16"
    return Check(sentence, f.problem.m, MOST_ROWS, ok=~fragmented(f.table) | (enough & (f.problem.m <= MOST_ROWS)))


def fragment_step(f: Facts) -> Check:
    """A K step is whole pieces of 64 for each warp along K, a warp along N has whole instructions, and parts are added in the launch."""
    along_k, along_n = warp_shares(f.table)
    whole = (f.table.cta_k % (PIECE * along_k) == 0) & (f.table.cta_n % (MMA_N * along_n) == 0) & (along_k * along_n == f.table.warps)
    ok = ~fragmented(f.table) | (whole & ((f.table.split_k == 1) | (f.table.fused_reduction == 1)))
    sentence = (
        "cta_k={need} in multiples of {limit} for {warps} warps, {warps_n} along N of {cta_n}; split_k={split_k} needs fused_reduction"
    )
    return Check(sentence, f.table.cta_k, PIECE * along_k, ok=ok)


def fragment_ring(f: Facts) -> Check:
    """The loads that a thread has under way at once fit its registers."""
    need = np.where(fragmented(f.table), ring_loads(f.table), 0)
    return Check("{need} loads of 16 B under way at once in a thread, which has registers for {limit}", need, MOST_LOADS)


FRAGMENT_CHECKS = (fragment_operands, fragment_rows, fragment_step, fragment_ring)
