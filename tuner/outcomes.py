"""What became of the schedules of one search, while it is under way: each a row of the store at once."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

from db.records import TIMED, Environment, Estimated, Measurement, Record, is_moments
from db.store import Store
from search_spaces.schedule import Schedule
from tuner.failures import NO_FAILURE
from tuner.kernels import kernel_hash, kernel_hashes
from tuner.ranking import Ranking, tiles
from tuner.request import Request
from tuner.stopping import RegretWatch
from tuner.strategies import Trial


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


@dataclass
class Run:
    """The state of one search under way."""

    request: Request
    ranking: Ranking
    store: Store
    environment: Environment
    run_id: int
    protocol: str
    deadline: float | None
    report: Callable[[Progress], None]
    say: Callable[[str], None]
    watch: RegretWatch
    outcomes: dict[int, Outcome] = field(default_factory=dict)
    launches: dict[tuple[str, int], int] = field(default_factory=dict)  # what is launched -> the first row that launches it
    seen: set[int] = field(default_factory=set)  # rows that the watch was told of
    compiled: int = 0

    @property
    def planned(self) -> int:
        """Candidates, if neither time nor regret ends the search before."""
        return min(self.request.trials, len(self.ranking.table))

    @property
    def best(self) -> Outcome | None:
        timed = [o for o in self.outcomes.values() if o.measurement.status == "ok"]
        return min(timed, key=lambda o: o.measurement.median_us or float("inf"), default=None)

    @property
    def best_us(self) -> float | None:
        return self.best.measurement.median_us if self.best else None

    @property
    def out_of_time(self) -> bool:
        return self.deadline is not None and time.monotonic() >= self.deadline

    @property
    def is_over(self) -> bool:
        """Out of time, or what is left promises too little."""
        return self.watch.regret.stopped or self.out_of_time

    @property
    def lost(self) -> list[Measurement]:
        """Attempts that failed for reasons of the moment."""
        return [o.measurement for o in self.outcomes.values() if is_moments(o.measurement.status)]

    def look(self, *, least: int) -> None:
        """Tell the watch what became of rows since the last look, if they are so many."""
        news = [row for row in self.outcomes if row not in self.seen]
        if len(news) >= least:
            self.watch.tell([trial_of(row, self.outcomes[row]) for row in news])
            self.seen.update(news)

    def show(self) -> None:
        statuses = [outcome.measurement.status for outcome in self.outcomes.values()]
        counts = {"measured": sum(s in TIMED for s in statuses), "failed": sum(s not in NO_FAILURE for s in statuses)}
        left = None if self.deadline is None else max(self.deadline - time.monotonic(), 0.0)
        counts |= {"compiled": self.compiled, "total": self.planned}
        self.report(Progress(**counts, best=self.best, regret=self.watch.regret.estimated, seconds_left=left))

    def measured_with(self, sms: int | None) -> bool:
        """Take note of how many SMs the measuring process may use; whether they are others than those of the environment."""
        if sms is None or sms == self.environment.sms:
            return False
        self.say(f"the measuring process may use {sms} of {self.environment.sms} SMs: results are those of {sms} SMs, not of the whole GPU")
        self.environment = replace(self.environment, sms=sms)
        return True

    def known(self) -> Mapping[Schedule, tuple[int, Measurement]]:
        """What was found out before and holds here."""
        if self.request.anew:
            return {}
        return self.store.known(self.request.problem, self.environment, kernel_hashes(), self.protocol)

    def answer_from(self, known: Mapping[Schedule, tuple[int, Measurement]], row: int) -> bool:
        """Take what is known of a row; whether anything is."""
        schedule = self.ranking.table.schedule(row)
        if schedule not in known:
            return False
        trial_id, measurement = known[schedule]
        self.outcomes[row] = Outcome(rank=row, schedule=schedule, measurement=measurement, trial_id=trial_id, from_store=True)
        if measurement.binary_hash and measurement.status == "ok":
            self.launches.setdefault(launch_of(measurement.binary_hash, schedule), row)
        self.show()
        return True

    def record(self, row: int, measurement: Measurement) -> None:
        """Store what became of a row, at once."""
        schedule = self.ranking.table.schedule(row)
        estimate, below = self.ranking.estimate(row), tiles(self.ranking.lowering, row, schedule)
        record = Record(
            problem=self.request.problem,
            gpu=self.request.hardware.name,
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
            environment=self.environment,
            measurement=measurement,
            kernel_hash=kernel_hash(schedule.family),
            protocol=self.protocol,
            strategy=self.request.strategy,
            model=self.request.model,
        )
        trial_id = self.store.add(self.run_id, record)
        self.outcomes[row] = Outcome(rank=row, schedule=schedule, measurement=measurement, trial_id=trial_id)


def trial_of(row: int, outcome: Outcome) -> Trial:
    """What strategies are told of an outcome."""
    median = outcome.measurement.median_us
    return Trial(row=row, status=outcome.measurement.status, seconds=None if median is None else median * 1e-6)


def launch_of(binary_hash: str, schedule: Schedule) -> tuple[str, int]:
    """What tells two launches apart: the binaries and, for a persistent grid, its size, which is no part of them."""
    return binary_hash, schedule.persistent_ctas_per_sm
