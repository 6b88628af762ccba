"""The surrogate corrects a model by what was measured, says how sure it is, and what there is left to gain."""

from __future__ import annotations

import math

import numpy as np
import pytest

from search_spaces.schedule import Schedule
from search_spaces.table import ScheduleTable
from tuner.stopping import RegretWatch
from tuner.strategies import Candidates, Trial
from tuner.surrogate import FAMILY_SD, NOISE_SD, SCALES, SHARED_SD, Surrogate

US = 1e-6


def schedule(cta_m: int = 128, family: str = "tma", **axes: int) -> Schedule:
    return Schedule(family=family, cta_m=cta_m, cta_n=128, cta_k=64, **axes)


def candidates(schedules: list[Schedule], estimates_us: list[float] | float = 10.0) -> Candidates:
    seconds = np.broadcast_to(np.array(estimates_us) * US, (len(schedules),)).copy()
    return Candidates(table=ScheduleTable.of(schedules), seconds=seconds)


def timed(row: int, us: float, status: str = "ok") -> Trial:
    return Trial(row=row, status=status, seconds=us * US)


def failed(row: int, status: str = "out_of_resources") -> Trial:
    return Trial(row=row, status=status, seconds=None)


def told(given: Candidates, *trials: Trial) -> Surrogate:
    surrogate = Surrogate(given)
    surrogate.tell(trials)
    return surrogate


def expected_us(surrogate: Surrogate, *rows: int) -> list[float]:
    return (np.exp(surrogate.posterior(np.array(rows)).mean) / US).tolist()


def all_but(count: int, *rows: int) -> np.ndarray:
    left = np.ones(count, dtype=bool)
    left[list(rows)] = False
    return left


FAR = [schedule(1), schedule(2**20)]  # twenty doublings: nothing carries so far
NEAR_AND_FAR = [schedule(128), schedule(128, group_m=2), schedule(2**20)]


def test_before_anything_is_measured_the_model_stands():
    surrogate = Surrogate(candidates(FAR, [10.0, 12.0]))
    assert expected_us(surrogate, 0, 1) == pytest.approx([10, 12])
    assert surrogate.best_seconds is None


def test_one_measurement_scales_everything_by_what_the_model_was_off():
    """Measured 15 us, estimated 10: the other one, 12 by the estimate, should take 18."""
    surrogate = told(candidates(FAR, [10.0, 12.0]), timed(0, 15))
    assert expected_us(surrogate, 0, 1) == pytest.approx([15, 18])


def test_variance_of_one_measurement_by_hand():
    """v is the variance before: shared, of the family, and of the schedule. After measuring it with noise n it is v - v^2 / (v + n). For a
    schedule that shares only c = shared + family with it, v - c^2 / (v + n). One error of 0 is likeliest under the least scale."""
    shared = SHARED_SD**2 + FAMILY_SD**2
    v, n = shared + SCALES[0] ** 2, NOISE_SD**2
    sd = told(candidates(FAR), timed(0, 10)).posterior(np.array([0, 1])).sd
    assert sd.tolist() == pytest.approx([math.sqrt(v - v**2 / (v + n)), math.sqrt(v - shared**2 / (v + n))])


def test_between_two_measurements_the_nearer_counts_more():
    """128 took a tenth more than estimated, 2**20 a tenth less: the median is none, and a twin of the first is near its tenth."""
    surrogate = told(candidates(NEAR_AND_FAR), timed(0, 11), timed(2, 10 / 1.1))
    first, twin, last = expected_us(surrogate, 0, 1, 2)
    assert first == pytest.approx(11, rel=0.01)
    assert last == pytest.approx(10 / 1.1, rel=0.01)
    assert 10.5 < twin < 11


def test_uncertainty_grows_with_distance():
    sd = told(candidates(NEAR_AND_FAR), timed(0, 10)).posterior(np.array([0, 1, 2])).sd
    assert sd[0] < sd[1] < sd[2]


def test_a_family_that_the_model_flatters_is_corrected_where_nothing_of_it_was_measured():
    tiles = (16, 64, 256, 1024)
    schedules = [schedule(tile, family) for family in ("pointer", "tma") for tile in tiles]
    surrogate = told(candidates(schedules), *(timed(row, 15) for row in (0, 1, 2)), *(timed(row, 10) for row in (4, 5, 6)))
    pointer, tma = expected_us(surrogate, 3, 7)
    assert pointer > 1.2 * tma
    assert surrogate.in_order(all_but(8, 0, 1, 2, 4, 5, 6)).tolist() == [7, 3]


def test_one_wild_schedule_leaves_its_neighbours_in_their_place():
    """A spilling schedule takes 17 times its estimate. Its neighbour may be up to 1.4 times slower, not 17."""
    schedules = [schedule(tile) for tile in (16, 32, 64, 128, 256)]
    surrogate = told(candidates(schedules), timed(0, 10), timed(1, 10), timed(2, 10), timed(4, 170))
    assert expected_us(surrogate, 3)[0] < 14


def test_a_single_launch_says_less_than_a_proper_timing():
    near = [schedule(128), schedule(128, group_m=2), schedule(2**20)]
    proper, single = (told(candidates(near), timed(2, 10), timed(0, 13, status)) for status in ("ok", "slow"))
    assert expected_us(single, 1)[0] < expected_us(proper, 1)[0]
    assert single.best_seconds == 10 * US


