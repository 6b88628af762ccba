"""Axes into schedules, and schedules into those that can run: enumeration, sampling, pruning, and the reasons as data."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from search_spaces.checks import Check, Constraint, Facts
from search_spaces.constraints import CONSTRAINTS
from search_spaces.errors import UserError, did_you_mean
from search_spaces.families import family
from search_spaces.grid import ScheduleGrid, values_at
from search_spaces.hardware import Hardware
from search_spaces.lowering import Lowering, lower
from search_spaces.problem import Problem
from search_spaces.schedule import ALWAYS, AXES, LARGEST_VALUE, Schedule
from search_spaces.space_files import change_axes, parse_axes, parse_axis_option, read_space
from search_spaces.table import ScheduleTable

MOST_SCHEDULES = 2**63 - 1  # that can be counted, and so sampled


@dataclass(frozen=True)
class Space:
    """For each family, the values of each of its axes. Its schedules are counted family by family, the last axis running fastest."""

    name: str
    axes: Mapping[str, Mapping[str, tuple[int, ...]]]

    def __post_init__(self) -> None:
        for family_name, axes in self.axes.items():
            known = family(family_name).axes
            for axis, values in axes.items():
                if axis not in known:
                    hint = did_you_mean(axis, known)
                    raise UserError(f"space {self.name}: family {family_name} has no axis {axis!r}; it has {', '.join(known)}{hint}")
                if not values or not all(isinstance(value, int) and not isinstance(value, bool) for value in values):
                    raise UserError(f"space {self.name}: {family_name}.{axis} is {list(values)}; give a list of whole numbers")
                wrong = [value for value in values if not 0 <= value <= LARGEST_VALUE]
                if wrong:
                    raise UserError(f"space {self.name}: {family_name}.{axis} is {wrong[0]}; give whole numbers from 0 to {LARGEST_VALUE}")
            missing = [axis for axis in known if axis in ALWAYS and axis not in axes]
            if missing:
                raise UserError(f"space {self.name}: family {family_name} gives no values for {missing[0]}")

    @property
    def size(self) -> int:
        return sum(_count(axes) for axes in self.axes.values())

    def only(self, names: Sequence[str]) -> Space:
        """The space without the families that are not named."""
        for name in names:
            if name not in self.axes:
                raise UserError(f"space {self.name} has no family {name!r}; it has {', '.join(self.axes)}{did_you_mean(name, self.axes)}")
        return Space(self.name, {name: axes for name, axes in self.axes.items() if name in names})

    def holds(self, schedule: Schedule) -> bool:
        axes = self.axes.get(schedule.family)
        return axes is not None and all(getattr(schedule, axis) in axes.get(axis, (unused,)) for axis, (_, unused) in AXES.items())

    def enumerate(self) -> ScheduleTable:
        """Every combination, as columns."""
        return ScheduleTable.concatenate([ScheduleGrid.product(name, axes).take(slice(None)) for name, axes in self.axes.items()])

    def grids(self, most: int) -> Iterator[ScheduleGrid]:
        """Every combination in the same order, in pieces of at most `most` rows."""
        for name, axes in self.axes.items():
            for box in _boxes({axis: axes[axis] for axis in AXES if axis in axes}, most):
                yield ScheduleGrid.product(name, box)

    def rows(self, numbers: NDArray[np.int64]) -> ScheduleTable:
        """The schedules with these numbers, which ascend, without making the others."""
        tables, first = [], 0
        for name, axes in self.axes.items():
            here = numbers[np.searchsorted(numbers, first) : np.searchsorted(numbers, first + _count(axes))] - first
            tables.append(_numbered(name, axes, here))
            first += _count(axes)
        return ScheduleTable.concatenate(tables)

    def sample(self, count: int, seed: int) -> NDArray[np.int64]:
        """The numbers of `count` different schedules, each set of that many as likely as any other; ascending."""
        if self.size > MOST_SCHEDULES:
            raise UserError(
                f"space {self.name} has {self.size} schedules, more than the {MOST_SCHEDULES} that can be sampled; narrow an axis"
            )
        draw, found = np.random.default_rng(seed), np.empty(0, dtype=np.int64)
        while len(found) < min(count, self.size):
            drawn = np.sort(np.concatenate([found, draw.integers(self.size, size=min(count, self.size) - len(found))]))
            found = drawn[np.diff(drawn, prepend=-1) > 0]  # np.unique hashes, which takes 20 times as long
        return found


def _count(axes: Mapping[str, Sequence[int]]) -> int:
    return math.prod(len(values) for values in axes.values())


def _boxes(axes: Mapping[str, Sequence[int]], most: int) -> Iterator[Mapping[str, Sequence[int]]]:
    """The product in parts of at most `most` rows, in its order: the first axis that has a choice is cut."""
    if _count(axes) <= most:
        yield axes
        return
    axis = next(axis for axis, values in axes.items() if len(values) > 1)
    step = max(most // (_count(axes) // len(axes[axis])), 1)
    for start in range(0, len(axes[axis]), step):
        yield from _boxes({**axes, axis: axes[axis][start : start + step]}, most)


def _numbered(name: str, axes: Mapping[str, Sequence[int]], numbers: NDArray[np.int64]) -> ScheduleTable:
    values = [np.array(axes.get(axis, (unused,)), dtype=np.int64) for axis, (_, unused) in AXES.items()]
    places = np.unravel_index(numbers, [len(column) for column in values])
    columns = {axis: column[place] for axis, column, place in zip(AXES, values, places, strict=True)}
    return ScheduleTable((name,), np.zeros(len(numbers), dtype=np.int64), columns)


@dataclass(frozen=True)
class Fallen:
    """How many schedules fell to one constraint, and the one that came nearest to passing, with both numbers."""

    constraint: str
    reason: str
    count: int
    example: Schedule
    sentence: str
    distance: float  # from the example's need to the limit


@dataclass(frozen=True)
class Pruning:
    """How many schedules there were, how many of them can run, and why the rest cannot."""

    enumerated: int
    survived: int
    fallen: tuple[Fallen, ...]

    def require_survivors(self, problem: Problem, hardware: Hardware) -> None:
        if self.survived:
            return
        counts = ", ".join(f"{item.constraint} {item.count}" for item in self.fallen)
        nearest = self.fallen[-1]
        raise UserError(
            f"no schedule of {self.enumerated} can run {problem.text} on {hardware.name} ({counts}); "
            f"the nearest miss is '{nearest.example}': {nearest.sentence}; widen the space with --space"
        )


@dataclass(frozen=True)
class Pruned(Pruning):
    """The same of one table, with its rows that can run and their lowering."""

    survivors: ScheduleTable
    lowering: Lowering


def prune(table: ScheduleTable, problem: Problem, hardware: Hardware) -> Pruned:
    """Drop what cannot run or repeats another row. Each row falls to the first constraint, in their order, that it breaks."""
    alive = np.ones(table.shape, dtype=bool)
    fallen = []
    with np.errstate(
        divide="ignore", invalid="ignore"
    ):  # an axis of 0 falls to a constraint; what is computed from it meanwhile is not used
        facts = Facts(table, problem, hardware, lower(table, problem, hardware))
        for rule in CONSTRAINTS:
            check = rule.check(facts)
            passes = check.passes()
            if passes.all():
                continue
            falls = alive & ~passes
            count = int(np.count_nonzero(falls))
            if count:
                fallen.append(_describe(rule, check, falls, count, facts))
                alive &= passes
    rows = np.flatnonzero(alive)
    return Pruned(len(table), len(rows), tuple(fallen), table.take(rows), _take(facts.lowering, table.shape, rows))


def merge(parts: Sequence[Pruning]) -> Pruning:
    """The pruning of a table from those of its parts, in order."""
    found: dict[str, Fallen] = {}
    for item in (item for part in parts for item in part.fallen):
        before = found.get(item.constraint, item)
        nearest = item if item.distance < before.distance else before
        count = item.count + (before.count if before is not item else 0)
        found[item.constraint] = replace(nearest, count=count)
    order = [rule.name for rule in CONSTRAINTS if rule.name in found]
    return Pruning(sum(part.enumerated for part in parts), sum(part.survived for part in parts), tuple(found[name] for name in order))


def why_not(schedule: Schedule, problem: Problem, hardware: Hardware) -> str | None:
    """The sentence of the first constraint that this schedule breaks, or None."""
    fallen = prune(ScheduleTable.of([schedule]), problem, hardware).fallen
    return fallen[0].sentence if fallen else None


def _describe(rule: Constraint, check: Check, falls: NDArray[np.bool_], count: int, facts: Facts) -> Fallen:
    need, limit = np.asarray(check.need), np.asarray(check.limit)
    distance = np.broadcast_to(np.abs(need.astype(np.float64) - limit), falls.shape)[falls]
    nearest = int(np.argmin(distance))
    row = int(np.flatnonzero(falls)[nearest])
    place = np.unravel_index(row, falls.shape)
    schedule = facts.table.schedule(row)
    values = {axis: getattr(schedule, axis) for axis in AXES}
    numbers = {"need": np.broadcast_to(need, falls.shape)[place], "limit": np.broadcast_to(limit, falls.shape)[place]}
    axis = tuple(AXES)[int(np.broadcast_to(check.axis, falls.shape)[place])]
    names = {"gpu": facts.hardware.name, "family": schedule.family, "axis": axis}
    sentence = check.sentence.format(**numbers, **names, **values)
    return Fallen(rule.name, rule.reason, count, schedule, sentence, float(distance[nearest]))


def _take(lowering: Lowering, shape: tuple[int, ...], rows: NDArray[np.intp]) -> Lowering:
    columns = vars(lowering)
    return Lowering(**dict(zip(columns, values_at(columns.values(), shape, rows), strict=True)))


def load_space(name_or_path: str) -> Space:
    """A space by its name or from a YAML file."""
    return Space(*read_space(name_or_path))


def parse_space(name: str, text: str) -> Space:
    return Space(name, parse_axes(name, text))


def choose_space(name_or_path: str, families: Sequence[str] = (), axes: Sequence[str] = ()) -> Space:
    """What `--space`, `--families` and `--axis` ask for together."""
    space = load_space(name_or_path)
    if families:
        space = space.only(families)
    if not axes:
        return space
    name = f"{space.name} with {' '.join(axes)}"
    return Space(name, change_axes(space.name, space.axes, [parse_axis_option(text) for text in axes]))
