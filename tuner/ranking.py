"""From a problem and a chip to ranked schedules: enumerate or sample, prune, estimate, keep the fastest. Needs neither torch nor a
GPU."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from types import ModuleType
from typing import Any

import numpy as np
from numpy.typing import NDArray

import cost_models
from cost_models.calibration import Calibration
from cost_models.calibration_files import load_calibration
from cost_models.estimate import Estimate, EstimateTable
from search_spaces.errors import MachineFault, UserError, did_you_mean
from search_spaces.families import family
from search_spaces.hardware import Hardware
from search_spaces.lowering import Lowering
from search_spaces.plain_text import shown
from search_spaces.problem import Problem
from search_spaces.schedule import Schedule, Tile
from search_spaces.space import Pruning, Space, merge, prune
from search_spaces.table import ScheduleTable
from tuner.kernels import family_names
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
    """Cost models: the modules of `cost_models` that have an `estimate`. One that cannot be imported takes nothing from the others."""
    return tuple(sorted(name for name in _model_modules() if hasattr(_imported(name)[0], "estimate")))


def _model_modules() -> list[str]:
    return [module.name for module in pkgutil.iter_modules(cost_models.__path__)]


def _imported(name: str) -> tuple[ModuleType | None, Exception | None]:
    """The module, or why there is none."""
    try:
        return importlib.import_module(f"cost_models.{name}"), None
    except MemoryError:
        raise
    except Exception as error:
        return None, error


def check_model(model: str) -> None:
    known = model_names()
    if model in known:
        return
    error = _imported(model)[1] if model in _model_modules() else None
    if error:
        raise UserError(f"{_model_file(model)} cannot be imported: {_reason(error)}; mend it, or name one of {', '.join(known)}") from error
    raise UserError(f"no cost model named {shown(model)}; known: {', '.join(known)}{did_you_mean(model, known)}")


def _model_file(model: str) -> str:
    return f"cost model {model} (cost_models/{model}.py)"


def _reason(error: Exception) -> str:
    return f"{type(error).__name__}: {shown(' '.join(str(error).split()), quotes=False)}"


def _estimate(model: str) -> Estimator:
    """The model's `estimate`, whose every table is checked: all that ranking does with it rests on that."""
    check_model(model)
    estimator: Estimator = importlib.import_module(f"cost_models.{model}").estimate
    terms: list[str] = []

    def checked(table: ScheduleTable, lowering: Lowering, problem: Problem, hardware: Hardware, calibration: Calibration) -> EstimateTable:
        try:
            found = estimator(table, lowering, problem, hardware, calibration)
        except (UserError, MachineFault, MemoryError):
            raise
        except Exception as error:
            raise UserError(f"{_model_file(model)} failed: {_reason(error)}; mend it, or name another --model") from error
        fault = _table_fault(found, len(table))
        if not fault and terms and sorted(found.terms) != terms:
            fault = f"gives the terms {', '.join(sorted(found.terms))} after {', '.join(terms)}"
        if fault:
            raise UserError(f"{_model_file(model)} {fault}; mend it, or name another --model")
        terms[:] = sorted(found.terms)
        return found

    return checked


def _table_fault(found: object, rows: int) -> str | None:
    """What is wrong with a model's estimates of this many schedules, as the end of a sentence."""
    if not isinstance(found, EstimateTable):
        return f"gives {type(found).__name__}, no EstimateTable"
    if not isinstance(found.terms, Mapping) or not found.terms or not isinstance(found.facts, Mapping):
        return "gives no terms; each estimate is made of one or more"
    columns = {"seconds": found.seconds, **{f"terms[{name}]": column for name, column in found.terms.items()}}
    for name, column in {**columns, **{f"facts[{name}]": column for name, column in found.facts.items()}}.items():
        if not isinstance(column, np.ndarray) or column.shape != (rows,):
            size = f"of shape {column.shape}" if isinstance(column, np.ndarray) else f"as {type(column).__name__}"
            return f"gives {name} {size} for {rows} schedules; one value each is asked for"
    for name, column in columns.items():
        if column.dtype.kind not in "fiu":
            return f"gives {name} of type {column.dtype}; numbers of seconds are asked for"
        wrong = ~(np.isfinite(column) & ((column > 0) if name == "seconds" else (column >= 0)))
        if wrong.any():
            least = "above 0" if name == "seconds" else "of 0 or more"
            return (
                f"gives {name} of {column[wrong][0]} to {np.count_nonzero(wrong)} of {rows} schedules; finite seconds {least} are asked for"
            )
    return None


def check_problem(problem: Problem, hardware: Hardware, space: Space) -> None:
    """Refuse what no schedule can change: a dtype the chip or every family lacks, and matrices that do not fit its memory."""
    if problem.dtype not in hardware.fma_per_sm_per_clock:
        raise UserError(f"gpu {hardware.name} has no {problem.dtype}; it has {', '.join(hardware.fma_per_sm_per_clock)}")
    taken = sorted({dtype for name in space.axes for dtype in family(name).dtypes})
    without = [name for name in space.axes if name not in family_names()]
    if without:
        what = f"family {without[0]} has no kernels: there is no tuner/kernels/{without[0]}.py with a function `calls`"
        raise UserError(f"{what}; add it, or name --families {','.join(name for name in space.axes if name not in without)}")
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
    estimate = _estimate(model)
    check_problem(problem, hardware, space)
    calibration = load_calibration(hardware)
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
