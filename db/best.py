"""What is known to be best for one problem on one GPU. The rule:

1. An attempt may answer if it is of this very problem, was timed on a device that the GPU's file names, with as many SMs as the GPU has, in
   a family and with a Triton that were not ruled out, and no later attempt at the same schedule gave a wrong answer.
2. Today's kernels answer before earlier ones, and what was measured in this environment (device, driver, CUDA, torch, Triton) before what
   was measured in another.
3. In one environment the best paired ratio of any finals answers, whichever run held them. A schedule of a run that held none takes that
   one's place only where its time, at the lower of the clocks that both were timed at, is under that one's own unpaired time by more than
   `UNPAIRED_MARGIN`, since the clock moves times that were not taken in turn. Who was timed in a run with finals had its chance there.
4. Where no finals were held, the least time answers.
5. Of several other environments the best ratio answers, and it is said what differs.
6. Where nothing was timed, the least prediction of one named model answers, as what it is.

Measuring more can only better an answer within one environment; measuring less, or a family alone, changes nothing.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from typing import TYPE_CHECKING, Any

from db.damage import Row
from db.records import BestAnswer, Environment, Finalist, Record
from db.rows import (
    ENVIRONMENT_COLUMNS,
    FINALIST_COLUMNS,
    PROBLEM_COLUMNS,
    SCHEDULE_COLUMNS,
    problem_row,
    read_environment,
    read_finalist,
    read_problem,
)
from search_spaces.errors import UserError
from search_spaces.problem import Problem
from search_spaces.schedule import UNORDERED, Schedule

if TYPE_CHECKING:
    from db.reading import Reader

UNPAIRED_MARGIN = 0.03  # the clock moves times that were not taken in turn by so much and more
PLACE = ("device_name", "sms", "device_memory_bytes", "compute_capability", "triton", "driver", "cuda", "torch")
WORDS = {"device_name": "GPU", "sms": "SMs", "device_memory_bytes": "device memory", "compute_capability": "compute capability"}
MIG_DEVICE = re.compile(r"(?P<card>.+) MIG (?:\d+c\.)?\d+g\.\d+gb\S*")


@dataclass(frozen=True, kw_only=True)
class Scope:
    """Which attempts may answer.

    gpu: the hardware's name. sms: of the GPU asked for, None where no source gives it. device_names: what the driver calls it; empty where
    nothing says so, and then every device counts. here: this machine's environment, None where that GPU is not here; answers from it come
    first. kernel_hashes: family -> hash as it is now; answers of other kernels come last, as stale. families, triton: only these.
    any_environment: no environment comes first, and every device counts. unordered: schedules whose bits may differ from run to run may
    answer, too. model: whose predictions answer where nothing is timed; the first of these that has some.
    """

    gpu: str
    sms: int | None = None
    device_names: tuple[str, ...] = ()
    here: Environment | None = None
    kernel_hashes: Mapping[str, str] = field(default_factory=dict)
    families: tuple[str, ...] = ()
    triton: str | None = None
    any_environment: bool = False
    unordered: bool = False
    models: tuple[str, ...] = ("hierarchy",)

    def takes(self, place: Environment) -> bool:
        """Whether what was timed in this environment may answer."""
        if self.triton is not None and place.triton != self.triton:
            return False
        if self.any_environment:
            return place.device_name is not None
        return (self.sms is None or place.sms == self.sms) and self._names(place.device_name)

    def _names(self, device: str | None) -> bool:
        if device is None:
            return False
        mig = MIG_DEVICE.fullmatch(device)
        return not self.device_names or (mig["card"] if mig else device) in self.device_names

    def is_here(self, place: Environment) -> bool:
        return self.here is not None and not self.any_environment and not differences(place, self.here)

    def is_fresh(self, row: Row) -> bool:
        return not self.kernel_hashes or self.kernel_hashes.get(row["family"]) == row["kernel_hash"]


def differences(place: Environment, here: Environment) -> tuple[str, ...]:
    """In what an environment differs from this one, in words; empty where times taken in both can be compared."""
    names = [name for name in PLACE if getattr(place, name) != getattr(here, name)]
    return tuple(f"{WORDS.get(name, name)} {getattr(place, name)}, here {getattr(here, name)}" for name in names)


@dataclass(frozen=True)
class _Timed:
    """One attempt that was timed, with its place in each of the finals that it was in."""

    row: Row
    us: float
    finals: tuple[tuple[int, Finalist], ...]  # (run, place)


def best_known(reader: Reader, problem: Problem, scope: Scope) -> BestAnswer | None:
    """The answer of the rule above; None where nothing is known."""
    timed = _timed(reader, problem, scope)
    places = _environments(reader, {attempt.row["environment_id"] for attempt in timed})
    timed = [attempt for attempt in timed if attempt.row["environment_id"] in places and scope.takes(places[attempt.row["environment_id"]])]
    for stale, attempts in _by(timed, lambda attempt: not scope.is_fresh(attempt.row)):
        for elsewhere, there in _by(attempts, lambda attempt: not scope.is_here(places[attempt.row["environment_id"]])):
            if answer := _best_of(reader, scope, there, places):
                differs = differences(answer.record.environment, scope.here) if elsewhere and scope.here else ()
                return replace(answer, stale=stale, differs=differs)
    return _predicted(reader, problem, scope)


def _by(attempts: Iterable[_Timed], last: Callable[[_Timed], bool]) -> list[tuple[bool, list[_Timed]]]:
    """Those that are not to come last, then those that are."""
    parts: dict[bool, list[_Timed]] = {False: [], True: []}
    for attempt in attempts:
        parts[last(attempt)].append(attempt)
    return list(parts.items())


def _timed(reader: Reader, problem: Problem, scope: Scope) -> list[_Timed]:
    """Every attempt that was timed properly, of the families asked for; rows that hold something else than times are no attempts."""
    where, values = _narrowed(problem, scope)
    rows = reader.rows(
        "SELECT trial.id AS trial_id, trial.run_id, trial.environment_id, trial.family, trial.kernel_hash, trial.protocol, trial.median_us,"
        " trial.sm_clock_mhz"
        f" FROM trial WHERE {where} AND trial.status = 'ok' ORDER BY trial.id",
        values,
    )
    columns = ", ".join(f"finalist.{name}" for name in FINALIST_COLUMNS)
    held: dict[int, list[tuple[int, Finalist]]] = {}
    places = reader.rows(
        f"SELECT {columns}, finalist.run_id AS finals_run FROM finalist JOIN trial ON trial.id = finalist.trial_id"
        f" WHERE {where} AND trial.status = 'ok'",
        values,
        of="finalist",
    )
    for row, finalist in reader.sound(read_finalist, places):
        held.setdefault(row["trial_id"], []).append((row["finals_run"], finalist))
    return [_Timed(row, row["median_us"], tuple(held.get(row["trial_id"], ()))) for row in rows if row["median_us"] is not None]


def _narrowed(problem: Problem, scope: Scope) -> tuple[str, dict[str, Any]]:
    where = [*(f"trial.{name} = :{name}" for name in PROBLEM_COLUMNS), "trial.gpu = :gpu"]
    values = problem_row(problem) | {"gpu": scope.gpu}
    if not scope.unordered:
        where.append(f"trial.fused_reduction <> {UNORDERED}")
    if scope.families:
        named = {f"family_{i}": name for i, name in enumerate(scope.families)}
        where, values = [*where, f"trial.family IN ({', '.join(f':{name}' for name in named)})"], values | named
    return " AND ".join(where), values


def _environments(reader: Reader, ids: set[int]) -> dict[int, Environment]:
    columns = ", ".join(ENVIRONMENT_COLUMNS)
    rows = reader.rows(f"SELECT id, {columns} FROM environment", {}, of="environment") if ids else []
    return {row["id"]: read_environment(row) for row in rows if row["id"] in ids}


def _best_of(reader: Reader, scope: Scope, attempts: Sequence[_Timed], places: Mapping[int, Environment]) -> BestAnswer | None:
    """Of each environment its best; of those the best ratio, and where none has one, the least time."""
    groups: dict[tuple[Any, ...], list[_Timed]] = {}
    for attempt in attempts:
        place = places[attempt.row["environment_id"]]
        groups.setdefault((attempt.row["protocol"], *(getattr(place, name) for name in PLACE)), []).append(attempt)
    found = [answer for group in groups.values() if (answer := _best_in_place(reader, scope, group))]
    return min(found, key=_order, default=None)


def _order(answer: BestAnswer) -> tuple[bool, float, int]:
    us = answer.record.measurement.median_us or math.inf
    return (answer.finalist is None, -answer.finalist.ratio if answer.finalist else us, answer.record.trial_id or 0)


def _best_in_place(reader: Reader, scope: Scope, attempts: Sequence[_Timed]) -> BestAnswer | None:
    """By the third and fourth part of the rule."""
    paired = _first(_answer(reader, attempt, run_id, finalist) for attempt, run_id, finalist in _contestants(attempts))
    had_finals = {run_id for attempt in attempts for run_id, _ in attempt.finals} if paired else set()
    unpaired = [a for a in attempts if not a.finals and a.row["run_id"] not in had_finals and _outruns(a, paired)]
    never_paired = sorted(unpaired, key=lambda a: (a.us, a.row["trial_id"]))
    single = _first(_answer(reader, attempt) for attempt in never_paired)
    return single or (paired and replace(paired, ties=_ties(reader, paired, scope)))


def _outruns(attempt: _Timed, paired: BestAnswer | None) -> bool:
    """Whether a time that was never paired is better than the paired winner's own such time by more than the clock explains."""
    own_us = None if paired is None else paired.record.measurement.median_us
    if paired is None or own_us is None:
        return True
    clock, its = attempt.row["sm_clock_mhz"], paired.record.measurement.sm_clock_mhz
    faster_clock = max(clock / its, 1.0) if clock and its else 1.0
    return attempt.us * faster_clock < own_us * (1 - UNPAIRED_MARGIN)


