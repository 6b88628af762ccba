"""The search itself: rank, compile, measure, record, and prove the winner against the library. The strategy proposes; this owns the budget.

Compiling and measuring overlap: workers compile the next schedules while the measuring process times the last one. Each result is stored
before the next one is asked for, so that whatever kills the search costs at most the measurement in flight.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass

from db.records import Environment, Finalist, RunStatus
from db.store import Store
from tuner.failures import failures, failures_text
from tuner.finals import FINALS_SECONDS, hold_finals
from tuner.flow import Flow
from tuner.kernel_cache import KernelCache
from tuner.memory_plan import protocol_for
from tuner.outcomes import Outcome, Progress, Run
from tuner.ranking import Ranking
from tuner.request import Request
from tuner.stopping import Regret, RegretWatch
from tuner.strategies import Candidates, StrategySettings, load_strategy, stops_early
from tuner.warm_start import nearby_rows
from tuner.workbench import Workbench

__all__ = ["Outcome", "Progress", "SearchResult", "search"]

FIRST_BATCH = 32  # schedules; compiled while the measuring process gets ready
LEAST_BATCH, MOST_BATCH = 8, 16  # after that as many as there are compilers, as smaller ones would leave some idle
MOST_LOST = 1 / 3  # of the candidates, to failures that say nothing about them: the result then stands for too few
LOOK_SECONDS = 0.2  # between two looks at whether another search has ended


@dataclass(frozen=True, kw_only=True)
class SearchResult:
    """planned: candidates, had neither time nor regret ended the search. fault: a sentence where the machine failed so many that the result
    is not to be relied on; empty where it did not."""

    ranking: Ranking
    run_id: int
    outcomes: tuple[Outcome, ...]
    finalists: tuple[Finalist, ...]
    measured: bool
    seconds: float
    regret: Regret
    planned: int
    notes: tuple[str, ...] = ()
    fault: str = ""

    @property
    def found(self) -> bool:
        """Whether there is an answer: a winner, or without the GPU a schedule that compiles."""
        return self.winner is not None if self.measured else any(o.measurement.status == "compiled" for o in self.outcomes)

    @property
    def winner(self) -> Outcome | None:
        """The schedule that the finals crowned; None where nothing was measured."""
        crowned = {finalist.trial_id for finalist in self.finalists if finalist.winner}
        return next((outcome for outcome in self.outcomes if outcome.trial_id in crowned), None)


def search(
    request: Request,
    ranking: Ranking,
    store: Store,
    environment: Environment,
    bench: Workbench,
    *,
    report: Callable[[Progress], None] = lambda progress: None,
    say: Callable[[str], None] = lambda sentence: None,
) -> SearchResult:
    """Find the fastest of the ranked schedules. Where the bench has no process to measure with, candidates are compiled only.

    Whatever ends it before its end, KeyboardInterrupt and MachineFault among it, marks the run as interrupted and goes on up.
    """
    propose, process = load_strategy(request.strategy), bench.process
    measured = process is not None
    cache = KernelCache(bench.cache_dir)
    run_id = store.begin_run(environment, request.text)
    status: RunStatus = "interrupted"
    try:
        if not request.anew:
            _wait_for_earlier(store, run_id, say)
        started = time.monotonic()
        deadline = None if request.budget_seconds is None else started + request.budget_seconds - (FINALS_SECONDS + 1 if measured else 0)
        candidates = Candidates(table=ranking.table, seconds=ranking.estimates.seconds, nearby=nearby_rows(store, ranking))
        watch = RegretWatch(candidates, request.regret if measured else 0.0, lambda: process.library_seconds if process else None)
        protocol = protocol_for(request.problem, request.hardware.l2_bytes) if measured else "compile"
        run = Run(request, ranking, store, environment, run_id, protocol, deadline, report, say, watch)
        proposals = propose(candidates, _batches(request, bench.workers, measured=measured))
        with closing(proposals):
            Flow(run, bench, proposals, cache).drive()
        finalists: tuple[Finalist, ...] = ()
        notes = _budget_note(run)
        if process is not None:
            finalists, lost = hold_finals(run.outcomes, process, store, run_id, run.record)
            notes += (*lost, *process.notes)
        fault = _fault(run)
        status = "interrupted" if fault else "finished"
    finally:
        cache.clear()
        store.finish_run(run_id, status)
    return SearchResult(
        ranking=ranking,
        run_id=run_id,
        outcomes=tuple(sorted(run.outcomes.values(), key=_place)),
        finalists=finalists,
        measured=measured,
        seconds=time.monotonic() - started,
        regret=watch.estimate(),
        planned=run.planned,
        notes=notes,
        fault=fault,
    )


def _batches(request: Request, workers: int, *, measured: bool) -> StrategySettings:
    """Small where results change what comes next; else all at once, so that no compiler waits."""
    if measured and (stops_early(request.strategy) or request.regret > 0):
        batch = min(max(workers, LEAST_BATCH), MOST_BATCH)
        return StrategySettings(seed=request.seed, first=FIRST_BATCH, batch=batch, limit=request.trials)
    return StrategySettings(seed=request.seed, batch=max(request.trials, 1), limit=request.trials)


def _place(outcome: Outcome) -> tuple[float, int]:
    return (outcome.measurement.median_us if outcome.measurement.median_us is not None else float("inf"), outcome.rank)


def _wait_for_earlier(store: Store, run_id: int, say: Callable[[str], None]) -> None:
    """Of two searches of one product at once, the later one waits: what the earlier one measures it would measure a second time."""
    earlier = store.earlier_running(run_id)
    if earlier is None:
        return
    say(f"another search of this product is under way (process {earlier.pid}): waiting for it; its results answer this one")
    while store.earlier_running(run_id) is not None:
        time.sleep(LOOK_SECONDS)


def _budget_note(run: Run) -> tuple[str, ...]:
    """That time ran out before all candidates had their turn."""
    tried, budget = len(run.outcomes), run.request.budget_seconds
    if budget is None or not run.out_of_time or tried >= run.planned:
        return ()
    if not tried:
        return (f"the budget of {budget:g} s was over before any candidate was done, as starting up takes some seconds; give a longer one",)
    return (f"the budget of {budget:g} s was over with {tried} of {run.planned} candidates done",)


def _fault(run: Run) -> str:
    """The sentence that ends a run which lost too much to the moment."""
    lost = run.lost
    if len(lost) <= MOST_LOST * len(run.outcomes):
        return ""
    return (
        f"{len(lost)} of {len(run.outcomes)} candidates failed for reasons that are not their own ({failures_text(failures(lost))}): the"
        " result stands for the others only; mend that, and the same command goes on from there"
    )
