"""Finals end to end with a stand-in for the measuring process: who wins, who leaves, and what is stored of both."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, cast

import numpy as np
import pytest

from db.records import Finalist, Measurement
from search_spaces.schedule import Schedule
from tuner.comparing import FinalsSamples
from tuner.finals import hold_finals
from tuner.measuring import Lost, MeasuringProcess
from tuner.search import Outcome


def outcome(row: int, us: float) -> Outcome:
    schedule = Schedule(family="pointer", cta_m=64, cta_n=64, cta_k=32, warps=4, stages=2, group_m=row + 1)
    found = Measurement(status="ok", samples_us=(us,) * 7, median_us=us, registers=64, binary_hash=f"b{row}")
    return Outcome(rank=row, schedule=schedule, measurement=found, trial_id=100 + row)


@dataclass
class Stand:
    """Measures as it is told to: rows that answer wrongly at the end, that are too fast to be true; whether first rounds are lost."""

    us: Sequence[float]
    wrong: Sequence[int] = ()
    implausible: Sequence[int] = ()
    lost: tuple[str, ...] = ()
    spoiled: float | None = None
    drift: float = 0.0
    asked: list[tuple[str, list[int]]] = field(default_factory=list)
    stored: list[Finalist] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.outcomes = {row: outcome(row, us) for row, us in enumerate(self.us)}

    def _rows(self, op: str, schedules: Sequence[Schedule]) -> list[int]:
        rows = [schedule.group_m - 1 for schedule in schedules]
        self.asked.append((op, rows))
        if op in self.lost:
            raise Lost("crashed", "the measuring process died")
        return rows

    def first_rounds(self, schedules: Sequence[Schedule], count: int) -> FinalsSamples:
        times = np.array([[self.us[row] for row in self._rows("rounds", schedules)]] * count)
        return FinalsSamples(times, np.full(count, 100.0))

    def finals(self, schedules: Sequence[Schedule], seconds: float) -> FinalsSamples:
        rows = self._rows("finals", schedules)
        times = np.array([[self.us[row] for row in rows]] * 20)
        if self.spoiled is not None:
            times[3, 0] = self.spoiled
        wrong = tuple(f"bad {row}" if row in self.wrong or row in self.implausible else "" for row in rows)
        implausible = frozenset(place for place, row in enumerate(rows) if row in self.implausible)
        plain = tuple(self.us[row] for row in rows)
        return FinalsSamples(times, np.full(20, 100.0), plain, tuple(us + 10 for us in plain), wrong, implausible)

    def add_finalists(self, run_id: int, finalists: Sequence[Finalist]) -> None:
        self.stored += finalists

    def record(self, row: int, measurement: Measurement) -> None:
        before = self.outcomes[row]
        self.outcomes[row] = Outcome(rank=row, schedule=before.schedule, measurement=measurement, trial_id=200 + row)

    def hold(self) -> tuple[tuple[Finalist, ...], tuple[str, ...]]:
        record: Callable[[int, Measurement], None] = self.record
        return hold_finals(self.outcomes, cast(MeasuringProcess, self), cast(Any, self), 1, record)


def test_the_fastest_wins_and_its_times_are_its_own() -> None:
    stand = Stand([110.0, 90.0, 100.0])
    finalists, notes = stand.hold()
    winner = next(finalist for finalist in finalists if finalist.winner)
    assert (winner.trial_id, winner.median_us, winner.hot_l2_us, winner.eager_us) == (101, 90.0, 90.0, 100.0)
    assert winner.ratio == pytest.approx(100 / 90)
    assert notes == ()
    assert stand.stored == list(finalists)


def test_who_answers_wrongly_in_the_end_never_wins_and_is_recorded_so() -> None:
    stand = Stand([90.0, 91.0, 92.0], wrong=[0])
    finalists, notes = stand.hold()
    assert {finalist.trial_id for finalist in finalists} == {101, 102}
    assert next(f for f in finalists if f.winner).trial_id == 101
    assert [f.eager_us for f in finalists] == [101.0, 102.0]
    found = stand.outcomes[0].measurement
    assert (found.status, found.message, found.median_us, found.binary_hash) == ("wrong_answer", "in the finals: bad 0", None, "b0")
    assert len(notes) == 1
    assert "left the finals: bad 0" in notes[0]


def test_a_time_that_cannot_be_leaves_too_but_is_not_held_against_the_answer() -> None:
    stand = Stand([1.0, 91.0], implausible=[0])
    finalists, _ = stand.hold()
    assert [f.trial_id for f in finalists] == [101]
    assert stand.outcomes[0].measurement.status == "implausible"


def test_where_all_finalists_are_wrong_the_next_ones_come_in() -> None:
    stand = Stand([*(90.0 + 0.01 * i for i in range(8)), 120.0, 130.0], wrong=range(8))
    finalists, notes = stand.hold()
    assert next(f for f in finalists if f.winner).trial_id == 108
    assert len(notes) == 8
    assert [o.measurement.status for o in stand.outcomes.values()] == ["wrong_answer"] * 8 + ["ok"] * 2


def test_where_nobody_is_right_nobody_wins() -> None:
    stand = Stand([90.0, 91.0], wrong=[0, 1])
    assert stand.hold()[0] == ()
    assert stand.stored == []
    assert Stand([]).hold() == ((), ())


def test_many_alike_are_timed_in_first_rounds_and_eight_go_on() -> None:
    stand = Stand([100.0 + 0.01 * i for i in range(60)])
    finalists, _ = stand.hold()
    assert [op for op, _ in stand.asked] == ["rounds", "rounds", "finals"]
    assert [len(rows) for _, rows in stand.asked] == [60, 48, 8]
    assert stand.asked[-1][1] == list(range(8))
    assert len(finalists) == 8


def test_lost_first_rounds_do_not_cost_the_finals() -> None:
    stand = Stand([100.0 + 0.01 * i for i in range(20)], lost=("rounds",))
    finalists, notes = stand.hold()
    assert len(finalists) == 8
    assert notes == ("rounds before the finals were lost (the measuring process died)",)


@pytest.mark.parametrize("spoiled", [0.0, -1.0, float("nan"), float("inf")])
def test_finals_with_a_time_that_is_none_crown_nobody(spoiled: float) -> None:
    stand = Stand([100.0, 90.0], spoiled=spoiled)
    finalists, notes = stand.hold()
    assert finalists == ()
    assert stand.stored == []
    assert notes[0].startswith("the finals were lost (the finals hold a time of a contestant that is no number above 0)")


def test_lost_finals_are_said() -> None:
    assert Stand([100.0], lost=("finals",)).hold() == (
        (),
        ("the finals were lost (the measuring process died); the same command again holds them anew",),
    )