def _first(answers: Iterable[BestAnswer | None]) -> BestAnswer | None:
    return next((answer for answer in answers if answer is not None), None)


def _contestants(attempts: Sequence[_Timed]) -> list[tuple[_Timed, int, Finalist]]:
    """Of each finals the one that came first among those who may answer, by their ratios; then the others; of equal ones the latest."""
    places = [(attempt, run_id, finalist) for attempt in attempts for run_id, finalist in attempt.finals]
    first: dict[int, int] = {}
    for _, run_id, finalist in places:
        first[run_id] = min(finalist.rank, first.get(run_id, finalist.rank))
    return sorted(places, key=lambda place: (place[2].rank > first[place[1]], -place[2].ratio, -place[1]))


def _answer(reader: Reader, attempt: _Timed, run_id: int | None = None, finalist: Finalist | None = None) -> BestAnswer | None:
    """None where the record is damaged, or where the same kernel gave a wrong answer since."""
    try:
        record = reader.trial(attempt.row["trial_id"])
    except UserError:
        return None
    return None if _disproved(reader, record) else BestAnswer(record=record, measured=True, finalist=finalist, finals_run=run_id)


def _disproved(reader: Reader, record: Record) -> bool:
    """Whether a later attempt at the same schedule, with the same kernel and compiler, gave a wrong answer."""
    same = ("gpu", "kernel_hash", *PROBLEM_COLUMNS, *SCHEDULE_COLUMNS)
    own = {"gpu": record.gpu, "kernel_hash": record.kernel_hash, **problem_row(record.problem), **asdict(record.schedule)}
    return bool(
        reader.rows(
            "SELECT trial.id FROM trial JOIN environment ON environment.id = trial.environment_id WHERE trial.id > :trial_id"
            " AND trial.status IN ('wrong_answer', 'unstable') AND environment.triton = :triton AND "
            + " AND ".join(f"trial.{name} = :{name}" for name in same)
            + " LIMIT 1",
            own | {"trial_id": record.trial_id, "triton": record.environment.triton},
        )
    )


