"""The search itself: rank, compile, measure, record, and prove the winner against the library. The strategy proposes; this owns the budget.

Compiling and measuring overlap: workers compile the next schedules while the measuring process times the last one. Each result is stored
before the next one is asked for, so that whatever kills the search costs at most the measurement in flight.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Mapping
from dataclasses import dataclass, field, replace
from functools import partial

from db.records import Environment, Estimated, Finalist, Measurement, Record, RunStatus
from db.store import Store
from search_spaces.schedule import Schedule
from tuner.compiling import Compiled
from tuner.finals import FINALS_SECONDS, hold_finals
from tuner.kernels import kernel_hash, kernel_hashes
from tuner.measuring import MeasureSettings
from tuner.ranking import Ranking, tiles
from tuner.request import Request
from tuner.stopping import Regret, RegretWatch
from tuner.strategies import Candidates, StrategySettings, Trial, load_strategy, stops_early
from tuner.warm_start import nearby_rows
from tuner.workbench import Workbench, compile_job

FIRST_BATCH = 32  # schedules; compiled while the measuring process gets ready
ASK_AGAIN = 8  # candidates under way, or fewer: then the next batch is asked for
LOOK_EVERY = 8  # measured schedules between two looks at what is promised by the rest
MUCH_SLOWER = 1.1  # a schedule that compiled to what is expected to be slower by this factor is measured after the others
LEAST_BATCH, MOST_BATCH = 8, 16  # after that as many as there are compilers, as smaller ones would leave some idle
HEAVY_SPILL_SLOTS = 64  # a schedule that spills more is measured after those that do not (a 48-slot spill has been a true winner elsewhere)


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """What became of one schedule."""

    rank: int
    schedule: Schedule
    measurement: Measurement
    trial_id: int
    from_store: bool = False


@dataclass(frozen=True, kw_only=True)
class Progress:
    """For whoever shows it: counts, the best so far, the regret estimated last, and the seconds left of the budget."""

    compiled: int
    measured: int
    failed: int
    total: int
    best: Outcome | None
    regret: float | None
    seconds_left: float | None


@dataclass(frozen=True, kw_only=True)
class SearchResult:
    ranking: Ranking
    run_id: int
    outcomes: tuple[Outcome, ...]
    finalists: tuple[Finalist, ...]
    measured: bool
    seconds: float
    regret: Regret
    notes: tuple[str, ...] = ()

    @property
    def found(self) -> bool:
        """Whether there is an answer: a winner, or without the GPU a schedule that compiles."""
        return self.winner is not None if self.measured else any(o.measurement.status == "compiled" for o in self.outcomes)

    @property
    def winner(self) -> Outcome | None:
        """The schedule that the finals crowned; None where nothing was measured."""
        crowned = {finalist.trial_id for finalist in self.finalists if finalist.winner}
        return next((outcome for outcome in self.outcomes if outcome.trial_id in crowned), None)


@dataclass
class _Run:
    """The state of one search under way."""

    request: Request
    ranking: Ranking
    store: Store
    environment: Environment
    run_id: int
    protocol: str
    deadline: float | None
    report: Callable[[Progress], None]
    watch: RegretWatch
    outcomes: dict[int, Outcome] = field(default_factory=dict)
    launches: dict[tuple[str, int], int] = field(default_factory=dict)  # what is launched -> the first row that launches it
    seen: set[int] = field(default_factory=set)  # rows that the watch was told of
    compiled: int = 0

    @property
    def best(self) -> Outcome | None:
        timed = [o for o in self.outcomes.values() if o.measurement.status == "ok"]
        return min(timed, key=lambda o: o.measurement.median_us or float("inf"), default=None)

    @property
    def best_us(self) -> float | None:
        return self.best.measurement.median_us if self.best else None

    @property
    def is_over(self) -> bool:
        """Out of time, or what is left promises too little."""
        return self.watch.regret.stopped or (self.deadline is not None and time.monotonic() >= self.deadline)

    def look(self, *, least: int) -> None:
        """Tell the watch what became of rows since the last look, if they are so many."""
        news = [row for row in self.outcomes if row not in self.seen]
        if len(news) >= least:
            self.watch.tell([_trial(row, self.outcomes[row]) for row in news])
            self.seen.update(news)

    def show(self) -> None:
        failed = sum(
            o.measurement.median_us is None and o.measurement.status not in ("compiled", "duplicate") for o in self.outcomes.values()
        )
        measured = sum(o.measurement.median_us is not None for o in self.outcomes.values())
        left = None if self.deadline is None else max(self.deadline - time.monotonic(), 0.0)
        total = min(self.request.trials, len(self.ranking.table))
        counts = {"compiled": self.compiled, "measured": measured, "failed": failed, "total": total}
        self.report(Progress(**counts, best=self.best, regret=self.watch.regret.estimated, seconds_left=left))


def search(
    request: Request,
    ranking: Ranking,
    store: Store,
    environment: Environment,
    bench: Workbench,
    *,
    report: Callable[[Progress], None] = lambda progress: None,
) -> SearchResult:
    """Find the fastest of the ranked schedules. Where the bench has no process to measure with, candidates are compiled only.

    KeyboardInterrupt marks the run as interrupted and goes on up.
    """
    started, measured = time.monotonic(), bench.process is not None
    propose = load_strategy(request.strategy)
    run_id = store.begin_run(environment, request.text)
    deadline = None if request.budget_seconds is None else started + request.budget_seconds - (FINALS_SECONDS + 1 if measured else 0)
    protocol = MeasureSettings().protocol if measured else "compile"
    candidates = Candidates(table=ranking.table, seconds=ranking.estimates.seconds, nearby=nearby_rows(store, ranking))
    watch = RegretWatch(
        candidates, request.regret if measured else 0.0, lambda: bench.process.library_seconds if bench.process is not None else None
    )
    run = _Run(request, ranking, store, environment, run_id, protocol, deadline, report, watch)
    proposals = propose(candidates, _batches(request, bench.workers, measured=measured))
    status: RunStatus = "interrupted"
    finalists: tuple[Finalist, ...] = ()
    notes: tuple[str, ...] = ()
    try:
        known = {} if request.anew else store.known(request.problem, environment, kernel_hashes(), protocol)
        _Flow(run, bench, proposals, known).drive()
        if bench.process is not None:
            finalists, lost = hold_finals(run.outcomes, bench.process, store, run_id, partial(_record, run))
            notes = (*lost, *bench.process.notes)
        status = "finished"
    finally:
        proposals.close()
        store.finish_run(run_id, status)
    outcomes = tuple(sorted(run.outcomes.values(), key=_place))
    return SearchResult(
        ranking=ranking,
        run_id=run_id,
        outcomes=outcomes,
        finalists=finalists,
        measured=measured,
        seconds=time.monotonic() - started,
        regret=watch.estimate(),
        notes=notes,
    )


def _batches(request: Request, workers: int, *, measured: bool) -> StrategySettings:
    """Small where results change what comes next; else all at once, so that no compiler waits."""
    if measured and (stops_early(request.strategy) or request.regret > 0):
        batch = min(max(workers, LEAST_BATCH), MOST_BATCH)
        return StrategySettings(seed=request.seed, first=FIRST_BATCH, batch=batch, limit=request.trials)
    return StrategySettings(seed=request.seed, batch=max(request.trials, 1), limit=request.trials)


def _place(outcome: Outcome) -> tuple[float, int]:
    return (outcome.measurement.median_us if outcome.measurement.median_us is not None else float("inf"), outcome.rank)


def _trial(row: int, outcome: Outcome) -> Trial:
    median = outcome.measurement.median_us
    return Trial(row=row, status=outcome.measurement.status, seconds=None if median is None else median * 1e-6)


def _answer_from_store(run: _Run, row: int, known: Mapping[Schedule, tuple[int, Measurement]]) -> bool:
    schedule = run.ranking.table.schedule(row)
    if schedule not in known:
        return False
    trial_id, measurement = known[schedule]
    run.outcomes[row] = Outcome(rank=row, schedule=schedule, measurement=measurement, trial_id=trial_id, from_store=True)
    if measurement.binary_hash and measurement.status == "ok":
        run.launches.setdefault(_launch(measurement.binary_hash, schedule), row)
    run.show()
    return True


@dataclass
class _Flow:
    """Candidates on their way: proposed, compiling, compiled and waiting for their turn, measured.

    The next batch is asked for while the last of the one before still waits, so that compilers and GPU do not wait for each other. What
    waits goes in the strategy's order, and once some were measured, in that of the times expected of them since. What they compiled to
    counts: estimates are corrected by real registers and shared memory, and those that spill much or turned out much slower come last.
    """

    run: _Run
    bench: Workbench
    proposals: Generator[list[int], list[Trial], None]
    known: Mapping[Schedule, tuple[int, Measurement]]
    places: dict[int, int] = field(default_factory=dict)  # of all rows proposed, in the strategy's order
    compiling: dict[Schedule, int] = field(default_factory=dict)
    compiled: dict[int, Compiled] = field(default_factory=dict)
    slower: dict[int, float] = field(default_factory=dict)  # by what factor, of what was expected before compiling
    late: set[int] = field(default_factory=set)
    told: set[int] | None = None  # rows that the strategy was told of; None before it was asked at all
    exhausted: bool = False

    def drive(self) -> None:
        """Until the strategy has no more, the rest promises little, or trials or time are used up."""
        while not self.run.is_over and (self._ask() or self.compiling or self.compiled):
            for job, compiled in self.bench.pool.poll(0.0 if self._in_turn else 0.2):
                self._take(self.compiling.pop(job.schedule), compiled)
            self._measure_next()
            self.run.show()
        self.run.look(least=1)
        self.bench.pool.cancel()

    @property
    def _in_turn(self) -> list[int]:
        """Compiled, and not put off to the end."""
        return [row for row in self.compiled if row not in self.late]

    def _ask(self) -> bool:
        """Ask for more where little is under way; whether something came."""
        on_its_way = len(self.compiling) + len(self._in_turn)
        if self.exhausted or on_its_way > ASK_AGAIN or len(self.places) >= self.run.request.trials:
            return False
        try:
            if self.told is None:
                rows, self.told = next(self.proposals), set()
            else:
                news = [row for row in self.run.outcomes if row not in self.told]
                self.told.update(news)
                rows = self.proposals.send([_trial(row, self.run.outcomes[row]) for row in news])
        except StopIteration:
            self.exhausted = True
            return False
        rows = rows[: self.run.request.trials - len(self.places)]
        self.places |= {row: len(self.places) + place for place, row in enumerate(rows)}
        fresh = [row for row in rows if not _answer_from_store(self.run, row, self.known)]
        self.run.look(least=LOOK_EVERY)
        self.compiling |= {self.run.ranking.table.schedule(row): row for row in fresh}
        request = self.run.request
        self.bench.pool.submit([compile_job(self.run.ranking.table.schedule(row), request.problem, request.hardware) for row in fresh])
        return True

    def _take(self, row: int, compiled: Compiled) -> None:
        """Record what needs no measuring, and let the rest wait."""
        run, schedule = self.run, self.run.ranking.table.schedule(row)
        run.compiled += 1
        if compiled.status != "ok" or self.bench.process is None:
            _record(run, row, _compile_measurement(compiled))
            return
        first = run.launches.setdefault(_launch(compiled.binary_hash, schedule), row)
        if first != row:
            twin = run.ranking.table.schedule(first)
            _record(run, row, replace(_compile_measurement(compiled), status="duplicate", message=f"the same launch as '{twin}'"))
            return
        main = compiled.main
        found = {"registers_per_thread": main.registers, "shared_memory_bytes": main.shared_memory_bytes}
        self.compiled[row] = compiled
        self.slower[row] = run.ranking.seconds_as_compiled(row, **found) / float(run.ranking.estimates.seconds[row])
        if self.slower[row] > MUCH_SLOWER or main.spill_slots > HEAVY_SPILL_SLOTS:
            self.late.add(row)

    def _measure_next(self) -> None:
        rows = self._in_turn or ([] if self.compiling else list(self.compiled))
        if not rows or self.bench.process is None:
            return
        expected = self.run.watch.expected_seconds(rows)
        order = self.places if expected is None else {row: time * self.slower[row] for row, time in zip(rows, expected, strict=True)}
        row = min(rows, key=lambda row: order[row])
        measured = self.bench.process.measure(self.run.ranking.table.schedule(row), self.run.best_us)
        _record(self.run, row, _with_binary(measured, self.compiled.pop(row)))
        self.run.look(least=LOOK_EVERY)


def _launch(binary_hash: str, schedule: Schedule) -> tuple[str, int]:
    """What tells two launches apart: the binaries and, for a persistent grid, its size, which is no part of them."""
    return binary_hash, schedule.persistent_ctas_per_sm


def _compile_measurement(compiled: Compiled) -> Measurement:
    if compiled.status != "ok":
        return Measurement(status=compiled.status, message=compiled.message, compile_seconds=compiled.seconds)
    return _with_binary(Measurement(status="compiled"), compiled)


def _with_binary(measurement: Measurement, compiled: Compiled) -> Measurement:
    return replace(
        measurement,
        registers=compiled.main.registers,
        spill_slots=compiled.main.spill_slots,
        shared_memory_bytes=compiled.main.shared_memory_bytes,
        mma_instruction=compiled.main.mma_instruction,
        binary_hash=compiled.binary_hash,
        compile_seconds=compiled.seconds,
    )


def _record(run: _Run, row: int, measurement: Measurement) -> None:
    """Store what became of a row, at once."""
    schedule = run.ranking.table.schedule(row)
    estimate, below = run.ranking.estimate(row), tiles(run.ranking.lowering, row, schedule)
    record = Record(
        problem=run.request.problem,
        gpu=run.request.hardware.name,
        schedule=schedule,
        warp_tile=below.warp,
        mma_tile=below.mma,
        estimate=Estimated(
            seconds=estimate.seconds,
            limiter=estimate.limiter,
            registers=below.registers,
            shared_memory_bytes=below.shared_memory_bytes,
            waves=estimate.facts.get("waves"),
            terms=estimate.terms,
        ),
        environment=run.environment,
        measurement=measurement,
        kernel_hash=kernel_hash(schedule.family),
        protocol=run.protocol,
        strategy=run.request.strategy,
        model=run.request.model,
    )
    trial_id = run.store.add(run.run_id, record)
    run.outcomes[row] = Outcome(rank=row, schedule=schedule, measurement=measurement, trial_id=trial_id)
