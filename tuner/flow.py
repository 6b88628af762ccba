"""Candidates on their way through a search: proposed, compiling, compiled and waiting for their turn, measured; and those that the machine
failed, which get a second try once all others are done."""

from __future__ import annotations

from collections.abc import Generator, Mapping
from dataclasses import dataclass, field, replace

from db.records import Measurement, is_moments
from search_spaces.errors import MachineFault
from search_spaces.schedule import Schedule
from tuner.compiling import Compiled
from tuner.kernel_cache import KernelCache
from tuner.outcomes import Run, launch_of, trial_of
from tuner.strategies import Trial
from tuner.workbench import Workbench, compile_job

ASK_AGAIN = 8  # candidates under way, or fewer: then the next batch is asked for
LOOK_EVERY = 8  # measured schedules between two looks at what is promised by the rest
MUCH_SLOWER = 1.1  # a schedule that compiled to what is expected to be slower by this factor is measured after the others
HEAVY_SPILL_SLOTS = 64  # a schedule that spills more is measured after those that do not (a 48-slot spill has been a true winner elsewhere)
LOST_IN_A_ROW = 8  # candidates that could not be compiled for want of what the machine lacks: the next would fare no better
LEADERS_KEPT = 32  # binaries of the fastest so far: more than the finals take
LOG_CHARACTERS = 20_000  # of what a compiler said, that are stored


