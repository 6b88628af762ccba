"""A GPU that was: recorded times in place of measuring, so that search logic is tested and compared where there is no GPU.

It answers only for the schedules that were recorded, and always with the same time: noise and failures are not replayed.
"""

from __future__ import annotations

import csv
import re
import statistics
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from search_spaces.errors import UserError
from search_spaces.families import family
from search_spaces.gpu_files import readable_gpus
from search_spaces.plain_text import shown, whole_number
from search_spaces.problem import Problem
from search_spaces.schedule import Schedule
from search_spaces.table import ScheduleTable
from search_spaces.text_files import named, read_text_file

LIBRARY = "cublas"  # family of the rows that timed the library
_AXES = ("cta_m", "cta_n", "cta_k", "warps", "stages", "split_k", "group_m", "persistent_ctas_per_sm", "flatten")
_COLUMNS = ("M", "N", "K", "family", *_AXES, "epilogue_subtile", "median_us")
MOST_BYTES = 2**28  # of a file of recorded times; a row takes some 60
POWERS_OF_TWO = ("cta_m", "cta_n", "cta_k", "warps")
AT_LEAST_ONE = (*POWERS_OF_TWO, "split_k", "group_m")
BEYOND_PEAK = 1.2  # times the highest peak of any GPU with a file: clocks go beyond the one that a peak is published at


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
            where = f"{named(path)}, line {line}"
            median_us = _time(where, row["median_us"], problem)
            if row["family"] == LIBRARY:
                library.append(median_us)
            else:
                times.setdefault(_schedule(where, row), []).append(median_us)
        if not times:
            raise UserError(f"{named(path)} has no schedule of {problem.shape}; record some, or name a shape that it has")
        medians = {schedule: statistics.median(values) for schedule, values in times.items()}
        return ReplayDevice(recorded_us=medians, library_us=statistics.median(library) if library else None)


def _schedule(where: str, row: Mapping[str, str]) -> Schedule:
    """The schedule of a row, if its kernel could have been launched."""
    try:
        rings = family(row["family"]).loads == "ring"
    except UserError as error:
        raise UserError(f"{where}: {error}") from None
    axes = {axis: whole_number(row[axis], f"{where}: {axis}", least=int(axis in AT_LEAST_ONE), most=2**20) for axis in _AXES}
    for axis in POWERS_OF_TWO:
        # a ring puts a tile's columns together from two
        if axes[axis] & (axes[axis] - 1) and not (rings and axis == "cta_n" and axes[axis] % 16 == 0):
            raise UserError(f"{where}: {axis} is {axes[axis]}, no power of two: no kernel of {row['family']} was launched with it")
    slices = whole_number(row["epilogue_subtile"], f"{where}: epilogue_subtile", most=2**20)
    return Schedule(family=row["family"], epilogue_subtile=slices + 1, **axes)


def _time(where: str, text: str, problem: Problem) -> float:
    """Microseconds above 0 in which some GPU could have done the product."""
    if not re.fullmatch(r"[0-9]{1,15}(\.[0-9]{0,15})?(e[+-]?[0-9]{1,2})?", text) or float(text) == 0:
        raise UserError(f"{where}: a time of {shown(text)} us is no number above 0; give the median in microseconds")
    tflops, most = problem.flops / float(text) * 1e-6, _highest_peak(problem.dtype) * BEYOND_PEAK * 1e-12
    if tflops > most:
        raise UserError(
            f"{where}: {text} us for {problem.shape} is {tflops:.0f} TFLOP/s, more than the {most:.0f} that any GPU could reach"
        )
    return float(text)


@cache
def _highest_peak(dtype: str) -> float:
    """FLOP/s, of all GPUs that have a file."""
    return max(hardware.peak_flops.get(dtype, 0.0) for hardware in readable_gpus()[0])


def _rows(path: Path) -> Iterable[tuple[int, dict[str, str]]]:
    """Each row with the number of its line in the file."""
    text = read_text_file(path, "the file of recorded times", "give a CSV file", MOST_BYTES)
    numbered = enumerate(text.splitlines(), start=1)
    lines = [(number, line) for number, line in numbered if line.strip() and not line.startswith("#")]
    reader = csv.DictReader(line for _, line in lines)
    missing = [column for column in _COLUMNS if column not in (reader.fieldnames or ())]
    if missing:
        raise UserError(f"{named(path)} has no column {missing[0]!r}; it needs {', '.join(_COLUMNS)}")
    for (number, _), row in zip(lines[1:], reader, strict=False):
        if any(row[column] is None for column in _COLUMNS):
            raise UserError(f"{named(path)}, line {number}: fewer values than columns; give {len(reader.fieldnames or ())}")
        yield number, row
