"""The model's leaders, then a seeded draw that gives every value of every axis its share: what constants are fitted to.

Schedules that the model expects to be far slower than its first choice are left out: they take long and say little.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from search_spaces.table import ScheduleTable
from tuner.strategies import Candidates, Proposals, StrategySettings, in_order

LEADERS_SHARE = 1 / 3
SLOWEST = 8.0  # times the first choice's estimate


def propose(candidates: Candidates, settings: StrategySettings) -> Proposals:
    order, rows = candidates.by_estimate(), settings.rows_of(candidates)
    leaders, others = np.split(order, [round(rows * LEADERS_SHARE)])
    near = candidates.seconds[others] <= SLOWEST * candidates.seconds[order[:1]].sum()
    drawn = others[near][_spread(candidates.table.take(others[near]), rows - len(leaders), np.random.default_rng(settings.seed))]
    rest = others[~np.isin(others, drawn)]
    return in_order(np.concatenate([leaders, drawn, rest]), candidates, settings)


def _spread(table: ScheduleTable, count: int, random: np.random.Generator) -> NDArray[np.intp]:
    """Rows drawn one by one: each time among those whose axis values were drawn least so far."""
    codes = [np.unique(column, return_inverse=True)[1] for column in (table.family, *table.columns.values())]
    drawn_of = [np.zeros(int(code.max(initial=0)) + 1) for code in codes]
    left = random.permutation(len(table))
    drawn = []
    for _ in range(min(count, len(table))):
        often = sum((times[code[left]] for times, code in zip(drawn_of, codes, strict=True)), np.zeros(len(left)))
        pick = int(np.argmin(often))
        for times, code in zip(drawn_of, codes, strict=True):
            times[code[left[pick]]] += 1
        drawn.append(left[pick])
        left = np.delete(left, pick)
    return np.array(drawn, dtype=np.intp)
