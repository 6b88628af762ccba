"""Axes into schedules, and schedules into those that can run: enumeration, pruning, and the reasons as data."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import resources
from pathlib import Path

import numpy as np
import yaml
from numpy.typing import NDArray

from search_spaces.constraints import CONSTRAINTS, Check, Constraint, Facts
from search_spaces.errors import UserError
from search_spaces.families import families, family
from search_spaces.hardware import Hardware
from search_spaces.lowering import Lowering, lower
from search_spaces.problem import Problem
from search_spaces.schedule import AXES, Schedule
from search_spaces.table import ScheduleTable


@dataclass(frozen=True)
class Space:
    """For each family, the values of each of its axes."""

    name: str
    axes: Mapping[str, Mapping[str, tuple[int, ...]]]

    def __post_init__(self) -> None:
        for family_name, axes in self.axes.items():
            known = family(family_name).axes
            for axis, values in axes.items():
                if axis not in known:
                    raise UserError(f"space {self.name}: family {family_name} has no axis {axis!r}; it has {', '.join(known)}")
                if not values or not all(isinstance(value, int) and not isinstance(value, bool) for value in values):
                    raise UserError(f"space {self.name}: {family_name}.{axis} is {list(values)}; give a list of whole numbers")
            missing = [axis for axis in known if AXES[axis][1] == 0 and AXES[axis][0] in ("", "w", "s") and axis not in axes]
            if missing:
                raise UserError(f"space {self.name}: family {family_name} gives no values for {missing[0]}")

    @property
    def size(self) -> int:
        return sum(int(np.prod([len(values) for values in axes.values()], dtype=np.int64)) for axes in self.axes.values())

    def only(self, names: Sequence[str]) -> Space:
        """The space without the families that are not named."""
        for name in names:
            if name not in self.axes:
                raise UserError(f"space {self.name} has no family {name!r}; it has {', '.join(self.axes)}")
        return Space(self.name, {name: axes for name, axes in self.axes.items() if name in names})

    def enumerate(self) -> ScheduleTable:
        """Every combination, as columns."""
        return ScheduleTable.concatenate([_product(name, axes) for name, axes in self.axes.items()])


def _product(family_name: str, axes: Mapping[str, tuple[int, ...]]) -> ScheduleTable:
    rows = int(np.prod([len(values) for values in axes.values()], dtype=np.int64))
    columns, repeat = {}, rows
    for axis, (_, unused) in AXES.items():
        if axis in axes:
            values = np.array(axes[axis], dtype=np.int32)
            repeat //= len(values)
            columns[axis] = np.tile(np.repeat(values, repeat), rows // (repeat * len(values)))
        else:
            columns[axis] = np.full(rows, unused, dtype=np.int32)
    return ScheduleTable((family_name,), np.zeros(rows, dtype=np.int32), columns)


@dataclass(frozen=True)
class Fallen:
    """How many schedules fell to one constraint, and the one that came nearest to passing, with both numbers."""

    constraint: str
    reason: str
    count: int
    example: Schedule
    sentence: str


@dataclass(frozen=True)
class Pruning:
    """What survived of a table, its lowering, and why the rest did not."""

    survivors: ScheduleTable
    lowering: Lowering
    enumerated: int
    fallen: tuple[Fallen, ...]

    def require_survivors(self, problem: Problem, hardware: Hardware) -> None:
        if len(self.survivors):
            return
        counts = ", ".join(f"{item.constraint} {item.count}" for item in self.fallen)
        nearest = self.fallen[-1]
        raise UserError(
            f"no schedule of {self.enumerated} can run {problem.shape} {problem.dtype} {problem.layout} on {hardware.name} ({counts}); "
            f"the nearest miss is '{nearest.example}': {nearest.sentence}; widen the space with --space"
        )


def prune(table: ScheduleTable, problem: Problem, hardware: Hardware) -> Pruning:
    """Drop what cannot run or repeats another row. Each row falls to the first constraint, in their order, that it breaks."""
    alive = np.ones(len(table), dtype=bool)
    fallen = []
    with np.errstate(
        divide="ignore", invalid="ignore"
    ):  # an axis of 0 falls to a constraint; what is computed from it meanwhile is not used
        facts = Facts(table, problem, hardware, lower(table, problem, hardware))
        for rule in CONSTRAINTS:
            check = rule.check(facts)
            falls = alive & ~check.passes(len(table))
            count = int(np.count_nonzero(falls))
            if count:
                fallen.append(_describe(rule, check, falls, count, facts))
                alive &= ~falls
    return Pruning(table.take(alive), _take(facts.lowering, alive), len(table), tuple(fallen))


def why_not(schedule: Schedule, problem: Problem, hardware: Hardware) -> str | None:
    """The sentence of the first constraint that this schedule breaks, or None."""
    fallen = prune(ScheduleTable.of([schedule]), problem, hardware).fallen
    return fallen[0].sentence if fallen else None


def _describe(rule: Constraint, check: Check, falls: NDArray[np.bool_], count: int, facts: Facts) -> Fallen:
    rows = np.flatnonzero(falls)
    need = np.broadcast_to(np.asarray(check.need), falls.shape)
    limit = np.broadcast_to(np.asarray(check.limit), falls.shape)
    distance = np.abs(need[rows].astype(np.float64) - limit[rows])
    row = int(rows[np.argmin(distance)])
    schedule = facts.table.schedule(row)
    values = {axis: getattr(schedule, axis) for axis in AXES}
    sentence = check.sentence.format(need=need[row], limit=limit[row], gpu=facts.hardware.name, **values)
    return Fallen(rule.name, rule.reason, count, schedule, sentence)


def _take(lowering: Lowering, rows: NDArray[np.bool_]) -> Lowering:
    return Lowering(**{name: column[rows] for name, column in vars(lowering).items()})


def space_names() -> tuple[str, ...]:
    files = resources.files("search_spaces").joinpath("spaces").iterdir()
    return tuple(sorted(file.name.removesuffix(".yaml") for file in files if file.name.endswith(".yaml")))


def load_space(name_or_path: str) -> Space:
    """A space by its name, or from a YAML file of `family: {axis: [values]}`."""
    path = Path(name_or_path)
    if path.suffix in (".yaml", ".yml"):
        if not path.is_file():
            raise UserError(f"no space file {name_or_path}; give a YAML file of family: {{axis: [values]}}")
        text = path.read_text(encoding="utf-8")
    elif name_or_path in space_names():
        text = resources.files("search_spaces").joinpath("spaces", f"{name_or_path}.yaml").read_text(encoding="utf-8")
    else:
        raise UserError(f"no space named {name_or_path!r}; known: {', '.join(space_names())}, or a YAML file")
    return parse_space(path.stem, text)


def parse_space(name: str, text: str) -> Space:
    try:
        content = yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise UserError(f"space {name} is not YAML: {str(error).splitlines()[0]}") from None
    if not isinstance(content, dict) or not content or not all(isinstance(axes, dict) for axes in content.values()):
        raise UserError(f"space {name} is not a mapping of family: {{axis: [values]}}; families are {', '.join(families())}")
    axes = {
        family_name: {axis: tuple(values) if isinstance(values, list) else (values,) for axis, values in axes.items()}
        for family_name, axes in content.items()
    }
    return Space(name, axes)