@dataclass
class Flow:
    """The next batch is asked for while the last of the one before still waits, so that compilers and GPU do not wait for each other. What
    waits goes in the strategy's order, and once some were measured, in that of the times expected of them since. What they compiled to
    counts: estimates are corrected by real registers and shared memory, and those that spill much or turned out much slower come last.
    """

    run: Run
    bench: Workbench
    proposals: Generator[list[int], list[Trial], None]
    cache: KernelCache
    known: Mapping[Schedule, tuple[int, Measurement]] = field(default_factory=dict)
    places: dict[int, int] = field(default_factory=dict)  # of all rows proposed, in the strategy's order
    compiling: dict[Schedule, int] = field(default_factory=dict)
    compiled: dict[int, Compiled] = field(default_factory=dict)
    slower: dict[int, float] = field(default_factory=dict)  # by what factor, of what was expected before compiling
    late: set[int] = field(default_factory=set)
    failed: dict[int, tuple[Measurement, Compiled]] = field(default_factory=dict)  # by the moment, once
    told: set[int] | None = None  # rows that the strategy was told of; None before it was asked at all
    exhausted: bool = False
    placed: bool = False  # whether it is known how much of the GPU there is to measure on
    retrying: bool = False
    lost_in_a_row: int = 0

    def drive(self) -> None:
        """Until the strategy has no more, the rest promises little, or trials or time are used up."""
        self.known = self.run.known()
        if self.known:
            self._place()
        while not self.run.is_over and (self._ask() or self.compiling or self.compiled):
            self._turn()
        if self.failed and not self.run.out_of_time:
            self._retry()
        while self.retrying and not self.run.out_of_time and (self.compiling or self.compiled):
            self._turn()
        for row, (measurement, _) in self.failed.items():
            self.run.record(row, measurement)
        self.run.look(least=1)
        self.bench.pool.cancel()

    def _place(self) -> None:
        """Ask the measuring process how much of the GPU it may use: results of another share of it are not those of this one."""
        if self.placed or self.bench.process is None:
            return
        self.placed = True
        self.bench.process.wait_until_ready()
        if self.run.measured_with(self.bench.process.sms):
            self.known = self.run.known()
            self.compiled = {row: compiled for row, compiled in self.compiled.items() if not self.run.answer_from(self.known, row)}

    def _turn(self) -> None:
        for job, compiled in self.bench.pool.poll(0.0 if self._in_turn else 0.2):
            self._take(self.compiling.pop(job.schedule), compiled)
        self._measure_next()
        self.run.show()

    def _retry(self) -> None:
        """Give those that the machine failed their second try, and nothing else."""
        self.retrying = True
        self.bench.pool.cancel()
        self.compiling = {}
        self.compiled = {row: compiled for row, (_, compiled) in self.failed.items() if compiled.status == "ok"}
        self._compile([row for row in self.failed if row not in self.compiled])

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
                rows = self.proposals.send([trial_of(row, self.run.outcomes[row]) for row in news])
        except StopIteration:
            self.exhausted = True
            return False
        rows = rows[: self.run.request.trials - len(self.places)]
        self.places |= {row: len(self.places) + place for place, row in enumerate(rows)}
        fresh = [row for row in rows if not self.run.answer_from(self.known, row)]
        self.run.look(least=LOOK_EVERY)
        self._compile(fresh)
        return True

    def _compile(self, rows: list[int]) -> None:
        schedules, request = [self.run.ranking.table.schedule(row) for row in rows], self.run.request
        self.compiling |= dict(zip(schedules, rows, strict=True))
        self.bench.pool.submit([compile_job(schedule, request.problem, request.hardware) for schedule in schedules])

    def _take(self, row: int, compiled: Compiled) -> None:
        """Record what needs no measuring, and let the rest wait."""
        run, schedule = self.run, self.run.ranking.table.schedule(row)
        run.compiled += 1
        self.cache.hold(row, compiled.cache_folders)
        self._count_lost(compiled)
        if compiled.status != "ok" or self.bench.process is None:
            self._ends(row, _compile_measurement(compiled), compiled)
            return
        first = run.launches.setdefault(launch_of(compiled.binary_hash, schedule), row)
        if first != row:
            twin = run.ranking.table.schedule(first)
            duplicate = replace(_compile_measurement(compiled), status="duplicate", message=f"the same launch as '{twin}'")
            self._ends(row, duplicate, compiled)
            return
        main = compiled.main
        found = {"registers_per_thread": main.registers, "shared_memory_bytes": main.shared_memory_bytes}
        self.compiled[row] = compiled
        self.slower[row] = run.ranking.seconds_as_compiled(row, **found) / float(run.ranking.estimates.seconds[row])
        if self.slower[row] > MUCH_SLOWER or main.spill_slots > HEAVY_SPILL_SLOTS:
            self.late.add(row)

    def _count_lost(self, compiled: Compiled) -> None:
        """End the search where the compilers get nothing done."""
        self.lost_in_a_row = self.lost_in_a_row + 1 if compiled.status == "machine_fault" else 0
        if self.lost_in_a_row >= LOST_IN_A_ROW:
            raise MachineFault(
                f"the last {self.lost_in_a_row} candidates could not be compiled ({compiled.message}): mend that, and the same command goes"
                " on from what is stored"
            )

    def _measure_next(self) -> None:
        if self._in_turn:
            self._place()
        rows = self._in_turn or ([] if self.compiling else list(self.compiled))
        if not rows or self.bench.process is None:
            return
        expected = self.run.watch.expected_seconds(rows)
        order = self.places if expected is None else {row: time * self.slower[row] for row, time in zip(rows, expected, strict=True)}
        row = min(rows, key=lambda row: order[row])
        measured = self.bench.process.measure(self.run.ranking.table.schedule(row), self.run.best_us)
        compiled = self.compiled.pop(row)
        self._ends(row, _with_binary(measured, compiled), compiled)
        self.run.look(least=LOOK_EVERY)

    def _ends(self, row: int, measurement: Measurement, compiled: Compiled) -> None:
        """Record what became of a row; but of one that the machine failed for the first time, only that it is to be tried again."""
        tried_twice = self.retrying or (compiled.status != "ok" and compiled.alone)
        if is_moments(measurement.status) and not tried_twice:
            self.failed[row] = (measurement, compiled)
        else:
            self.failed.pop(row, None)
            self.run.record(row, measurement)
        leaders = sorted((o.measurement.median_us or 0.0, r) for r, o in self.run.outcomes.items() if o.measurement.status == "ok")
        self.cache.keep({*self.compiled, *self.failed, *(r for _, r in leaders[:LEADERS_KEPT])})


def _compile_measurement(compiled: Compiled) -> Measurement:
    if compiled.status != "ok":
        log = compiled.log[-LOG_CHARACTERS:] or None
        return Measurement(status=compiled.status, message=compiled.message, compile_seconds=compiled.seconds, compile_log=log)
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
