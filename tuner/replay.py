"""A GPU that was: recorded times in place of measuring, so that search logic is tested and compared where there is no GPU.

It answers only for the schedules that were recorded, and always with the same time: noise and failures are not replayed.
"""

from __future__ import annotations

import csv
import math
import statistics
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from search_spaces.errors import UserError
from search_spaces.problem import Problem
from search_spaces.schedule import Schedule
from search_spaces.table import ScheduleTable

LIBRARY = "cublas"  # family of the rows that timed the library
_AXES = ("cta_m", "cta_n", "cta_k", "warps", "stages", "split_k", "group_m", "persistent_ctas_per_sm", "flatten")
_COLUMNS = ("M", "N", "K", "family", *_AXES, "epilogue_subtile", "median_us")


@dataclass(frozen=True, kw_only=True)
class Replayed:
    """status: `ok`, or `not_recorded` and then no time."""

    status: str
    median_us: float | None = None


@dataclass(frozen=True, kw_only=True)
class ReplayDevice:
    """What was recorded for one problem. library_us: the median of the library's times, None where it was not timed."""

    recorded_us: Mapping[Schedule, float]
    library_us: float | None = None

    def schedules(self) -> ScheduleTable:
        return ScheduleTable.of(list(self.recorded_us))

    def measure(self, schedule: Schedule) -> Replayed:
        median_us = self.recorded_us.get(schedule)
        return Replayed(status="not_recorded") if median_us is None else Replayed(status="ok", median_us=median_us)

    @property
    def best_us(self) -> float:
        return min(self.recorded_us.values())

    @staticmethod
    def read_csv(path: Path, problem: Problem) -> ReplayDevice:
        """The rows of this M, N and K. The file says nothing of dtype and layout: that they are the problem's is for the caller to know.

        One row a schedule, with its axes and `median_us`; lines that begin with # are skipped. `epilogue_subtile` is 1 where C was
        stored in two halves. A schedule that is recorded twice counts with its median.
        """
        shape = (str(problem.m), str(problem.n), str(problem.k))
        times: dict[Schedule, list[float]] = {}
        library: list[float] = []
        for line, row in _rows(path):
            if (row["M"], row["N"], row["K"]) != shape:
                continue
            try:
                median_us = _time(row["median_us"])
                if row["family"] == LIBRARY:
                    library.append(median_us)
                else:
                    axes = {axis: int(row[axis]) for axis in _AXES}
                    schedule = Schedule(family=row["family"], epilogue_subtile=int(row["epilogue_subtile"]) + 1, **axes)
                    times.setdefault(schedule, []).append(median_us)
            except ValueError as error:
                raise UserError(f"{path}, line {line}: {error}; give a number in each column") from None
        if not times:
            raise UserError(f"{path} has no schedule of {problem.shape}; record some, or name a shape that it has")
        medians = {schedule: statistics.median(values) for schedule, values in times.items()}
        return ReplayDevice(recorded_us=medians, library_us=statistics.median(library) if library else None)


def _time(text: str) -> float:
    time_us = float(text)
    if not 0 < time_us < math.inf:
        raise ValueError(f"a time of {text} us is not above 0")
    return time_us


def _rows(path: Path) -> Iterable[tuple[int, dict[str, str]]]:
    """Each row with the number of its line in the file."""
    if not path.is_file():
        raise UserError(f"no file {path}; give a CSV file of recorded times")
    with path.open(encoding="utf-8", newline="") as file:
        lines = [(number, line) for number, line in enumerate(file, start=1) if line.strip() and not line.startswith("#")]
    reader = csv.DictReader(line for _, line in lines)
    missing = [column for column in _COLUMNS if column not in (reader.fieldnames or ())]
    if missing:
        raise UserError(f"{path} has no column {missing[0]!r}; it needs {', '.join(_COLUMNS)}")
    for (number, _), row in zip(lines[1:], reader, strict=False):
        if any(row[column] is None for column in _COLUMNS):
            raise UserError(f"{path}, line {number}: fewer values than columns; give {len(reader.fieldnames or ())}")
        yield number, row
