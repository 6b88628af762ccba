"""From a problem and a chip to ranked schedules: enumerate, prune, estimate. Needs neither torch nor a GPU."""

from __future__ import annotations

import importlib
import pkgutil
from dataclasses import dataclass

import numpy as np

import cost_models
from cost_models.calibration import Calibration, load_calibration
from cost_models.estimate import Estimate, EstimateTable
from search_spaces.errors import UserError
from search_spaces.families import family
from search_spaces.hardware import Hardware
from search_spaces.lowering import Lowering, lower
from search_spaces.problem import Problem
from search_spaces.schedule import Schedule, Tile
from search_spaces.space import Pruning, Space, prune
from search_spaces.table import ScheduleTable

DEFAULT_MODEL = "hierarchy"


@dataclass(frozen=True)
class Ranking:
    """The schedules that can run, fastest estimate first, with what pruning dropped."""

    problem: Problem
    hardware: Hardware
    model: str
    calibration: Calibration
    pruning: Pruning
    table: ScheduleTable
    lowering: Lowering
    estimates: EstimateTable

    def estimate(self, row: int) -> Estimate:
        return self.estimates.row(row)

    def row_of(self, schedule: Schedule) -> int | None:
        """The rank, from 0, of a schedule that survived."""
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


def rank(problem: Problem, hardware: Hardware, space: Space, model: str = DEFAULT_MODEL) -> Ranking:
    """Prune the space and put what is left in the order of its estimates."""
    if model not in model_names():
        raise UserError(f"no cost model named {model!r}; known: {', '.join(model_names())}")
    check_problem(problem, hardware, space)
    pruning = prune(space.enumerate(), problem, hardware)
    pruning.require_survivors(problem, hardware)
    calibration = load_calibration(hardware)
    estimates = importlib.import_module(f"cost_models.{model}").estimate(
        pruning.survivors, pruning.lowering, problem, hardware, calibration
    )
    order = estimates.order()
    table = pruning.survivors.take(order)
    ordered = EstimateTable(
        estimates.seconds[order],
        {name: column[order] for name, column in estimates.terms.items()},
        {name: column[order] for name, column in estimates.facts.items()},
    )
    return Ranking(problem, hardware, model, calibration, pruning, table, lower(table, problem, hardware), ordered)