def _ties(reader: Reader, answer: BestAnswer, scope: Scope) -> tuple[Schedule, ...]:
    """The schedules that those finals could not tell from the winner, where it was crowned."""
    assert answer.finalist is not None
    assert answer.finals_run is not None
    if not answer.finalist.winner:
        return ()
    tied = [other for other in reader.finalists(answer.finals_run) if other.tied and other.trial_id != answer.finalist.trial_id]
    found = []
    for other in tied:
        with suppress(UserError):  # a damaged record ties with nothing
            schedule = reader.trial(other.trial_id).schedule
            in_scope = not scope.families or schedule.family in scope.families
            if in_scope and (scope.unordered or schedule.fused_reduction != UNORDERED):
                found.append(schedule)
    return tuple(found)


def _predicted(reader: Reader, problem: Problem, scope: Scope) -> BestAnswer | None:
    """The least prediction among what was compiled, of the first model that has one; current kernels before earlier ones."""
    where, values = _narrowed(problem, scope)
    rows = reader.rows(
        "SELECT trial.id AS trial_id, trial.family, trial.kernel_hash, trial.model, trial.predicted_seconds,"
        " environment.triton AS environment_triton"
        f" FROM trial JOIN environment ON environment.id = trial.environment_id WHERE {where} AND trial.status = 'compiled'",
        values,
    )
    usable = [row for row in rows if scope.triton in (None, row["environment_triton"])]
    models = [*scope.models, *sorted({row["model"] for row in usable} - set(scope.models))]

    def order(row: Row) -> tuple[bool, float, int]:
        return (not scope.is_fresh(row), row["predicted_seconds"], row["trial_id"])

    for model in models:
        for row in sorted((row for row in usable if row["model"] == model), key=order):
            with suppress(UserError):
                record = reader.trial(row["trial_id"])
                if not _disproved(reader, record):
                    return BestAnswer(record=record, measured=False, stale=not scope.is_fresh(row))
    return None


