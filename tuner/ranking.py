"""From a problem and a chip to ranked schedules: enumerate or sample, prune, estimate, keep the fastest. Needs neither torch nor a
GPU."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

import cost_models
from cost_models.calibration import Calibration
from cost_models.calibration_files import load_calibration
from cost_models.estimate import Estimate, EstimateTable
from search_spaces.errors import UserError
from search_spaces.families import family
from search_spaces.hardware import Hardware
from search_spaces.lowering import Lowering
from search_spaces.problem import Problem
from search_spaces.schedule import Schedule, Tile
from search_spaces.space import Pruning, Space, merge, prune
from search_spaces.table import ScheduleTable
from tuner.request import DEFAULT_MODEL

PIECE_ROWS = 2**18  # schedules that are pruned and estimated at a time
MOST_KEPT = 500_000  # of the schedules that can run, the fastest by the model; with all that is known of them some 250 B each
MOST_STREAMED = 50_000_000  # a larger space is sampled
SAMPLE_ROWS = 2_000_000

Estimator = Callable[[ScheduleTable, Lowering, Problem, Hardware, Calibration], EstimateTable]


@dataclass(frozen=True)
class Ranking:
    """The schedules that can run, fastest estimate first, at most `MOST_KEPT` of them, with what pruning dropped."""

    problem: Problem
    hardware: Hardware
    model: str
    calibration: Calibration
    space: Space
    pruning: Pruning
    table: ScheduleTable
    lowering: Lowering
    estimates: EstimateTable

    def estimate(self, row: int) -> Estimate:
        return self.estimates.row(row)

    def seconds_as_compiled(self, row: int, *, registers_per_thread: int, shared_memory_bytes: int) -> float:
        """The estimate of one row with what the compiler gave it in place of what was expected."""
        rows = np.array([row])
        lowering = replace(
            Lowering(**{name: column[rows] for name, column in vars(self.lowering).items()}),
            registers_per_thread=np.array([registers_per_thread], dtype=np.int64),
            shared_memory_bytes=np.array([shared_memory_bytes], dtype=np.int64),
        )
        return float(_estimate(self.model)(self.table.take(rows), lowering, self.problem, self.hardware, self.calibration).seconds[0])

    @property
    def sampled(self) -> bool:
        return self.pruning.enumerated < self.space.size

    @property
    def scope(self) -> str:
        """The schedules that the ranking speaks of."""
        if self.sampled:
            return f"a sample of {self.pruning.enumerated} of the {self.space.size} schedules of space {self.space.name}"
        return f"{self.space.size} schedules of space {self.space.name}"

    def row_of(self, schedule: Schedule) -> int | None:
        """The rank, from 0, of a schedule that survived and was kept."""
        same = np.ones(len(self.table), dtype=bool)
        for axis, column in self.table.columns.items():
            same &= column == getattr(schedule, axis)
        rows = np.flatnonzero(same & self.table.is_family([schedule.family]))
        return int(rows[0]) if len(rows) else None


@dataclass(frozen=True)
class Tiles:
    """The two tiles below the CTA tile, and what the compiler is expected to make of the schedule."""

    warp: Tile
    mma: Tile
    instruction: str
    registers: int
    shared_memory_bytes: int


def tiles(lowering: Lowering, row: int, schedule: Schedule) -> Tiles:
    return Tiles(
        lowering.warp_tile(row, schedule.cta),
        lowering.mma_tile(row),
        lowering.instruction(row),
        int(lowering.registers_per_thread[row]),
        int(lowering.shared_memory_bytes[row]),
    )


def model_names() -> tuple[str, ...]:
    """Cost models: the modules of `cost_models` that have an `estimate`."""
    names = (module.name for module in pkgutil.iter_modules(cost_models.__path__))
    return tuple(sorted(name for name in names if hasattr(importlib.import_module(f"cost_models.{name}"), "estimate")))


def _estimate(model: str) -> Estimator:
    estimator: Estimator = importlib.import_module(f"cost_models.{model}").estimate
    return estimator


def check_model(model: str) -> None:
    if model not in model_names():
        raise UserError(f"no cost model named {model!r}; known: {', '.join(model_names())}")


def check_problem(problem: Problem, hardware: Hardware, space: Space) -> None:
    """Refuse what no schedule can change: a dtype the chip or every family lacks, and matrices that do not fit its memory."""
    if problem.dtype not in hardware.fma_per_sm_per_clock:
        raise UserError(f"gpu {hardware.name} has no {problem.dtype}; it has {', '.join(hardware.fma_per_sm_per_clock)}")
    taken = sorted({dtype for name in space.axes for dtype in family(name).dtypes})
    if problem.dtype not in taken:
        raise UserError(f"no kernel family multiplies {problem.dtype}; they take {', '.join(taken)}")
    if problem.buffer_bytes > hardware.memory_bytes:
        raise UserError(
            f"the matrices of {problem.shape} {problem.dtype} take {problem.buffer_bytes} B, {hardware.name} has {hardware.memory_bytes} B;"
            " give a smaller shape or a GPU with more memory"
        )


def rank(problem: Problem, hardware: Hardware, space: Space, model: str = DEFAULT_MODEL, seed: int = 0) -> Ranking:
    """Prune the space, piece by piece, and put what is left in the order of its estimates. `seed` draws the sample of a space that is too
    large to go through."""
    check_model(model)
    check_problem(problem, hardware, space)
    calibration = load_calibration(hardware)
    estimate = _estimate(model)
    parts, leaders = [], _Leaders()
    for piece in pieces(space, seed):
        found = prune(piece, problem, hardware)
        parts.append(Pruning(found.enumerated, found.survived, found.fallen))
        if found.survived:
            leaders.add(_Rows(found.survivors, found.lowering, estimate(found.survivors, found.lowering, problem, hardware, calibration)))
    pruning = merge(parts)
    pruning.require_survivors(problem, hardware)
    rows = leaders.ordered()
    return Ranking(problem, hardware, model, calibration, space, pruning, rows.table, rows.lowering, rows.estimates)


def pieces(space: Space, seed: int = 0) -> Iterator[ScheduleTable]:
    """All schedules of the space, or a sample of one that is too large, in tables small enough for their columns to stay in memory."""
    if space.size <= MOST_STREAMED:
        yield from space.grids(PIECE_ROWS)
        return
    numbers = space.sample(SAMPLE_ROWS, seed)
    for start in range(0, len(numbers), PIECE_ROWS):
        yield space.rows(numbers[start : start + PIECE_ROWS])


@dataclass(frozen=True)
class _Rows:
    """Schedules that can run, with all that is known of them."""

    table: ScheduleTable
    lowering: Lowering
    estimates: EstimateTable

    def __len__(self) -> int:
        return len(self.table)


class _Leaders:
    """The fastest rows so far. Of equal estimates the earlier row comes first, as if all had been sorted at once."""

    def __init__(self) -> None:
        self._parts: list[_Rows] = []
        self._slowest = np.inf  # of the rows kept, once there are as many as may be

    def add(self, rows: _Rows) -> None:
        hopeful = np.flatnonzero(rows.estimates.seconds < self._slowest)
        if len(hopeful):
            self._parts.append(rows if len(hopeful) == len(rows) else _gather([rows], hopeful))
        if sum(map(len, self._parts)) > 2 * MOST_KEPT:
            self._parts = [self.ordered()]
            self._slowest = self._parts[0].estimates.seconds[-1]

    def ordered(self) -> _Rows:
        seconds = np.concatenate([part.estimates.seconds for part in self._parts])
        return _gather(self._parts, np.argsort(seconds, kind="stable")[:MOST_KEPT])


def _gather(parts: Sequence[_Rows], rows: NDArray[np.intp]) -> _Rows:
    """These rows of all parts together, column by column: the parts need not be copied whole."""

    def of(columns: Iterable[NDArray[Any]]) -> NDArray[Any]:
        found = list(columns)
        return (np.concatenate(found) if len(found) > 1 else found[0])[rows]

    first = parts[0]
    families = tuple(dict.fromkeys(name for part in parts for name in part.table.families))
    family = of(np.array([families.index(name) for name in part.table.families], dtype=np.int64)[part.table.family] for part in parts)
    table = ScheduleTable(families, family, {axis: of(part.table.columns[axis] for part in parts) for axis in first.table.columns})
    lowering = Lowering(**{name: of(getattr(part.lowering, name) for part in parts) for name in vars(first.lowering)})
    estimates = EstimateTable(
        of(part.estimates.seconds for part in parts),
        {name: of(part.estimates.terms[name] for part in parts) for name in first.estimates.terms},
        {name: of(part.estimates.facts[name] for part in parts) for name in first.estimates.facts},
    )
    return _Rows(table, lowering, estimates)
