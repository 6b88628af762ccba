"""In which order are schedules tried? One file a strategy; the file's name is its name on the command line.

A strategy only proposes. The driver compiles, measures, owns the budget, and may close the generator at any time.
"""

from __future__ import annotations

import importlib
import operator
import pkgutil
from collections.abc import Callable, Generator, Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from types import ModuleType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from search_spaces.errors import MachineFault, UserError, did_you_mean
from search_spaces.plain_text import shown
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
    """The strategy's `propose`, whose every batch is checked: rows of the candidates, each once, as many as the settings allow.

    Raises UserError where there is no such strategy, it cannot be imported or has no `propose`, and from its batches where one is wrong.
    """
    propose = getattr(_module(name), "propose", None)
    if not callable(propose):
        raise UserError(f"{_file(name)} has no function propose(candidates, settings); add one, or name another --strategy")

    def checked(candidates: Candidates, settings: StrategySettings) -> Proposals:
        proposals = _guard(name, partial(propose, candidates, settings))
        if not isinstance(proposals, Generator):
            raise UserError(f"{_file(name)}: propose gives {type(proposals).__name__}; it has to yield lists of rows")
        return _checked(name, proposals, candidates, settings)

    return checked


def _checked(name: str, proposals: Proposals, candidates: Candidates, settings: StrategySettings) -> Proposals:
    seen: set[int] = set()
    try:
        rows = _guard(name, partial(next, proposals, None))
        size = settings.batch if settings.first is None else settings.first
        while rows is not None:
            most = min(size, settings.rows_of(candidates) - len(seen))
            trials = yield _batch(name, rows, len(candidates.table), most, seen)
            rows, size = _guard(name, partial(_send, proposals, trials)), settings.batch
    finally:
        proposals.close()


def _send(proposals: Proposals, trials: list[Trial]) -> list[int] | None:
    try:
        return proposals.send(trials)
    except StopIteration:
        return None


def _guard(name: str, step: Callable[[], Any]) -> Any:
    """What a step of the strategy gives; whatever it raises is the strategy's fault, in a sentence that names it."""
    try:
        return step()
    except (UserError, MachineFault, MemoryError):
        raise
    except Exception as error:
        raise UserError(f"{_file(name)} failed: {_reason(error)}; mend it, or name another --strategy") from error


def _batch(name: str, rows: object, count: int, most: int, seen: set[int]) -> list[int]:
    """The rows as ints, which join those seen."""
    if isinstance(rows, str | bytes) or not isinstance(rows, Iterable):
        raise UserError(f"{_file(name)} proposes {shown(rows, quotes=False)}; it has to yield lists of rows")
    found = []
    for row in rows:
        if isinstance(row, bool) or not hasattr(row, "__index__"):
            raise UserError(f"{_file(name)} proposes the row {shown(row, quotes=False)}, which is no whole number")
        number = operator.index(row)
        if not 0 <= number < count:
            raise UserError(f"{_file(name)} proposes row {number}; there are rows from 0 to {count - 1}")
        if number in seen:
            raise UserError(f"{_file(name)} proposes row {number} twice; each row is proposed once")
        seen.add(number)
        found.append(number)
    if not 1 <= len(found) <= most:
        raise UserError(f"{_file(name)} proposes {len(found)} rows at once, where 1 to {most} are asked for")
    return found


def _file(name: str) -> str:
    return f"strategy {name} (tuner/strategies/{name}.py)"


def _reason(error: Exception) -> str:
    return f"{type(error).__name__}: {shown(' '.join(str(error).split()), quotes=False)}"


def wants_all(name: str) -> bool:
    """Whether the strategy is meant to try every schedule, where no limit is named."""
    return bool(getattr(_module(name), "WANTS_ALL", False))


def stops_early(name: str) -> bool:
    """Whether the strategy is meant to end, where no regret is named, once little is expected of what is left."""
    return bool(getattr(_module(name), "STOPS_EARLY", False))


def strategy_summary(name: str) -> str:
    """The first line of the strategy's own description, or why it cannot be used."""
    try:
        return (_module(name).__doc__ or "").partition("\n")[0]
    except UserError as error:
        return str(error)


def _module(name: str) -> ModuleType:
    if name not in strategy_names():
        known = strategy_names()
        raise UserError(f"no strategy named {shown(name)}; known: {', '.join(known)}{did_you_mean(name, known)}")
    try:
        return importlib.import_module(f"{__name__}.{name}")
    except (UserError, MachineFault, MemoryError):
        raise
    except Exception as error:
        raise UserError(f"{_file(name)} cannot be imported: {_reason(error)}; mend it, or name another --strategy") from error
