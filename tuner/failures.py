"""What failed in a search, gathered by status and reason: for tables, for JSON, and for the sentence that ends a run."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from db.records import TIMED, Measurement, is_moments

NO_FAILURE = (*TIMED, "compiled", "duplicate")
REASON_CHARACTERS = 140
MOST_REASONS = 8  # that a text names


@dataclass(frozen=True, kw_only=True)
class Failures:
    """So many attempts with one status, for one reason but for numbers and names of files in it; the first of them is given."""

    status: str
    reason: str
    count: int

    def __str__(self) -> str:
        return f"{self.count} {self.status}" + (f": {self.reason}" if self.reason else "")


def failures(measurements: Iterable[Measurement], *, moments_only: bool = False) -> tuple[Failures, ...]:
    """The commonest first. moments_only: those that say nothing about their schedules."""
    found: dict[tuple[str, str], list[str]] = {}
    for measurement in measurements:
        status, reason = measurement.status, (measurement.message.splitlines() or [""])[0]
        if status not in NO_FAILURE and (is_moments(status) or not moments_only):
            found.setdefault((status, _alike(reason)), []).append(reason[:REASON_CHARACTERS])
    groups = [Failures(status=status, reason=reasons[0], count=len(reasons)) for (status, _), reasons in found.items()]
    return tuple(sorted(groups, key=lambda group: -group.count))


def _alike(reason: str) -> str:
    """The reason without what differs from one schedule to the next."""
    return re.sub(r"'[^']*'|\S*/\S*|\d+", "#", reason)


def failures_text(groups: Sequence[Failures]) -> str:
    """In one line."""
    more = [f"{sum(group.count for group in groups[MOST_REASONS:])} others"] if len(groups) > MOST_REASONS else []
    return "; ".join([*map(str, groups[:MOST_REASONS]), *more])
