"""Who goes on to the finals: simulated searches in which one schedule is faster, by as much as noise and the clock hide."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray

from tuner.leaders import FINALISTS, STAGES, Field

Times = NDArray[np.float64]


def finalists(true_us: Times, noise: float, random: np.random.Generator, clock: Times | None = None, drift: float = 0.0) -> list[int]:
    """A search times each seven times, at the clock of its moment; first rounds time those that may go on in turn."""
    seen = true_us * (1.0 if clock is None else clock)
    field = Field((seen[:, None] * (1 + noise * random.standard_normal((len(true_us), 7)))).tolist(), drift)
    for stage, after in zip(STAGES, (*(stage.most for stage in STAGES[1:]), FINALISTS), strict=True):
        if rounds := field.begin(stage, after=after):
            field.tell(true_us[field.still_in] * (1 + noise * random.standard_normal((rounds, len(field.still_in)))))
    return field.still_in[:FINALISTS]


def test_one_that_is_two_percent_faster_is_among_the_finalists_nine_times_in_ten() -> None:
    """300 candidates, 3 % noise. By seven samples alone it is among the first eight in a third of the searches."""
    random, found, alone = np.random.default_rng(0), 0, 0
    for _ in range(200):
        true_us, faster = np.full(300, 100.0), int(random.integers(300))
        true_us[faster] = 98.0
        found += faster in finalists(true_us, 0.03, random)
        medians = np.median(true_us[:, None] * (1 + 0.03 * random.standard_normal((300, 7))), axis=1)
        alone += faster in np.argsort(medians)[:FINALISTS]
    assert found >= 180
    assert alone < 100


def test_one_that_was_timed_while_the_clock_was_low_is_timed_in_turn_again() -> None:
    """It is 2 % faster than 40 others and looks 8 % slower; the library was seen to move by a tenth."""
    true_us, clock = np.full(41, 200.0), np.full(41, 1.0)
    true_us[40], clock[40] = 196.0, 1.1
    assert 40 not in finalists(true_us, 0.001, np.random.default_rng(0), clock)
    assert finalists(true_us, 0.001, np.random.default_rng(0), clock, drift=0.1)[0] == 40


@pytest.mark.parametrize("count", [1, 3, 8, 9, 60])
def test_eight_hold_the_finals_where_there_are_as_many(count: int) -> None:
    """However far behind they are."""
    true_us = 100.0 * 1.2 ** np.arange(count)
    assert finalists(true_us, 0.0, np.random.default_rng(0)) == list(range(min(count, FINALISTS)))


def test_a_schedule_with_a_single_time_takes_part() -> None:
    assert Field([(100.0,), (101.0, 102.0)]).still_in == [0, 1]
