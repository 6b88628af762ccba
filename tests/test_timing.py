"""How often graphs are replayed, and in which order: with stand-ins for the graphs and the clock."""

from __future__ import annotations

from typing import Any, cast

import pytest
import torch

from tuner import timing
from tuner.timing import FEWEST_ROUNDS, Graph, few_rounds, full_graph, graph_calls, in_turn, samples_us


class Clocked:
    """A graph of one call that takes so many microseconds."""

    def __init__(self, us: float, replayed: list[float]) -> None:
        self.us, self.calls, self.replayed = us, 1, replayed
        self.graph = self

    def replay(self) -> None:
        self.replayed.append(self.us)

    def replay_us(self) -> float:
        self.replay()
        return self.us


def graphs(replayed: list[float], *us: float) -> list[Graph]:
    return [cast(Graph, Clocked(time, replayed)) for time in us]


@pytest.fixture
def replayed(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """What has been replayed; the clock has moved by as much."""
    made: list[float] = []
    monkeypatch.setattr(timing.time, "monotonic", lambda: sum(made) * 1e-6)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)
    return made


def test_a_short_graph_gives_seven_samples_after_two_warm_replays(replayed: list[float]) -> None:
    assert samples_us(graphs(replayed, 1500.0)[0]) == [1500.0] * 7
    assert len(replayed) == 9


def test_a_slow_kernel_still_gets_samples(replayed: list[float]) -> None:
    """500 ms a call: four replays, not nine."""
    assert samples_us(graphs(replayed, 500_000.0)[0]) == [500_000.0] * 3
    assert len(replayed) == 4


def test_every_round_times_everyone_and_begins_with_another_one(replayed: list[float]) -> None:
    assert in_turn(graphs(replayed, 1.0, 2.0, 3.0), seconds=1e-9, least_rounds=4) == [[1.0, 2.0, 3.0]] * 4
    assert replayed == [1, 2, 3, 1, 2, 3, 2, 3, 1, 3, 1, 2, 1, 2, 3]  # first all of them warm


def test_rounds_go_on_for_the_seconds_given(replayed: list[float]) -> None:
    rounds = in_turn(graphs(replayed, 1000.0, 1000.0), seconds=0.999, least_rounds=20)
    assert len(rounds) == 500  # of 2 ms each; warm replays do not count


@pytest.mark.parametrize(("us", "rounds"), [(100_000.0, 20), (500_000.0, 7), (8e6, FEWEST_ROUNDS)])
def test_slow_kernels_get_fewer_rounds_rather_than_none(replayed: list[float], us: float, rounds: int) -> None:
    """Nine contestants and 3 s: 20 rounds are worth 30 s, the round that passes them included; five are held whatever they take."""
    found: list[Any] = in_turn(graphs(replayed, *[us] * 9), seconds=3.0, least_rounds=20)
    assert len(found) == rounds


def test_first_rounds_are_as_many_as_asked_for(replayed: list[float]) -> None:
    assert few_rounds(graphs(replayed, 1.0, 2.0), 3) == [[1.0, 2.0]] * 3
    assert len(replayed) == 2 + 6


@pytest.mark.parametrize(
    ("sets", "rough", "calls"),
    [
        (31, 10.0, 64),  # 1.5 ms would take 150
        (3, 100.0, 15),
        (3, 2000.0, 1),
        (481, 2.5, 481),  # once round, however many sets there are
        (121, 20.0, 121),
        (1, 2.0, 64),
    ],
)
def test_a_graph_goes_once_round_the_sets_and_takes_a_millisecond_and_a_half_where_64_calls_do(sets: int, rough: float, calls: int) -> None:
    assert graph_calls(sets, rough) == calls


@pytest.mark.parametrize(("sets", "flushed", "calls"), [(512, True, 512), (5, True, 5), (5, False, 64)])
def test_where_l2_is_flushed_no_set_is_used_twice_in_a_graph(monkeypatch: pytest.MonkeyPatch, sets: int, flushed: bool, calls: int) -> None:
    monkeypatch.setattr(timing, "capture", lambda run, sets, calls: Graph(cast(Any, None), calls))
    flush = torch.ones(4) if flushed else None
    graph = full_graph(lambda index: None, sets, 2.0, flush)
    assert (graph.calls, graph.flush) == (calls, flush)


def test_l2_is_flushed_before_a_replay_and_outside_of_its_time(monkeypatch: pytest.MonkeyPatch) -> None:
    flush, seen = torch.ones(4), list[str]()

    class Event:
        def record(self) -> None:
            seen.append(f"event after {float(flush.sum()):g}")

        def synchronize(self) -> None: ...

        def elapsed_time(self, end: Event) -> float:
            return 0.5

    class Replayed:
        def replay(self) -> None:
            seen.append("replay")

    monkeypatch.setattr(timing, "timing_events", lambda: (Event(), Event()))
    assert Graph(cast(Any, Replayed()), 10, flush).replay_us() == 50.0
    assert seen == ["event after 0", "replay", "event after 0"]
