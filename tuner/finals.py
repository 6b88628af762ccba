"""The finals of a search: the leaders and the library are timed in turn, and who won is stored."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, replace
from typing import TYPE_CHECKING

from db.records import Finalist, Measurement, Status
from db.store import Store
from tuner.comparing import FinalsSamples, compare
from tuner.leaders import FINALISTS, STAGES, Field
from tuner.measuring import Lost, MeasuringProcess

if TYPE_CHECKING:
    from tuner.outcomes import Outcome

FINALS_SECONDS = 1.0  # of rounds that tell the finalists apart; first rounds, where noise asks for them, come on top


def hold_finals(
    outcomes: Mapping[int, Outcome], process: MeasuringProcess, store: Store, run_id: int, record: Callable[[int, Measurement], None]
) -> tuple[tuple[Finalist, ...], tuple[str, ...]]:
    """Time the leaders and the library in turn, and store who won, by how much, and who is too close to call. With it, what went wrong.

    outcomes: by row, of which `record` stores what became. A contestant whose answers turn out wrong is recorded so and leaves; where none
    is left of those that were timed, the next ones come in.
    """
    notes: list[str] = []
    while timed := [o for o in outcomes.values() if o.measurement.status == "ok"]:
        try:
            leaders = _leaders(timed, process, notes)
            samples = process.finals([o.schedule for o in leaders], FINALS_SECONDS)
            standing, samples = _without_wrong(leaders, samples, record, notes)
            finalists = _finalists(standing, samples)
        except Lost as lost:
            return (), (*notes, f"the finals were lost ({lost.message}); the same command again holds them anew")
        if finalists:
            store.add_finalists(run_id, finalists)
            return finalists, tuple(notes)
    return (), tuple(notes)


def _leaders(timed: Sequence[Outcome], process: MeasuringProcess, notes: list[str]) -> list[Outcome]:
    """Who goes on to the finals, after as many first rounds as noise asks for."""
    by_rank = sorted(timed, key=lambda o: (o.measurement.median_us, o.rank))
    field = Field([o.measurement.samples_us or (o.measurement.median_us or 0.0,) for o in by_rank], process.drift)
    try:
        for stage, after in zip(STAGES, (*(stage.most for stage in STAGES[1:]), FINALISTS), strict=True):
            if rounds := field.begin(stage, after=after):
                field.tell(process.first_rounds([by_rank[i].schedule for i in field.still_in], rounds).times_us)
    except (Lost, ValueError) as lost:  # the finals themselves can be held all the same
        notes.append(f"rounds before the finals were lost ({getattr(lost, 'message', lost)})")
    return [by_rank[i] for i in field.still_in[:FINALISTS]]


def _without_wrong(
    leaders: Sequence[Outcome], samples: FinalsSamples, record: Callable[[int, Measurement], None], notes: list[str]
) -> tuple[list[Outcome], FinalsSamples]:
    """Those whose answers were right to the end, and their times. The others are recorded as wrong, which disproves what was said
    before."""
    wrong = {i: complaint for i, complaint in enumerate(samples.wrong) if complaint}
    for i, complaint in wrong.items():
        status: Status = "implausible" if i in samples.implausible else "wrong_answer"
        said = f"in the finals: {complaint}"
        record(leaders[i].rank, replace(leaders[i].measurement, status=status, message=said, samples_us=(), median_us=None))
        notes.append(f"{leaders[i].schedule} left the finals: {complaint}")
    return [o for i, o in enumerate(leaders) if i not in wrong], samples.without(list(wrong))


def _finalists(leaders: Sequence[Outcome], samples: FinalsSamples) -> tuple[Finalist, ...]:
    if not leaders:
        return ()
    resources = [(o.measurement.shared_memory_bytes or 0, o.measurement.registers or 0, o.schedule.warps, str(o.schedule)) for o in leaders]
    try:
        standings = compare(samples, resources)
    except ValueError as error:
        raise Lost("crashed", str(error)) from None
    return tuple(
        Finalist(trial_id=outcome.trial_id, hot_l2_us=hot, eager_us=eager, **asdict(standing))
        for outcome, standing, hot, eager in zip(leaders, standings, samples.hot_l2_us, samples.eager_us, strict=True)
    )
