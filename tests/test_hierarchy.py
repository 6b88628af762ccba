"""The model of the memory hierarchy: physics it must not break, and choices it must make."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cost_models.calibration import parse_calibration
from cost_models.calibration_files import calibration_text, load_calibration
from cost_models.estimate import EstimateTable
from cost_models.hierarchy import estimate
from search_spaces.errors import UserError
from search_spaces.gpu_files import load_gpu
from search_spaces.hardware import Hardware
from search_spaces.lowering import lower
from search_spaces.problem import Problem
from search_spaces.schedule import parse_schedule
from search_spaces.space import load_space
from search_spaces.table import ScheduleTable
from tuner.ranking import model_names, rank

CUBE = Problem(m=4096, n=4096, k=4096)
extents = st.sampled_from([1, 7, 16, 100, 512, 1000, 4096, 14336])


def model(texts: list[str], problem: Problem, hardware: Hardware) -> EstimateTable:
    table = ScheduleTable.of([parse_schedule(text) for text in texts])
    return estimate(table, lower(table, problem, hardware), problem, hardware, load_calibration(hardware))


@settings(max_examples=25, deadline=None)
@given(extents, extents, extents, st.sampled_from(["h100", "h200", "a100", "rtx4090", "b200"]))
def test_nothing_is_predicted_faster_than_the_hardware(m: int, n: int, k: int, gpu: str) -> None:
    hardware, problem = load_gpu(gpu), Problem(m=m, n=n, k=k)
    ranking = rank(problem, hardware, load_space("default"))
    clock = hardware.max_clock_mhz or hardware.peak_clock_mhz
    assert clock is not None
    assert hardware.sms is not None
    compute = problem.flops / (2 * hardware.fma_per_sm_per_clock["bf16"] * hardware.sms * clock * 1e6)
    floor = max(compute, problem.least_bytes / hardware.dram_bytes_per_second)
    assert ranking.estimates.seconds.min() >= floor
    assert np.isfinite(ranking.estimates.seconds).all()
    assert all((column >= 0).all() for column in ranking.estimates.terms.values())


@pytest.mark.parametrize(
    ("figure", "factor"),
    [("dram_bytes_per_second", 2), ("peak_clock_mhz", 1.5), ("l2_bytes", 2)],
)
@pytest.mark.parametrize("problem", [CUBE, Problem(m=16, n=8192, k=8192), Problem(m=8192, n=8192, k=8192)])
def test_more_of_a_resource_slows_nothing(h100: Hardware, figure: str, factor: float, problem: Problem) -> None:
    better = replace(h100, **{figure: type(getattr(h100, figure))(getattr(h100, figure) * factor)})
    ranking = rank(problem, h100, load_space("default"))
    again = estimate(ranking.table, lower(ranking.table, problem, better), problem, better, ranking.calibration)
    assert (again.seconds <= ranking.estimates.seconds * (1 + 1e-9)).all()


def test_more_work_takes_longer(h100: Hardware) -> None:
    texts = ["tma 128x256x64 w8 s3 g8", "pointer 64x64x64 w4 s4 g4", "tma 64x128x64 w4 s4 k4"]
    times = [model(texts, Problem(m=m, n=4096, k=8192), h100).seconds for m in (256, 1024, 4096)]
    assert (times[0] < times[1]).all()
    assert (times[1] < times[2]).all()


def test_wide_tiles_lead_at_4096_cubed_and_small_ones_trail(h100: Hardware) -> None:
    seconds = model(["tma 128x256x64 w8 s3 g8", "tma 128x128x64 w4 s4 g8", "tma 64x64x64 w4 s4 g8"], CUBE, h100).seconds
    assert seconds[0] < seconds[1] < seconds[2]
    assert rank(CUBE, h100, load_space("default")).table.schedule(0).cta[:2] == (128, 256)


def test_a_skinny_product_waits_for_dram(h100: Hardware) -> None:
    ranking = rank(Problem(m=16, n=28672, k=8192), h100, load_space("default"))
    assert ranking.estimate(0).limiter == "dram"


def test_few_tiles_with_a_long_k_are_split(h100: Hardware) -> None:
    best = rank(Problem(m=128, n=128, k=65536), h100, load_space("default")).table.schedule(0)
    assert best.split_k > 1 or best.stream_k


def test_one_row_is_streamed_past(h100: Hardware) -> None:
    """At M = 1 the weights' bytes over the bandwidth are all that counts: the first choice loads them once, and comes near that."""
    problem = Problem(m=1, n=28672, k=4096)
    ranking = rank(problem, h100, load_space("default"))
    assert ranking.table.schedule(0).family == "gemv"
    assert 1 <= ranking.estimates.seconds[0] * h100.dram_bytes_per_second / problem.least_bytes < 1.15


