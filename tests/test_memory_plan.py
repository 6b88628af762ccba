"""How many operand sets there are, what they say of how cold they are, and what is too large to be measured."""

from __future__ import annotations

import pytest

from search_spaces.problem import Problem
from tuner.memory_plan import gibibytes, plan_references, plan_sets, protocol_for, set_bytes

H200_L2, H200_FREE = 60 * 2**20, 139 * 2**30
RTX_L2, RTX_FREE = 96 * 2**20, 31 * 2**30


@pytest.mark.parametrize(
    ("shape", "sets"),
    # 3 * 62914560 bytes over those of A, B and C, rounded up, and one more: 480 + 1 for 3 * 131072 bytes
    [((256, 256, 256), 481), ((64, 64, 4096), 180), ((512, 512, 512), 121), ((1, 4096, 4096), 7), ((4096, 4096, 4096), 3)],
)
def test_sets_are_three_times_l2_and_one_more(shape: tuple[int, int, int], sets: int) -> None:
    m, n, k = shape
    plan = plan_sets(Problem(m=m, n=n, k=k), H200_L2, H200_FREE)
    assert plan.count == sets
    assert plan.flush_bytes == 0
    assert plan.over_l2 == pytest.approx(sets * 2 * (m * k + k * n + m * n) / H200_L2)
    assert plan.over_l2 >= 3


@pytest.mark.parametrize("shape", [(16, 16, 16), (1, 1, 1), (128, 128, 128), (1, 64, 64), (200, 200, 200)])
def test_products_too_small_for_that_are_kept_cold_by_flushing_l2(shape: tuple[int, int, int]) -> None:
    m, n, k = shape
    plan = plan_sets(Problem(m=m, n=n, k=k), H200_L2, H200_FREE)
    assert plan.count == 512
    assert plan.flush_bytes == 3 * H200_L2
    assert plan.over_l2 > 3


@pytest.mark.parametrize("l2", [H200_L2, RTX_L2, 2**20])
@pytest.mark.parametrize("extent", [8, 100, 256, 333, 700, 2048, 10_000])
def test_between_two_uses_three_times_l2_passes_wherever_there_is_memory_for_it(l2: int, extent: int) -> None:
    assert plan_sets(Problem(m=extent, n=extent, k=extent), l2, RTX_FREE).over_l2 >= 3


def test_where_memory_is_short_the_record_says_how_cold_they_are() -> None:
    """Half of 400 MiB holds 66 sets of 3 MiB; a quarter of it does not hold what flushes L2."""
    problem = Problem(m=1024, n=512, k=512)
    plan = plan_sets(problem, RTX_L2, 80 * 2**20)
    assert plan.count == 40 * 2**20 // set_bytes(problem)
    assert plan.flush_bytes == 0
    assert plan.over_l2 == pytest.approx(plan.count * problem.least_bytes / RTX_L2)
    assert plan.over_l2 < 1


def test_what_was_timed_cold_before_is_still_known_and_what_was_warm_is_not() -> None:
    assert [protocol_for(Problem(m=n, n=n, k=n), H200_L2) for n in (256, 512, 1024, 4096)] == [
        "graph-rotating-2",
        "graph-rotating-2",
        "graph-rotating-1",
        "graph-rotating-1",
    ]
    assert protocol_for(Problem(m=64, n=64, k=4096), H200_L2) == "graph-rotating-2"
    assert protocol_for(Problem(m=1, n=4096, k=4096), None) == "graph-rotating-2"


def test_a_large_product_needs_itself_and_a_little_for_its_checking() -> None:
    """A, B and C of 40960x128256x512: 40 MiB, 125.25 MiB and 9.79 GiB. In 12 GB there is room for all but a kept reference."""
    problem = Problem(m=40960, n=128256, k=512)
    plan = plan_sets(problem, H200_L2, 12 * 10**9)
    assert plan.count == 1
    assert plan.needed_bytes == pytest.approx(2 * (40960 * 512 + 128256 * 512 + 40960 * 128256) + 2**28, rel=1e-4)
    assert plan.needed_bytes < 12 * 10**9
    left = 12 * 10**9 - set_bytes(problem)
    keeps, block = plan_references(40960 * 128256, 1, left)
    assert keeps == (False,)
    assert block <= left / 4


def test_what_cannot_fit_needs_more_than_is_free() -> None:
    plan = plan_sets(Problem(m=65536, n=131072, k=65536, out_dtype="fp32"), H200_L2, 12 * 2**30)
    assert gibibytes(plan.needed_bytes) == "56.3 GiB"
    assert plan.needed_bytes > 12 * 2**30


@pytest.mark.parametrize(
    ("elements", "free", "keeps"),
    [(2**24, H200_FREE, (True, True, True)), (40960 * 128256, 117 * 2**30, (True, True, False)), (2**32, 20 * 2**30, (False,) * 3)],
)
def test_references_are_kept_while_they_take_half_of_what_is_free(elements: int, free: int, keeps: tuple[bool, ...]) -> None:
    assert plan_references(elements, 3, free)[0] == keeps
