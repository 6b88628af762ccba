"""Recorded landscapes for the benchmarks: from a CSV file of times or a tuner database, with what pruning would have made of them.

Schedules that launch the same kernel on the same grid as another one count as that one, with the median of all their times.
"""

from __future__ import annotations

import csv
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from cost_models.fitting import Sample
from db.reading import open_reader
from search_spaces.checks import Facts
from search_spaces.constraints import CONSTRAINTS
from search_spaces.hardware import Hardware
from search_spaces.lowering import lower
from search_spaces.problem import Problem
from search_spaces.schedule import Schedule
from search_spaces.space import Space, why_not
from search_spaces.table import Column, ScheduleTable
from tuner.replay import ReplayDevice
from tuner.scope import scope_of

NEAR_BEST = 1.01  # what pruning must not lose
WHOLE_ROW_BYTES = 16
SAME_LAUNCH: Mapping[str, Callable[[dict[str, Column]], dict[str, Column]]] = {  # constraint -> the axes of what stands for the schedule
    "same_kernel_stages": lambda axes: {"stages": np.minimum(axes["stages"], 2)},
    "same_raster": lambda axes: {"group_m": np.maximum(axes["group_m"] // 2, 1)},  # again and again until it is another order
    "same_persistent_grid": lambda axes: {name: np.zeros_like(axes[name]) for name in ("persistent_ctas_per_sm", "flatten")},
    "same_epilogue": lambda axes: {"epilogue_subtile": np.ones_like(axes["epilogue_subtile"])},
}


@dataclass(frozen=True, kw_only=True)
class Recorded:
    """One problem as it was measured. library: the library's time over the best schedule's, None where it was not timed."""

    problem: Problem
    median_us: Mapping[Schedule, float]
    library: float | None
    measured_on: str


@dataclass(frozen=True, kw_only=True)
class Landscape:
    """One problem as the tuner would see it: the recorded schedules that survive pruning, each launch once.

    best_seconds: of all that was recorded, pruned or not. near: how many launches were recorded within NEAR_BEST of it. Of those,
    stood_for: recorded only under axes that pruning replaces; outside: not in the space; lost: dropped by pruning, with ratio and reason.
    """

    recorded: Recorded
    sample: Sample
    best_seconds: float
    near: int
    stood_for: int
    outside: int
    lost: tuple[tuple[Schedule, float, str], ...]

    @property
    def problem(self) -> Problem:
        return self.recorded.problem

    @property
    def is_aligned(self) -> bool:
        """Whether TMA and wide loads take it; the others are a kind of their own, and nothing is fitted to them."""
        return min(self.problem.row_alignment_bytes(operand) for operand in "ab") == WHOLE_ROW_BYTES


def read_csv(path: Path, gpu: str) -> list[Recorded]:
    """Every shape of the file, bf16 and nt."""
    with path.open(encoding="utf-8", newline="") as file:
        rows = csv.DictReader(line for line in file if not line.startswith("#"))
        shapes = dict.fromkeys((int(row["M"]), int(row["N"]), int(row["K"])) for row in rows)
    found = []
    for m, n, k in shapes:
        problem = Problem(m=m, n=n, k=k)
        device = ReplayDevice.read_csv(path, problem)
        library = device.library_us / device.best_us if device.library_us else None
        found.append(Recorded(problem=problem, median_us=device.recorded_us, library=library, measured_on=f"{gpu}, as {path.name} says"))
    return found


def read_database(location: str, hardware: Hardware) -> list[Recorded]:
    """Every problem that was timed on this GPU; the library's ratio is that of the finals."""
    with open_reader(location) as reader:
        found = []
        for item in reader.landscapes(hardware.name, sms=hardware.sms):
            best = reader.best(item.problem, scope_of(hardware))
            library = best.finalist.ratio if best and best.finalist else None
            place = item.environment
            measured_on = f"{place.device_name}, driver {place.driver}, torch {place.torch}, Triton {place.triton}"
            found.append(Recorded(problem=item.problem, median_us=item.median_us, library=library, measured_on=measured_on))
    return found


def prepare(recorded: Recorded, hardware: Hardware, space: Space) -> Landscape:
    """Join the same launches, and set aside what pruning drops."""
    schedules = [*recorded.median_us]
    stand_in, survives = stand_ins(ScheduleTable.of(schedules), recorded.problem, hardware)
    times: dict[Schedule, list[float]] = {}
    alive: dict[Schedule, bool] = {}
    own: dict[Schedule, bool] = {}
    for row, schedule in enumerate(schedules):
        launch = stand_in.schedule(row)
        times.setdefault(launch, []).append(recorded.median_us[schedule] * 1e-6)
        alive[launch] = bool(survives[row])
        own[launch] = own.get(launch, False) or launch == schedule
    seconds = {launch: float(np.median(values)) for launch, values in times.items()}
    best = min(seconds.values())
    near = [launch for launch, value in seconds.items() if value <= best * NEAR_BEST]
    lost = [(launch, seconds[launch] / best, why_not(launch, recorded.problem, hardware) or "") for launch in near if not alive[launch]]
    kept = [launch for launch in seconds if alive[launch]]
    sample = Sample(problem=recorded.problem, table=ScheduleTable.of(kept), seconds=np.array([seconds[launch] for launch in kept]))
    return Landscape(
        recorded=recorded,
        sample=sample,
        best_seconds=best,
        near=len(near),
        stood_for=sum(alive[launch] and not own[launch] for launch in near),
        outside=sum(alive[launch] and not space.holds(launch) for launch in near),
        lost=tuple(lost),
    )


def stand_ins(table: ScheduleTable, problem: Problem, hardware: Hardware) -> tuple[ScheduleTable, NDArray[np.bool_]]:
    """For each row the schedule that stands for it where it only repeats another launch, and whether that one survives pruning."""
    while True:
        falls_to = first_fallen(table, problem, hardware)
        columns, changed = {**table.columns}, False
        for name, change in SAME_LAUNCH.items():
            rows = falls_to == name
            changed |= bool(rows.any())
            for axis, values in change(columns).items():
                columns[axis] = np.where(rows, values, columns[axis])
        if not changed:
            return table, falls_to == ""
        table = ScheduleTable(table.families, table.family, columns)


def first_fallen(table: ScheduleTable, problem: Problem, hardware: Hardware) -> NDArray[np.str_]:
    """The name of the first constraint that each row breaks, empty where it breaks none."""
    names = np.full(len(table), "", dtype="<U64")
    with np.errstate(divide="ignore", invalid="ignore"):
        facts = Facts(table, problem, hardware, lower(table, problem, hardware))
        for rule in CONSTRAINTS:
            names[(names == "") & ~np.broadcast_to(rule.check(facts).passes(), len(table))] = rule.name
    return names


def others(landscapes: Sequence[Landscape], held_out: Landscape) -> list[Sample]:
    """What constants for a problem may be fitted to: the other problems, aligned ones only."""
    return [one.sample for one in landscapes if one.is_aligned and one.problem != held_out.problem]