def test_a_streamed_column_count_costs_no_hot_line(h100: Hardware) -> None:
    """A lies in L1, so that no line of L2 is asked for by every CTA; a pointer tile of one row wraps to one line in each of its rows."""
    problem = Problem(m=1, n=4096, k=4096)
    assert model(["gemv 1x1x2048 w4 s1"], problem, h100).terms["hot_line"][0] == 0
    assert model(["pointer 16x64x64 w4 s3"], problem, h100).terms["hot_line"][0] > 0


def test_narrow_instructions_cost_what_shared_memory_ports_allow(h100: Hardware) -> None:
    """wgmma m64n16 takes 20 clocks for 8 of tensor work; m64n128, with eight times the work, the 64 of its tensor work."""
    narrow = model(["tma 64x16x64 w4 s4"], Problem(m=64, n=16, k=4096), h100).terms["tensor_core"][0]
    wide = model(["tma 64x128x64 w4 s4"], Problem(m=64, n=128, k=4096), h100).terms["tensor_core"][0]
    assert narrow * 8 / wide == pytest.approx(20 / 8)


def test_the_raster_order_changes_dram_traffic_only_where_l2_is_too_small(h100: Hardware) -> None:
    texts = [f"tma 128x128x64 w4 s4 g{g}" for g in (1, 2, 4, 8, 16)]
    small = model(texts, Problem(m=2048, n=2048, k=2048), h100).facts["dram_bytes"]
    large = model(texts, Problem(m=8192, n=8192, k=8192), h100).facts["dram_bytes"]
    assert np.ptp(small) == 0
    assert large[0] > 1.9 * large[3]


def test_ranking_does_not_depend_on_the_clock_of_the_moment(h100: Hardware) -> None:
    """A GPU that idles at 210 MHz ranks like one at full clock: nothing is read from the device."""
    first, second = (rank(CUBE, load_gpu("h100"), load_space("default")).table.schedules()[:50] for _ in range(2))
    assert first == second


def test_bounds_enclose_the_estimate(h100: Hardware) -> None:
    ranking = rank(CUBE, h100, load_space("default"))
    for row in (0, 100, 1000):
        one = ranking.estimate(row)
        assert one.overlapped_seconds <= one.seconds * 1.001
        assert one.limiter in one.terms


def test_tma_zeroes_missing_rows_more_slowly_than_it_moves_others(h100: Hardware) -> None:
    """64x32x64 of an A with one row: 33 rows of 128 B come through 64 B a clock, 63 are zeroed; pointer loads wrap and fetch all 96."""
    one_row = Problem(m=1, n=4096, k=4096)
    tma, pointer = model(["tma 64x32x64 w4 s4", "pointer 64x32x64 w4 s4"], one_row, h100).terms["fill"]
    missing = load_calibration(h100).missing_row_clocks
    assert tma / pointer == pytest.approx((33 * 2 + 63 * missing) / (96 * 2))


def test_rows_that_wrap_ask_for_the_same_line(h100: Hardware) -> None:
    """16 rows of the tile are the one row there is, in each of 128 CTAs: one line of L2 serves them all, in every K step."""
    thin, full = (model(["pointer 16x32x64 w4 s6"], Problem(m=m, n=4096, k=8192), h100).terms["hot_line"][0] for m in (1, 16))
    assert thin == pytest.approx(16 * full)
    clocks = load_calibration(h100).hot_line_clocks
    assert full == pytest.approx(128 * clocks * (8192 / 64) / h100.clock_hz)
    assert model(["tma 64x32x64 w4 s6"], Problem(m=1, n=4096, k=8192), h100).terms["hot_line"][0] < thin / 100


def test_buffers_times_step_time_is_constant_while_latency_limits(h100: Hardware) -> None:
    """wgmma holds one buffer: 3, 4 and 5 stages have 2, 3 and 4 tiles under way."""
    waits = model([f"tma 64x64x64 w4 s{stages}" for stages in (3, 4, 5)], Problem(m=64, n=64, k=65536), h100)
    latency = waits.terms["latency"]
    assert latency * np.array([2, 3, 4]) == pytest.approx(latency[0] * 2)
    assert waits.facts["bytes_in_flight_per_sm"] == pytest.approx([2 * 16384, 3 * 16384, 4 * 16384])


def test_sharing_the_wider_operand_with_neighbours_pays(h100: Hardware) -> None:
    """Measured on an H200 at 4096^3: 64x128 tiles gain by walking down columns, 128x64 by walking along rows."""
    wide = model(["tma 64x128x64 w4 s5", "tma 64x128x64 w4 s5 g16"], CUBE, h100)
    tall = model(["tma 128x64x64 w4 s5", "tma 128x64x64 w4 s5 g16"], CUBE, h100)
    assert wide.seconds[0] > 1.05 * wide.seconds[1]
    assert tall.seconds[0] < tall.seconds[1]


