"""The finals of a search: the leaders and the library are timed in turn, and who won is stored."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict
from typing import TYPE_CHECKING

from db.records import Finalist, Measurement
from db.store import Store
from tuner.comparing import compare
from tuner.measuring import Lost, MeasuringProcess

if TYPE_CHECKING:
    from tuner.search import Outcome

FINALISTS = 8  # leaders that are timed again beside the library
FINALS_SECONDS = 1.0


def hold_finals(
    outcomes: Mapping[int, Outcome], process: MeasuringProcess, store: Store, run_id: int, record: Callable[[int, Measurement], None]
) -> tuple[tuple[Finalist, ...], tuple[str, ...]]:
    """Time the leaders and the library in turn, and store who won, by how much, and who is too close to call. With it, what went wrong.

    outcomes: by row; record: stores what became of a row.
    """
    timed = sorted((o for o in outcomes.values() if o.measurement.status == "ok"), key=lambda o: (o.measurement.median_us, o.rank))
    leaders = timed[:FINALISTS]
    if not leaders:
        return (), ()
    try:
        samples = process.finals([o.schedule for o in leaders], FINALS_SECONDS)
    except Lost as lost:
        return (), (f"the finals were lost ({lost.message}); the same command again holds them anew",)
    resources = [(o.measurement.shared_memory_bytes or 0, o.measurement.registers or 0, o.schedule.warps, str(o.schedule)) for o in leaders]
    verdicts = compare(samples, resources)
    finalists = tuple(
        Finalist(trial_id=outcome.trial_id, hot_l2_us=hot, eager_us=eager, **asdict(verdict))
        for outcome, verdict, hot, eager in zip(leaders, verdicts, samples.hot_l2_us, samples.eager_us, strict=True)
    )
    store.add_finalists(run_id, finalists)
    return finalists, ()
