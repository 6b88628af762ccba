"""In which order are schedules tried? One file a strategy; the file's name is its name on the command line.

A strategy only proposes. The driver compiles, measures, owns the budget, and may close the generator at any time.
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable, Generator
from dataclasses import dataclass
from types import ModuleType

import numpy as np
from numpy.typing import NDArray

from search_spaces.errors import UserError
from search_spaces.table import ScheduleTable


@dataclass(frozen=True, kw_only=True)
class Candidates:
    """The pruned schedules, and for each the seconds that the cost model expects. The rows are in no particular order."""

    table: ScheduleTable
    seconds: NDArray[np.float64]

    def __post_init__(self) -> None:
        if len(self.table) != len(self.seconds):
            raise ValueError(f"{len(self.table)} schedules, {len(self.seconds)} estimates")

    def by_estimate(self) -> NDArray[np.intp]:
        """All rows, the cheapest first; rows without an estimate (nan) last, equal ones in the table's order."""
        return np.argsort(self.seconds, kind="stable")


@dataclass(frozen=True, kw_only=True)
class StrategySettings:
    """seed: what every random choice follows from. batch: most rows of one proposal. limit: most rows in all; None is every row."""

    seed: int = 0
    batch: int = 16
    limit: int | None = None

    def __post_init__(self) -> None:
        if self.batch < 1:
            raise UserError(f"a batch of {self.batch} schedules; give at least 1")
        if self.limit is not None and self.limit < 0:
            raise UserError(f"a limit of {self.limit} schedules; give 0 or more")

    def rows_of(self, candidates: Candidates) -> int:
        """How many rows may be proposed in all."""
        rows = len(candidates.table)
        return rows if self.limit is None else min(rows, self.limit)


@dataclass(frozen=True, kw_only=True)
class Trial:
    """What became of one proposed row. `seconds` is None where nothing was timed; `status` then says why."""

    row: int
    status: str
    seconds: float | None


Proposals = Generator[list[int], list[Trial], None]
Propose = Callable[[Candidates, StrategySettings], Proposals]


def in_order(order: NDArray[np.intp], candidates: Candidates, settings: StrategySettings) -> Proposals:
    """Proposals in an order that no result changes."""
    rows = settings.rows_of(candidates)
    for start in range(0, rows, settings.batch):
        yield [int(row) for row in order[start : min(start + settings.batch, rows)]]


def strategy_names() -> tuple[str, ...]:
    return tuple(sorted(module.name for module in pkgutil.iter_modules(__path__)))


def load_strategy(name: str) -> Propose:
    propose: Propose = _module(name).propose
    return propose


def wants_all(name: str) -> bool:
    """Whether the strategy is meant to try every schedule, where no limit is named."""
    return bool(getattr(_module(name), "WANTS_ALL", False))


def strategy_summary(name: str) -> str:
    """The first line of the strategy's own description."""
    return (_module(name).__doc__ or "").partition("\n")[0]


def _module(name: str) -> ModuleType:
    if name not in strategy_names():
        raise UserError(f"no strategy named {name!r}; known: {', '.join(strategy_names())}")
    return importlib.import_module(f"{__name__}.{name}")
