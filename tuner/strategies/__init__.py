"""In which order are schedules tried? One file a strategy; the file's name is its name on the command line.

A strategy only proposes. The driver compiles, measures, owns the budget, and may close the generator at any time.
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable, Generator, Iterator
from dataclasses import dataclass
from types import ModuleType

import numpy as np
from numpy.typing import NDArray

from search_spaces.errors import UserError
from search_spaces.table import ScheduleTable


@dataclass(frozen=True, kw_only=True)
class Candidates:
    """The pruned schedules, and for each the seconds that the cost model expects. The rows are in no particular order.

    nearby: rows that won on shapes like this one, the likest first.
    """

    table: ScheduleTable
    seconds: NDArray[np.float64]
    nearby: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        if len(self.table) != len(self.seconds):
            raise ValueError(f"{len(self.table)} schedules, {len(self.seconds)} estimates")
        if len(set(self.nearby)) < len(self.nearby) or not all(0 <= row < len(self.table) for row in self.nearby):
            raise ValueError(f"rows {self.nearby} of {len(self.table)} are nearby")

    def by_estimate(self) -> NDArray[np.intp]:
        """All rows, the cheapest first; rows without an estimate (nan) last, equal ones in the table's order."""
        return np.argsort(self.seconds, kind="stable")


@dataclass(frozen=True, kw_only=True)
class StrategySettings:
    """seed: what every random choice follows from. batch: most rows of one proposal. first: the same of the first one, where it differs.
    limit: most rows in all; None is every row."""

    seed: int = 0
    batch: int = 16
    first: int | None = None
    limit: int | None = None

    def __post_init__(self) -> None:
        for size in (self.batch, self.first):
            if size is not None and size < 1:
                raise UserError(f"a batch of {size} schedules; give at least 1")
        if self.limit is not None and self.limit < 0:
            raise UserError(f"a limit of {self.limit} schedules; give 0 or more")

    def rows_of(self, candidates: Candidates) -> int:
        """How many rows may be proposed in all."""
        rows = len(candidates.table)
        return rows if self.limit is None else min(rows, self.limit)

    def sizes(self, candidates: Candidates) -> Iterator[int]:
        """How many rows each proposal may have, to the last."""
        left, size = self.rows_of(candidates), self.batch if self.first is None else self.first
        while left:
            yield min(size, left)
            left -= min(size, left)
            size = self.batch


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
    start = 0
    for size in settings.sizes(candidates):
        yield [int(row) for row in order[start : start + size]]
        start += size


def guided(
    candidates: Candidates,
    settings: StrategySettings,
    choose: Callable[[NDArray[np.bool_], int], list[int]],
    learn: Callable[[list[Trial]], None],
) -> Proposals:
    """Proposals that are chosen anew after each result: choose(rows that are left, how many). Winners nearby are half of the first."""
    left = np.ones(len(candidates.table), dtype=bool)
    nearby = list(candidates.nearby)
    for size in settings.sizes(candidates):
        rows, nearby = nearby[: (size + 1) // 2], []
        left[rows] = False
        rows = rows + choose(left, size - len(rows))
        left[rows] = False
        learn((yield rows))


def strategy_names() -> tuple[str, ...]:
    return tuple(sorted(module.name for module in pkgutil.iter_modules(__path__)))


def load_strategy(name: str) -> Propose:
    propose: Propose = _module(name).propose
    return propose


def wants_all(name: str) -> bool:
    """Whether the strategy is meant to try every schedule, where no limit is named."""
    return bool(getattr(_module(name), "WANTS_ALL", False))


def stops_early(name: str) -> bool:
    """Whether the strategy is meant to end, where no regret is named, once little is expected of what is left."""
    return bool(getattr(_module(name), "STOPS_EARLY", False))


def strategy_summary(name: str) -> str:
    """The first line of the strategy's own description."""
    return (_module(name).__doc__ or "").partition("\n")[0]


def _module(name: str) -> ModuleType:
    if name not in strategy_names():
        raise UserError(f"no strategy named {name!r}; known: {', '.join(strategy_names())}")
    return importlib.import_module(f"{__name__}.{name}")
