"""Sizes far over 32 bits, and over 64: what is computed from them is held against Python's own integers and against floats, neither of
which wraps."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cost_models import hierarchy, roofline
from cost_models.calibration_files import load_calibration
from search_spaces.checks import Facts
from search_spaces.constraints import CONSTRAINTS
from search_spaces.counting import MOST, product
from search_spaces.errors import UserError
from search_spaces.families import families
from search_spaces.gpu_files import load_gpu
from search_spaces.lowering import Lowering, lower
from search_spaces.problem import MAX_EXTENT, MAX_LEADING_DIMENSION, Problem
from search_spaces.schedule import AXES, LARGEST_VALUE, Schedule, parse_schedule
from search_spaces.space import parse_space, prune, why_not
from search_spaces.table import ScheduleTable
from tuner.calculations import occupancy_facts
from tuner.ranking import rank

H200 = load_gpu("h200")
SMALL = """
pointer: {cta_m: [16, 128], cta_n: [16, 128], cta_k: 64, warps: [1, 4], stages: 2, split_k: [1, 2], group_m: [1, 8]}
tma: {cta_m: [64, 128], cta_n: 128, cta_k: 64, warps: 4, stages: 3, persistent_ctas_per_sm: [0, 1], stream_k: [0, 1], pad: [0, 1]}
wgmma: {cta_m: 128, cta_n: 128, cta_k: 64, warps: 8, stages: 4, persistent_ctas_per_sm: [0, 1]}
gemv: {cta_m: [1, 8], cta_n: [4, 64], cta_k: [64, 1024], warps: 4, stages: 1, split_k: [1, 2], fused_reduction: [0, 1]}
"""


@given(st.lists(st.integers(0, 2**40), min_size=1, max_size=5))
def test_a_product_is_exact_or_too_much(factors: list[int]) -> None:
    exact = 1
    for factor in factors:
        exact *= factor
    arrays = [np.array([factor, factor]) for factor in factors]
    assert product(*arrays).tolist() == [min(exact, MOST)] * 2
    assert product(*factors) == min(exact, MOST)


def test_a_product_with_numbers_over_64_bits() -> None:
    assert product(2**70) == product(2**70, np.array(3)) == MOST
    assert product(2**70, np.array(0)) == 0


@pytest.mark.parametrize("value", [-1, LARGEST_VALUE + 1, 2**31, 2**31 + 1, 2**63, 2**70, 1.5, "4"])
def test_no_schedule_has_an_axis_beyond_what_is_computed_with(value: int) -> None:
    plain = {"family": "tma", "cta_m": 64, "cta_n": 64, "cta_k": 64}
    for axis in AXES:
        with pytest.raises(UserError, match=f"{axis} of a schedule of family 'tma' is {value}; give a whole number from 0 to 1048576"):
            Schedule(**plain | {axis: value})  # type: ignore[arg-type]


@pytest.mark.parametrize("text", ["g2147483648", "g4294967297", "k1048577", "p99999999999999999999", f"s{'9' * 5000}"])
def test_a_schedule_text_with_a_number_too_large(text: str) -> None:
    with pytest.raises(UserError, match=r"of schedule '.*' is 9*\d.*; it is a whole number from 0 to 1048576"):
        parse_schedule(f"tma 64x64x64 w4 s3 {text}" if text[0] != "s" else f"tma 64x64x64 w4 {text}")


@pytest.mark.parametrize(
    ("shape", "fields"),
    [
        ((50257, 4096, 32768), {"layout": "tn"}),
        ((16, 131072, 8193), {}),
        ((16, 131072, 8193), {"layout": "nn", "ldb": 131073}),
        ((16, 131072, 8193), {"layout": "tt", "alignment_bytes": 2}),
        ((MAX_EXTENT - 200, 8, 8), {}),
        ((8, MAX_EXTENT - 200, 8), {"layout": "nn"}),
        ((8, 16, MAX_EXTENT - 200), {"layout": "tn"}),
        ((1, 1, MAX_EXTENT - 8200), {}),
        ((1, 1, 1), {"lda": 2**35, "ldb": 2**34, "ldc": 2**33}),
        ((300000, 100000, 64), {"out_dtype": "fp32"}),
    ],
)
def test_large_products_that_fit_are_ranked(shape: tuple[int, int, int], fields: dict[str, object]) -> None:
    problem = Problem(m=shape[0], n=shape[1], k=shape[2], **fields)  # type: ignore[arg-type]
    ranking = rank(problem, H200, parse_space("small", SMALL))
    assert len(ranking.table)
    assert np.isfinite(ranking.estimates.seconds).all()
    floor = max(problem.least_bytes / H200.dram_bytes_per_second, problem.flops / 1.2e15)
    assert ranking.estimates.seconds.min() >= floor


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"lda": MAX_LEADING_DIMENSION + 1}, "lda = 1099511627777 is over the 1099511627776 elements that rows may be apart"),
        ({"ldc": 2**70}, f"ldc = {2**70} is over"),
        ({"alignment_bytes": 2**70}, f"alignment of {2**70} bytes: give a power of two of at least 2 and at most 1073741824"),
        ({"alignment_bytes": -16}, "alignment of -16 bytes"),
        ({"m": MAX_EXTENT + 1}, r"M = 2147483648 is outside 0\.\.2147483647"),
    ],
)
def test_problems_beyond_any_memory(fields: dict[str, int], words: str) -> None:
    with pytest.raises(UserError, match=words):
        Problem(**{"m": 64, "n": 64, "k": 64, **fields})


def test_matrices_beyond_any_memory_are_refused_with_both_numbers() -> None:
    p = Problem(m=MAX_EXTENT, n=MAX_EXTENT, k=MAX_EXTENT, ldb=2**40)
    with pytest.raises(UserError, match=rf"take {p.buffer_bytes} B, h200-sxm-141gb has \d+ B"):
        rank(p, H200, parse_space("small", SMALL))
    alone = why_not(parse_schedule("pointer 128x128x64 w4 s3 k2"), p, H200)
    assert alone == f"the last tile may end at {MAX_EXTENT + 128}, coordinates reach {2**31}"


@pytest.mark.parametrize("what", ["warps", "registers", "shared_memory_bytes"])
def test_occupancy_of_what_no_cta_has(what: str) -> None:
    given_ = {"warps": 4, "registers": 32, "shared_memory_bytes": 0} | {what: 2**70}
    with pytest.raises(UserError, match=f"{2**70} .* are over the 1048576"):
        occupancy_facts(H200, **given_)


sizes = st.sampled_from([1, 2**20, 2**24 + 1, 2**30, 2**31 - 4096, MAX_EXTENT]) | st.integers(1, MAX_EXTENT)
values = st.sampled_from([1, 2, 8, 64, 128, 2**10, 2**16, LARGEST_VALUE])
flags = st.sampled_from([0, 1])
wild = st.builds(
    Schedule,
    family=st.sampled_from(sorted(families())),
    **{axis: flags if axis in ("flatten", "stream_k", "fused_reduction", "swap_ab", "pad") else values for axis in AXES},
)


@st.composite
def huge(draw: st.DrawFn) -> Problem:
    given_ = {name: draw(sizes) for name in "mnk"} | {"layout": draw(st.sampled_from(["nn", "nt", "tn", "tt"]))}
    dense = Problem(**given_, out_dtype=draw(st.sampled_from(["bf16", "fp32"])))
    gap = draw(st.sampled_from([0, 1, 2**31, 2**38]))
    return dataclasses.replace(dense, lda=dense.lda + gap, ldb=dense.ldb + gap, ldc=dense.ldc + gap)


def as_floats(table: ScheduleTable, lowering: Lowering) -> tuple[ScheduleTable, Lowering]:
    columns = {axis: column.astype(np.float64) for axis, column in table.columns.items()}
    lowered = {name: column.astype(np.float64) for name, column in vars(lowering).items()}
    return ScheduleTable(table.families, table.family, columns), Lowering(**lowered)  # type: ignore[arg-type]


@settings(max_examples=20, deadline=None)
@given(huge(), st.lists(wild, min_size=1, max_size=8))
def test_constraints_and_estimates_are_those_of_numbers_that_do_not_wrap(problem: Problem, schedules: list[Schedule]) -> None:
    table = ScheduleTable.of(schedules)
    lowering = lower(table, problem, H200)
    floats = as_floats(table, lowering)
    for row, schedule in enumerate(schedules):
        m, n = (problem.n, problem.m) if schedule.swap_ab else (problem.m, problem.n)
        assert lowering.tiles[row] == -(-m // schedule.cta_m) * -(-n // schedule.cta_n)
        steps = -(-problem.k // schedule.cta_k)
        assert lowering.k_steps[row] == -(-steps // schedule.split_k)
    with np.errstate(divide="ignore", invalid="ignore"):
        whole, same = Facts(table, problem, H200, lowering), Facts(floats[0], problem, H200, floats[1])
        for rule in CONSTRAINTS:
            if rule.name not in ("power_of_two_tile", "warp_count"):  # of bits, which floats do not have
                found, expected = rule.check(whole), rule.check(same)
                assert np.array_equal(np.broadcast_to(found.passes(), len(table)), np.broadcast_to(expected.passes(), len(table))), (
                    rule.name
                )
                assert np.allclose(np.asarray(found.need, np.float64), np.asarray(expected.need, np.float64)), rule.name
        for model in (hierarchy, roofline):
            found_, expected_ = (model.estimate(*each, problem, H200, load_calibration(H200)) for each in ((table, lowering), floats))
            assert np.allclose(found_.seconds, expected_.seconds, rtol=1e-6)
            assert (found_.seconds >= problem.flops / 1.2e15).all()


@settings(max_examples=40, deadline=None)
@given(huge(), st.lists(wild, min_size=1, max_size=8))
def test_the_memory_that_parts_of_tiles_take(problem: Problem, schedules: list[Schedule]) -> None:
    """The sentence of `workspace` by Python's integers; whoever needs more than there is falls."""
    check = {rule.name: rule.check for rule in CONSTRAINTS}["workspace"]
    table = ScheduleTable.of(schedules)
    found = check(Facts(table, problem, H200, lower(table, problem, H200)))
    for row, s in enumerate(schedules):
        m, n = (problem.n, problem.m) if s.swap_ab else (problem.m, problem.n)
        tiles = -(-m // s.cta_m) * -(-n // s.cta_n)
        parts = 2 * s.persistent_ctas_per_sm * 132 if s.stream_k else tiles * s.split_k if s.split_k > 1 else 0
        need = problem.buffer_bytes + parts * s.cta_m * s.cta_n * 4 + s.pad * problem.packed_bytes
        assert np.broadcast_to(found.passes(), len(table))[row] == (need <= H200.memory_bytes)
        if need < MOST:
            assert np.broadcast_to(found.need, len(table))[row] == need


def test_pruning_a_table_of_extremes_gives_sentences() -> None:
    schedules = [Schedule(family=name, **dict.fromkeys(AXES, LARGEST_VALUE)) for name in families()]
    found = prune(ScheduleTable.of(schedules), Problem(m=MAX_EXTENT, n=MAX_EXTENT, k=MAX_EXTENT), H200)
    assert found.survived == 0
    assert sum(item.count for item in found.fallen) == len(schedules)
