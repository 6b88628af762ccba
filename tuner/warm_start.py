"""Which schedules won on products like this one, on the same GPU, or on this one in another environment? They are tried early; nothing is
answered with them."""

from __future__ import annotations

import math

from db.reading import Reader
from search_spaces.problem import Problem
from tuner.ranking import Ranking
from tuner.scope import scope_of

MOST_APART = 3.0  # powers of two, over M, N and K together
MOST_PROBLEMS = 4


def nearby_rows(store: Reader, ranking: Ranking) -> tuple[int, ...]:
    """The rows of what was best for this problem in another environment or with an earlier kernel, which is to be measured anew, and of
    the winners on the nearest problems that have one and keep it here; the nearest first.

    What holds of this problem here is answered from the store, and is not among them: the same search again takes the same steps.
    """
    problem, scope = ranking.problem, scope_of(ranking.hardware)
    near = [(_apart(problem, other), other) for other in store.tuned_problems(scope) if _alike(problem, other)]
    nearest = sorted(((apart, other) for apart, other in near if apart <= MOST_APART), key=lambda item: item[0])[:MOST_PROBLEMS]
    answers = [store.best(other, scope) for _, other in nearest]
    own = store.best(problem, scope)
    rows: dict[int, None] = {}
    for answer in ([own] if own and (own.differs or own.stale) else []) + answers:
        row = ranking.row_of(answer.record.schedule) if answer and answer.measured else None
        if row is not None:
            rows[row] = None
    return tuple(rows)


def _alike(problem: Problem, other: Problem) -> bool:
    """Other shapes of the same types and layout."""
    kinds = [(p.dtype, p.out_dtype, p.layout) for p in (problem, other)]
    return kinds[0] == kinds[1] and other.shape != problem.shape


def _apart(problem: Problem, other: Problem) -> float:
    return sum(abs(math.log2(a / b)) for a, b in ((problem.m, other.m), (problem.n, other.n), (problem.k, other.k)))
