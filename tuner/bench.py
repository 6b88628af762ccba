"""A suite against the library: one search a product, which ends in paired finals, and what came of each. What is already known of the same
search, in the same environment and of the same kernels, is taken from the database. Tables and files are `bench_report`'s."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

from cost_models.roofline import Roofline, roofline
from db.records import Environment, Finalist, RunInfo
from db.store import Store
from search_spaces.errors import MachineFault, UserError
from search_spaces.hardware import Hardware
from search_spaces.problem import Problem
from search_spaces.schedule import UNORDERED, Schedule
from tuner.causes import cause_of
from tuner.kernels import kernel_hash
from tuner.memory_plan import protocol_for
from tuner.ranking import rank
from tuner.request import Request
from tuner.scope import scope_of
from tuner.search import Progress, SearchResult, search
from tuner.searching import SearchWish, make_request
from tuner.suite_files import SuiteRow
from tuner.workbench import Workshop

REASON_CHARACTERS = 300


@dataclass(frozen=True, kw_only=True)
class Stand:
    """How the winner of one product stands against the library.

    tied: finalists too close to call, the winner among them. measured: schedules timed in that search, those known before left out.
    seconds: of the search from its first candidate to the end of its finals.
    """

    schedule: Schedule
    finalist: Finalist
    tied: int
    measured: int
    seconds: float
    roof: Roofline
    known: bool

    @property
    def roofline_share(self) -> float:
        """Of the time that published peak and bandwidth allow, every element moved once; 1 is the roof."""
        return self.roof.lower_bound_seconds * 1e6 / self.finalist.median_us


@dataclass(frozen=True, kw_only=True)
class BenchRow:
    """One product of the suite and what came of it: its stand, or the reason why it has none."""

    row: SuiteRow
    stand: Stand | None = None
    reason: str = ""

    @property
    def status(self) -> str:
        if self.stand:
            return "known" if self.stand.known else "measured"
        return "failed" if self.row.problem else "skipped"


@dataclass(kw_only=True)
class Benchmark:
    """A suite under way. wish: what to search for, of a problem.

    faults: of products that the machine failed. written: is given the rows that there are so far, in the suite's order, once with all that
    needs no measuring, then after each product.
    """

    rows: Sequence[SuiteRow]
    wish: Callable[[Problem], SearchWish]
    hardware: Hardware
    environment: Environment
    store: Store
    workshop: Workshop
    say: Callable[[str], None]
    report: Callable[[Progress], None] = lambda progress: None
    written: Callable[[Sequence[BenchRow]], None] = lambda rows: None
    faults: list[str] = field(default_factory=list)
    _found: dict[Problem, Stand | str] = field(default_factory=dict)

    def run(self) -> tuple[BenchRow, ...]:
        problems = list(dict.fromkeys(row.problem for row in self.rows if row.problem))
        self._found = {problem: stand for problem in problems if (stand := self._known(problem))}
        self.written(self._so_far())
        missing = [problem for problem in problems if problem not in self._found]
        for place, problem in enumerate(missing, start=1):
            found = self._searched(problem, first=place == 1, more=place < len(missing))
            self._found[problem] = found
            self.say(f"[{place}/{len(missing)}] {problem.text}: {_said(found)}")
            self.written(self._so_far())
        return self._so_far()

    def _so_far(self) -> tuple[BenchRow, ...]:
        return tuple(
            _row(row, self._found.get(row.problem) if row.problem else row.reason)
            for row in self.rows
            if row.problem is None or row.problem in self._found
        )

    def _request(self, problem: Problem) -> Request:
        return make_request(self.wish(problem), self.hardware, measures=True)

    def _known(self, problem: Problem) -> Stand | None:
        """Of the newest finished search of the same request whose finals are those of today's kernels and rules of timing."""
        request = self._request(problem)
        for run in () if request.anew else self.store.finished_runs(request.text, self.environment):
            if stand := self._stand(problem, run, known=True):
                return stand
        return None

    def _searched(self, problem: Problem, *, first: bool, more: bool) -> Stand | str:
        """The stand, or why there is none. Whatever befalls one product is its row, and not the end of the suite; but where the machine
        lets nothing go on, the next product would fare no better."""
        try:
            result = self._search(problem, first=first, more=more)
        except MachineFault:
            raise
        except Exception as error:  # the boundary that keeps products apart
            if cause_of(error) == "machine_fault":
                raise
            words = str(error) if isinstance(error, UserError) else f"{type(error).__name__}: {error}"
            return (words.splitlines() or [type(error).__name__])[0][:REASON_CHARACTERS]
        if result.fault:
            self.faults.append(f"{problem.text}: {result.fault}")
        (run,) = (run for run in self.store.runs() if run.id == result.run_id)
        return self._stand(problem, run, known=False) or _no_winner(result)

    def _search(self, problem: Problem, *, first: bool, more: bool) -> SearchResult:
        with self.workshop.measuring_bench(problem, self.hardware, self.say, more=more) as bench:
            request = self._request(problem)
            ranking = rank(problem, self.hardware, request.space, request.model, request.seed)
            if first and bench.process:
                bench.process.wait_until_ready()  # the next products' processes get ready meanwhile; a budget is to mean the same for all
            return search(request, ranking, self.store, self.environment, bench, report=self.report, say=self.say)

    def _stand(self, problem: Problem, run: RunInfo, *, known: bool) -> Stand | None:
        """What is known to be best for the request of this run, which has to have held finals with today's kernels and rules of timing."""
        finalists = self.store.finalists(run.id)
        records = [self.store.trial(finalist.trial_id) for finalist in finalists]
        protocol = protocol_for(problem, self.hardware.l2_bytes)
        if any(record.protocol != protocol or record.kernel_hash != kernel_hash(record.schedule.family) for record in records):
            return None
        winner = next((finalist for finalist in finalists if finalist.winner), None)
        if winner is None:
            return None
        winner, finalists = self._best(problem) or (winner, finalists)
        assert run.finished is not None
        return Stand(
            schedule=self.store.trial(winner.trial_id).schedule,
            finalist=winner,
            tied=sum(finalist.tied for finalist in finalists),
            measured=sum(record.measurement.median_us is not None for record in self.store.records(run_id=run.id)),
            seconds=(run.finished - run.started).total_seconds(),
            roof=roofline(problem, self.hardware),
            known=known,
        )

    def _best(self, problem: Problem) -> tuple[Finalist, tuple[Finalist, ...]] | None:
        """By the rule of `db.best`, in this environment and of the families asked for; whoever measures anew is shown what that gave."""
        request = self._request(problem)
        unordered = any(UNORDERED in axes.get("fused_reduction", ()) for axes in request.space.axes.values())
        scope = scope_of(self.hardware, families=tuple(request.space.axes), unordered=unordered)
        answer = None if request.anew else self.store.best(problem, replace(scope, here=self.environment))
        if answer is None or answer.finalist is None or answer.finals_run is None or answer.differs or answer.stale:
            return None
        return answer.finalist, self.store.finalists(answer.finals_run)


def _row(row: SuiteRow, found: Stand | str | None) -> BenchRow:
    return BenchRow(row=row, stand=found) if isinstance(found, Stand) else BenchRow(row=row, reason=found or "")


def _no_winner(result: SearchResult) -> str:
    """Why a search that came to its end has no winner."""
    if result.fault or result.notes:
        return (result.fault or result.notes[0])[:REASON_CHARACTERS]
    statuses = [outcome.measurement.status for outcome in result.outcomes]
    counts = ", ".join(f"{statuses.count(status)} {status}" for status in dict.fromkeys(statuses))
    return f"no schedule could be timed: {counts or 'none was tried within the budget'}"


def _said(found: Stand | str) -> str:
    if isinstance(found, str):
        return found
    f = found.finalist
    return f"{f.median_us:.2f} us, {f.ratio:.3f}x cuBLAS [{f.ratio_low:.3f}, {f.ratio_high:.3f}], {found.schedule}"