def test_stores_are_hidden_behind_a_neighbour_or_the_next_tile_and_then_take_their_part_of_dram(h100: Hardware) -> None:
    """128x32768x512 in 128x128 tiles: 256 tiles of 32 KiB of C. With 6 buffers one CTA fits an SM, with 3 two do, all 256 at once.

    Two on an SM leave the stores of every other tile, 128; a loop that stores aside leaves the last 132. What is not left is moved
    while tiles are multiplied: with the 33.7 MB of A and B, 128 tiles' 4.2 MB, or 124 tiles' 4.1 MB.
    """
    c, tile_bytes = load_calibration(h100), 128 * 128 * 2
    texts = ["tma 128x128x64 w4 s6", "tma 128x128x64 w4 s3", "tma 128x128x64 w4 s6 p1 f1"]
    found = model(texts, Problem(m=128, n=32768, k=512), h100)
    assert list(found.facts["resident_ctas"]) == [1, 2, 1]
    stored = np.array([256, 128, 132]) * tile_bytes
    assert found.terms["epilogue"] == pytest.approx(stored / (h100.dram_bytes_per_second * c.store_share))
    operand_bytes = (128 + 32768) * 512 * 2
    moved = operand_bytes + np.array([0, 128, 124]) * tile_bytes
    assert found.terms["dram"] == pytest.approx(moved / (h100.dram_bytes_per_second * c.dram_share))
    assert found.facts["dram_bytes"] == pytest.approx(operand_bytes)
    assert found.seconds[1] < found.seconds[0]
    assert found.seconds[2] < found.seconds[0]


def test_each_part_of_a_tile_s_columns_reads_a(h100: Hardware) -> None:
    """128x144x64: 128 rows of A for the 128 columns and again for the 16, 144 of B for each 64 rows of A, and all 272 written, 128 B each
    in a K step, at 128 B a clock."""
    found = model(["wgmma 128x144x64 w4 s4"], Problem(m=128, n=144, k=4096), h100)
    assert found.terms["shared_memory"][0] == pytest.approx((2 * 128 + 2 * 144 + 272) * (4096 / 64) / h100.clock_hz)


def test_parts_added_as_they_come_are_read_once(h100: Hardware) -> None:
    """A 64x64 tile of 16 KiB in 8 parts, at 64 B a clock: stored and read 1 + 8 times in order, 1 + 1 times as they come."""
    ordered, unordered = model(["tma 64x64x64 w4 s4 k8 r1", "tma 64x64x64 w4 s4 k8 r2"], Problem(m=64, n=64, k=8192), h100).terms[
        "reduction"
    ]
    assert ordered - unordered == pytest.approx(7 * 64 * 64 * 4 / (64 * h100.clock_hz))


@pytest.mark.parametrize("name", model_names())
@pytest.mark.parametrize("gpu", ["a100", "h100", "b200", "rtx5090"])
def test_every_model_estimates_every_schedule(name: str, gpu: str) -> None:
    ranking = rank(Problem(m=512, n=512, k=1024), load_gpu(gpu), load_space("default"), name)
    assert len(ranking.estimates) == len(ranking.table)
    assert (np.diff(ranking.estimates.seconds) >= 0).all()
    assert set(ranking.estimate(0).terms) == set(ranking.estimates.terms)


def test_unknown_model() -> None:
    with pytest.raises(UserError, match="no cost model named 'magic'; known: hierarchy, roofline"):
        rank(CUBE, load_gpu("h100"), load_space("default"), "magic")


def test_a_gpu_without_a_calibration_says_whose_it_uses() -> None:
    assert load_calibration(load_gpu("h100")).name == "sm_90"
    assert load_calibration(load_gpu("a100")).name == "first_guess"


def test_a_calibration_with_a_missing_constant() -> None:
    with pytest.raises(UserError, match="must give exactly source, launch_seconds"):
        parse_calibration("mine", "source: nothing")


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("launch_seconds: .nan", "calibration mine: launch_seconds is .nan, no number above 0"),
        ("launch_seconds: .inf", "calibration mine: launch_seconds is .inf, no number above 0"),
        ("launch_seconds: 0", "calibration mine: launch_seconds is 0, no number above 0"),
        ("launch_seconds: true", "calibration mine: launch_seconds is True, no number above 0"),
        ("launch_seconds: 1:30", "calibration mine: launch_seconds is 1:30, no number above 0"),
        ("launch_seconds: [1]", "calibration mine: launch_seconds is [1], no number above 0"),
        ("launch_seconds: &a 1", "anchors and aliases such as &a are not read"),
        ("launch_seconds: 1\nlaunch_seconds: 2", "'launch_seconds' stands twice, on lines 2 and 3; leave one"),
    ],
)
def test_a_calibration_that_is_wrong_is_a_sentence(text: str, sentence: str) -> None:
    given = calibration_text(replace(load_calibration(load_gpu("a100")), source="me")).splitlines()
    assert given[1].startswith("launch_seconds: ")
    with pytest.raises(UserError) as raised:
        parse_calibration("mine", "\n".join([given[0], text, *given[2:]]))
    assert sentence in str(raised.value)
