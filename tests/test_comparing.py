"""Finals decide by paired rounds: noise does not crown, drift does not matter, ties are ties, and the same finals crown the same
schedule."""

from __future__ import annotations

import numpy as np
import pytest

from tuner.comparing import FinalsSamples, compare, median_interval


def finals(true_us: list[float], *, noise: float, seed: int, rounds: int = 60, drift: float = 0.0) -> FinalsSamples:
    rng = np.random.default_rng(seed)
    clock = 1 + drift * np.linspace(0, 1, rounds)[:, None]
    times = np.array(true_us) * clock * (1 + noise * rng.standard_normal((rounds, len(true_us))))
    library = 100.0 * clock[:, 0] * (1 + noise * rng.standard_normal(rounds))
    return FinalsSamples(times, library)


def names(count: int) -> list[tuple[object, ...]]:
    return [(i,) for i in range(count)]


def test_the_faster_by_two_percent_is_found_under_three_percent_noise() -> None:
    """300 candidates alike but one; a first measurement picks ten, mostly by luck; where the one is among them, the paired rounds find
    it."""
    found = tried = 0
    for seed in range(60):
        rng = np.random.default_rng(1000 + seed)
        true = np.full(300, 100.0)
        true[137] = 98.0
        first = np.median(true * (1 + 0.03 * rng.standard_normal((7, 300))), axis=0)
        ten = list(np.argsort(first)[:10])
        if 137 not in ten:
            continue  # it was unlucky before the finals
        tried += 1
        standings = compare(finals([true[i] for i in ten], noise=0.03, seed=seed, rounds=400), names(10))
        tied = [i for i, s in zip(ten, standings, strict=True) if s.tied]
        found += max(zip(ten, standings, strict=True), key=lambda pair: pair[1].ratio)[0] == 137 and 137 in tied
    assert tried >= 10
    assert found >= 0.9 * tried


def test_ratio_is_library_over_candidate() -> None:
    (standing,) = compare(finals([80.0], noise=0.001, seed=0), names(1))
    assert standing.ratio == pytest.approx(1.25, rel=0.002)
    assert standing.ratio_low <= standing.ratio <= standing.ratio_high
    assert standing.winner
    assert standing.tied
    assert standing.rank == 1


def test_a_drifting_clock_moves_no_ratio() -> None:
    steady, drifting = (compare(finals([90.0, 100.0], noise=0.002, seed=3, drift=d), names(2)) for d in (0.0, 0.3))
    for a, b in zip(steady, drifting, strict=True):
        assert a.ratio == pytest.approx(b.ratio, rel=0.003)
    assert drifting[0].median_us > steady[0].median_us * 1.1


def test_of_the_tied_the_frugal_one_wins() -> None:
    samples = finals([100.0, 100.1, 108.0], noise=0.002, seed=5)
    standings = compare(samples, [(200_000, "a"), (100_000, "b"), (1, "c")])
    assert [s.tied for s in standings] == [True, True, False]
    assert [s.winner for s in standings] == [False, True, False]
    assert [s.rank for s in standings] == [2, 1, 3]


def test_equal_resources_fall_back_to_the_text() -> None:
    samples = finals([100.0, 100.0], noise=0.001, seed=6)
    assert [s.winner for s in compare(samples, [(1, "tma b"), (1, "tma a")])] == [False, True]


def test_ties_crown_the_same_schedule_again_and_again() -> None:
    winners = {
        next(i for i, s in enumerate(compare(finals([100.0] * 5, noise=0.01, seed=seed), names(5))) if s.winner) for seed in range(20)
    }
    assert winners == {0}


def test_the_interval_covers_the_truth() -> None:
    covered = 0
    for seed in range(100):
        _, low, high = median_interval(np.random.default_rng(seed).normal(10.0, 0.5, 60))
        covered += low <= 10.0 <= high
    assert covered >= 88


@pytest.mark.parametrize("bad", [0.0, -1.0, float("nan"), float("inf")])
@pytest.mark.parametrize("whose", ["a contestant", "the library"])
def test_a_time_that_is_none_is_refused(bad: float, whose: str) -> None:
    times, library = np.full((20, 2), 100.0), np.full(20, 100.0)
    (times[:, 1] if whose == "a contestant" else library)[7] = bad
    with pytest.raises(ValueError, match=f"the finals hold a time of {whose} that is no number above 0"):
        compare(FinalsSamples(times, library), names(2))


def test_who_leaves_takes_nobody_s_times_along() -> None:
    samples = FinalsSamples(np.array([[1.0, 2.0, 3.0]] * 4), np.full(4, 5.0), (1.5, 2.5, 3.5), (11.0, 12.0, 13.0), ("", "bad", ""))
    left = samples.without([1])
    assert left.times_us.tolist() == [[1.0, 3.0]] * 4
    assert (left.hot_l2_us, left.eager_us) == ((1.5, 3.5), (11.0, 13.0))
