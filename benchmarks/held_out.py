"""On shapes that nothing was fitted to: how far the model's first choices are behind the best of a random sample, all timed in turn.

    tuner search --shape 16x4096x4096 --gpu h200 --strategy random --trials 1500 --regret 0 --db random.db     (and other shapes)
    python benchmarks/held_out.py --db random.db --gpu h200 --output benchmarks/results/held-out.md

A sample takes a minute to measure, and a card that reaches its power limit slows down by up to a fifth meanwhile: the fastest of the
sample may only be the first. So the leaders of the sample, by time and by the model, are timed again in turn, with the model's first
choices of the whole space and the library. Runs where the GPU is.
"""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from landscapes import Landscape, prepare, read_database
from numpy.typing import NDArray
from publishing import publish

from cost_models.fitting import geometric_mean
from cost_models.hierarchy import estimate
from search_spaces.gpu_files import load_gpu
from search_spaces.hardware import Hardware
from search_spaces.lowering import lower
from search_spaces.schedule import Schedule
from search_spaces.space import load_space
from tuner.environment import device_present
from tuner.measuring import MeasureSettings, MeasuringProcess
from tuner.ranking import rank
from tuner.workbench import compile_job, open_workbench

FIRST = 8
SECONDS = 4.0  # of timing in turn, for one shape


@dataclass(frozen=True, kw_only=True)
class Row:
    """behind: of the model's first 1 and first 8 of the sample, as shares of the best of the sample. lead: the sample's best over the best
    of the model's first 8 of the whole space. library: the library over that."""

    shape: str
    sampled: int
    best_of_sample: Schedule
    best_us: float
    behind: tuple[float, float]
    whole: Schedule
    lead: float
    library: float
    rounds: int


def measure(landscape: Landscape, hardware: Hardware) -> Row:
    sample, problem = landscape.sample, landscape.problem
    ranking = rank(problem, hardware, load_space("default"))
    estimates = estimate(sample.table, lower(sample.table, problem, hardware), problem, hardware, ranking.calibration)
    by_model = [sample.table.schedule(int(row)) for row in estimates.order()[:FIRST]]
    by_time = [sample.table.schedule(int(row)) for row in np.argsort(sample.seconds, kind="stable")[:FIRST]]
    leaders = [ranking.table.schedule(row) for row in range(FIRST)]
    contestants = list(dict.fromkeys([*by_model, *by_time, *leaders]))
    times, library = in_turn(contestants, landscape, hardware)

    def over(schedules: list[Schedule], others: list[Schedule]) -> float:
        """The best of some over the best of others: medians of paired ratios decide who is best, and by how much."""
        first, second = (min(group, key=lambda s: float(np.median(times[s] / library))) for group in (schedules, others))
        return float(np.median(times[first] / times[second]))

    fastest = min([*by_model, *by_time], key=lambda s: float(np.median(times[s] / library)))
    whole = min(leaders, key=lambda s: float(np.median(times[s] / library)))
    return Row(
        shape=problem.shape,
        sampled=len(landscape.recorded.median_us),
        best_of_sample=fastest,
        best_us=float(np.median(times[fastest])),
        behind=(over(by_model[:1], [fastest]) - 1, over(by_model, [fastest]) - 1),
        whole=whole,
        lead=over([fastest], [whole]),
        library=float(np.median(library / times[whole])),
        rounds=len(library),
    )


def in_turn(
    schedules: list[Schedule], landscape: Landscape, hardware: Hardware
) -> tuple[dict[Schedule, NDArray[np.float64]], NDArray[np.float64]]:
    """Microseconds of each schedule, and of the library, in every round."""
    problem = landscape.problem

    def measuring(cache: Path) -> MeasuringProcess:
        return MeasuringProcess(problem, hardware, MeasureSettings(), cache_dir=cache)

    with open_workbench(measuring) as bench:
        bench.pool.submit([compile_job(schedule, problem, hardware) for schedule in schedules])
        waiting = len(schedules)
        while waiting:
            waiting -= sum(1 for _ in bench.pool.poll(0.5))
        assert bench.process is not None
        for schedule in schedules:
            measured = bench.process.measure(schedule, None)
            if measured.status != "ok":
                raise SystemExit(f"{problem.shape} '{schedule}': {measured.status}, {measured.message}")
        samples = bench.process.finals(schedules, SECONDS)
    return {schedule: samples.times_us[:, place] for place, schedule in enumerate(schedules)}, samples.library_us


def report(rows: list[Row], hardware: Hardware) -> str:
    device = device_present()
    first, eight = (geometric_mean([row.behind[place] for row in rows]) for place in (0, 1))
    lines = [
        "# Shapes that nothing was fitted to",
        "",
        "Behind: how far the model's first 1 and first 8 of the sample are behind the sample's best, in percent. Lead: the time of the",
        "sample's best over that of the best of the model's first 8 of the whole space. Library: the library's over the same. Everything",
        "in a row was timed in turn.",
        "",
        "| shape | sampled | the sample's best | us | first 1 | first 8 | best of the model's first 8 | lead | library | rounds |",
        "| --- | ---: | --- | ---: | ---: | ---: | --- | ---: | ---: | ---: |",
    ]
    for row in rows:
        behind = " | ".join(f"{100 * share:.1f}" for share in row.behind)
        lines.append(
            f"| {row.shape} | {row.sampled} | `{row.best_of_sample}` | {row.best_us:.2f} | {behind} | `{row.whole}` | {row.lead:.3f} |"
            f" {row.library:.3f} | {row.rounds} |"
        )
    lines += ["", f"Geometric means: first 1 {100 * first:.1f} %, first 8 {100 * eight:.1f} %.", ""]
    if device is not None:
        lines += [f"{device.name}, {device.sms} SMs, driver {device.driver}; constants of {hardware.name}.", ""]
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--db", required=True)
    parser.add_argument("--gpu", required=True)
    parser.add_argument("--output", type=Path, required=True)
    given = parser.parse_args()
    hardware, space = load_gpu(given.gpu), load_space("default")
    rows = [measure(prepare(recorded, hardware, space), hardware) for recorded in read_database(given.db, hardware)]
    text = report(rows, hardware)
    publish(given.output, text)


if __name__ == "__main__":
    main()