def tuned_problems(reader: Reader, scope: Scope) -> tuple[Problem, ...]:
    """The problems that have a measured answer in this scope, in a fixed order."""
    names = ", ".join(f"trial.{name}" for name in PROBLEM_COLUMNS)
    where, values = ["trial.gpu = :gpu", "trial.status = 'ok'"], {"gpu": scope.gpu}
    where += [] if scope.unordered else [f"trial.fused_reduction <> {UNORDERED}"]
    columns = ", ".join(f"environment.{name} AS environment_{name}" for name in ENVIRONMENT_COLUMNS)
    rows = reader.rows(
        f"SELECT DISTINCT {names}, trial.family, {columns} FROM trial JOIN environment ON environment.id = trial.environment_id"
        f" WHERE {' AND '.join(where)} ORDER BY {names}",
        values,
    )
    found: dict[Problem, None] = {}
    for row, problem in reader.sound(read_problem, rows):
        if scope.takes(read_environment(row, "environment_")) and (not scope.families or row["family"] in scope.families):
            found[problem] = None
    return tuple(found)


def nearest(reader: Reader, problem: Problem, scope: Scope) -> tuple[Problem, ...]:
    """Tuned problems that one might have meant, the likest first: the same extents with another type, layout, leading dimension or
    alignment; then the same N, K and kind with another M. For a message, not to answer with."""

    def kind(p: Problem) -> tuple[Any, ...]:
        return (p.n, p.k, p.dtype, p.out_dtype, p.layout)

    def order(p: Problem) -> tuple[bool, int, float]:
        apart = sum(getattr(p, name) != getattr(problem, name) for name in PROBLEM_COLUMNS)
        return (p.shape != problem.shape, apart if p.shape == problem.shape else 0, max(p.m, problem.m) / max(min(p.m, problem.m), 1))

    others = [p for p in tuned_problems(reader, scope) if p != problem and (p.shape == problem.shape or kind(p) == kind(problem))]
    return tuple(sorted(others, key=order))
