"""Constraints of families whose producer warp fills a ring; `constraints` applies them after its own."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps

import numpy as np

from search_spaces.checks import Check, Facts
from search_spaces.ringed import LOOP_REGISTERS


def only_rings(check: Callable[[Facts], Check]) -> Callable[[Facts], Check]:
    """Other families pass, and cost nothing where there are no rings."""

    @wraps(check)
    def checked(f: Facts) -> Check:
        if not f.ring.any():
            return Check("", 0, 0)
        found = check(f)
        return Check(found.sentence, found.need, found.limit, ok=~f.ring | found.passes())

    return checked


@only_rings
def ring_hardware(f: Facts) -> Check:
    """Only sm_90 has wgmma, and gives registers from warp group to warp group for it."""
    major, minor = f.hardware.compute_capability
    return Check("wgmma needs compute capability {need}, {gpu} has {limit}", 9.0, float(f"{major}.{minor}"), ok=np.asarray(major == 9))


@only_rings
def ring_warps(f: Facts) -> Check:
    """Each consumer is whole warp groups along M, whose 64 rows the tile fills."""
    t, rules = f.table, f.ring_rules
    whole = rules.warps_m * rules.warps_n * t.consumers == t.warps
    fits = whole & (rules.warps_m % 4 == 0) & (rules.warps_m > 0) & (t.cta_m % 64 == 0) & (16 * rules.warps_m <= t.cta_m)
    ok = fits & (t.consumers >= 1) & (t.consumers <= 2)
    sentence = (
        "{need} warps for {consumers} consumers of a {cta_m}x{cta_n} tile, warps_n={warps_n}: each takes a multiple of {limit} along M"
    )
    return Check(sentence, t.warps, 4, ok=ok)


@only_rings
def ring_instruction(f: Facts) -> Check:
    """The instruction's N divides a warp's part of the tile, as a multiple of 8 up to 256."""
    t, rules = f.table, f.ring_rules
    n = np.maximum(rules.instruction_n, 1)
    one = (n % 8 == 0) & (n <= 256) & (rules.widest % (n * rules.warps_n) == 0)
    two = (rules.rest >= 16) & (rules.warps_n * t.consumers == 1) & (t.instruction_n == 0)
    sentence = "instruction N {need} for {cta_n} columns and warps_n={warps_n}; it divides a warp's part, and is {limit} at most"
    return Check(sentence, n, 256, ok=one & ((rules.rest == 0) | two))


@only_rings
def same_instruction(f: Facts) -> Check:
    """The instruction's N that is taken anyway, and one warp along N, need no naming."""
    t, rules = f.table, f.ring_rules
    same = ((t.instruction_n > 0) & (t.instruction_n == rules.derived_n)) | (t.warps_n == 1)
    sentence = "instruction_n={need} warps_n={warps_n} is what is taken unless they are given: {limit} stands for it"
    return Check(sentence, t.instruction_n, 0, ok=~same)


@only_rings
def ring_slices(f: Facts) -> Check:
    """Slices of C share out the tile's first part, a power of two, evenly; none is narrower than the second part, or than 8 columns."""
    t, rules = f.table, f.ring_rules
    width, least = rules.slice_width, np.maximum(rules.rest, 8)
    even = (width * t.epilogue_subtile == rules.widest) & (width >= least)
    over_warps = (rules.warps_n == 1) | (width % np.maximum(rules.instruction_n * rules.warps_n, 1) == 0)
    sentence = "{need} slices of the widest power of two in {cta_n} columns; each must hold a power of two, {limit} at least"
    return Check(sentence, t.epilogue_subtile, least, ok=(t.split_k > 1) | (even & over_warps))


@only_rings
def same_slices(f: Facts) -> Check:
    """Where C leaves through pointers, slices change nothing."""
    t, rules = f.table, f.ring_rules
    by_pointers = (t.split_k == 1) & (not rules.tma_store)
    sentence = "epilogue_subtile={need} does nothing where TMA cannot store C: {limit} stands for it"
    return Check(sentence, t.epilogue_subtile, 1, ok=~by_pointers | (t.epilogue_subtile == 1))


@only_rings
def ring_loop(f: Facts) -> Check:
    """A step's buffers are given back while the next runs; flatten takes two steps and one consumer, two a persistent grid."""
    t = f.table
    least = np.where(t.flatten == 1, f.lowering.k_steps, 2)
    ok = (t.stages >= 2) & (least >= 2) & ((t.consumers == 1) | ((t.flatten == 0) & (t.persistent_ctas_per_sm > 0)))
    sentence = (
        "{need} stages, {consumers} consumers, flatten={flatten}: it takes {limit}, and for 2 consumers a persistent grid without flatten"
    )
    return Check(sentence, t.stages, 2, ok=ok)


@only_rings
def ring_registers(f: Facts) -> Check:
    """What a consumer holds fits the registers that the CTAs of an SM can hand it."""
    rules = f.ring_rules
    ctas = rules.ctas
    have = rules.consumer_registers(ctas)
    need = rules.held + LOOP_REGISTERS
    handed = rules.launch_registers(ctas) >= rules.least_launch_registers()
    return Check("a consumer's thread holds {need} registers of the {limit} that it can be given", need, have, ok=(need <= have) & handed)


RING_CHECKS = (
    ring_hardware,
    ring_warps,
    ring_instruction,
    same_instruction,
    ring_slices,
    same_slices,
    ring_loop,
    ring_registers,
)