def test_failures_push_away_and_are_no_times():
    schedules = [schedule(tile, stages=stages) for tile in (16, 4096) for stages in (3, 4)]
    surrogate = told(candidates(schedules), failed(0))
    assert expected_us(surrogate, 1, 2, 3) == pytest.approx([10, 10, 10])
    chance = surrogate.chance_of_failure(np.array([1, 3]))
    assert chance[0] > 10 * chance[1]
    assert surrogate.in_order(all_but(4, 0)).tolist()[-1] == 1
    assert surrogate.most_promising(all_but(4, 0), 1) != [1]


@pytest.mark.parametrize("status", ["compiled", "duplicate", "killed"])
def test_what_says_nothing_of_the_schedule_is_no_failure(status):
    surrogate = told(candidates(FAR), failed(0, status))
    assert surrogate.chance_of_failure(np.array([0, 1])).tolist() == [0, 0]


def test_regret_by_hand():
    """Twenty doublings away and estimated alike, the other's log time is normal about the best's. Its variance is by the test above
    s^2 = 0.0225 - 0.02^2 / 0.0226 = 0.0048. The gain expected, E[max(0, 1 - exp(s z))], is s / sqrt(2 pi) - s^2 / 4 to second order:
    0.0276 - 0.0012."""
    assert (SHARED_SD, FAMILY_SD, SCALES[0], NOISE_SD) == (0.1, 0.1, 0.05, 0.01)
    surrogate = told(candidates(FAR), timed(0, 10))
    assert surrogate.estimated_regret(all_but(2, 0)) == pytest.approx(0.0264, rel=0.15)


def test_regret_is_unknown_before_and_none_after_all():
    surrogate = Surrogate(candidates(FAR))
    assert surrogate.estimated_regret(all_but(2)) is None
    surrogate.tell([timed(0, 10), timed(1, 11)])
    assert surrogate.estimated_regret(all_but(2, 0, 1)) == 0


def test_no_regret_of_what_the_model_holds_for_far_slower():
    assert told(candidates(FAR, [10.0, 40.0]), timed(0, 10)).estimated_regret(all_but(2, 0)) < 1e-6


def test_promising_rows_are_different_rows_of_those_left():
    schedules = [schedule(2**power, group_m=group) for power in range(4, 9) for group in (1, 2, 4)]
    surrogate = told(candidates(schedules), timed(0, 10), failed(1), timed(2, 8))
    rows = surrogate.most_promising(all_but(15, 0, 1, 2), 12)
    assert sorted(rows) == list(range(3, 15))


def test_a_schedule_told_twice_counts_as_told_last():
    assert told(candidates(FAR), timed(0, 10), timed(0, 20)).best_seconds == 20 * US


def test_watch_stops_under_its_bound_and_not_before():
    schedules = [schedule(128, group_m=group) for group in (1, 2, 4, 8)]
    watch = RegretWatch(candidates(schedules, [10.0, 20.0, 40.0, 10.5]), bound=0.01)
    watch.tell([])
    assert (watch.regret.estimated, watch.regret.stopped) == (None, False)
    watch.tell([failed(2)])
    assert (watch.regret.estimated, watch.regret.stopped) == (None, False)
    watch.tell([timed(1, 20)])
    assert watch.regret.estimated > 0.3
    assert not watch.regret.stopped
    watch.tell([timed(0, 10), timed(3, 10.5)])
    assert watch.regret.estimated < 0.01
    assert watch.regret.stopped


@pytest.mark.parametrize(("library_us", "goes_on"), [(8.0, True), (9.8, False), (12.0, False)])
def test_a_search_goes_on_while_the_library_leads(library_us, goes_on):
    """The best takes 10 us, and the last schedule is expected to take 400. A lead of 2 % may be the clock's."""
    schedules = [schedule(128, group_m=group) for group in range(1, 18)]
    watch = RegretWatch(candidates(schedules, [10.0] * 16 + [400.0]), bound=0.01, library_seconds=lambda: library_us * US)
    watch.tell([timed(row, 10) for row in range(16)])
    assert watch.regret.estimated < 0.01
    assert watch.regret.stopped != goes_on


def test_watch_without_a_bound_never_stops_and_still_estimates():
    watch = RegretWatch(candidates(FAR, [10.0, 40.0]), bound=0.0)
    watch.tell([timed(0, 10)])
    assert watch.regret.estimated is None
    assert watch.estimate().estimated == pytest.approx(0, abs=1e-6)
    assert not watch.regret.stopped


@pytest.mark.parametrize("status", ["machine_fault", "compile_failed", "crashed", "killed", "timeout", "launch_failed", "implausible"])
def test_what_befell_a_schedule_at_the_moment_says_nothing_of_its_neighbours(status: str) -> None:
    surrogate = told(candidates(NEAR_AND_FAR), timed(2, 10.0), failed(0, status))
    assert surrogate.chance_of_failure(np.array([1]))[0] == pytest.approx(0.0, abs=1e-6)
    blamed = told(candidates(NEAR_AND_FAR), timed(2, 10.0), failed(0, "refused"))
    assert blamed.chance_of_failure(np.array([1]))[0] > 0.3


def test_a_search_does_not_stop_for_having_failed_often() -> None:
    """Sixteen results are the least that a search may stop on; those that say nothing do not count, and their schedules are left."""
    given = candidates([schedule(128, group_m=1 + i) for i in range(20)])
    watch = RegretWatch(given, 0.5)
    watch.tell([timed(0, 10.0), *(failed(row, "machine_fault") for row in range(1, 18))])
    assert not watch.regret.stopped
    watch.tell([timed(row, 10.0) for row in range(1, 18)])
    assert watch.regret.stopped
