"""Whether the warp grid and the instruction's N matter: the time of the best schedule with each of them, per shape, timed in turn.

    python benchmarks/tile_axes.py --gpu h200 --output benchmarks/results/tile-axes.md [--shape 4096x4096x4096 ...]

Of every warp grid and every instruction N that the default space has for a shape, the model's first choices are measured; the best of
each are then timed in turn. Runs where the GPU is.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from publishing import publish

from search_spaces.gpu_files import load_gpu
from search_spaces.hardware import Hardware
from search_spaces.problem import Problem, parse_shape
from search_spaces.schedule import Schedule
from search_spaces.space import load_space
from tuner.environment import device_present
from tuner.ranking import Ranking, rank
from tuner.workbench import Workshop, compile_job, open_workshop

SHAPES = ("4096x4096x4096", "512x4096x14336", "1024x1024x16384", "64x8192x8192", "16x6144x4096", "2048x2048x2048")
EACH = 5  # the model's first choices with one warp grid, or one instruction, that are measured
FINALS_SECONDS = 2.0
GRID, INSTRUCTION = "warp grid", "instruction N"
Key = tuple[str, str]  # which of the two, and its value


@dataclass(frozen=True, kw_only=True)
class Row:
    """best: the fastest schedule of each warp grid and each instruction N, with its time and its share of the fastest of all."""

    shape: str
    best: Mapping[Key, tuple[Schedule, float, float]]


def choices(ranking: Ranking) -> dict[Key, list[Schedule]]:
    """The model's first schedules with each warp grid and each instruction N, no two alike but for the raster."""
    low, found = ranking.lowering, dict[Key, list[Schedule]]()
    grids = low.warps_m.astype(np.int64) * 1000 + low.warps_n
    for name, codes in ((GRID, grids), (INSTRUCTION, low.mma_n.astype(np.int64))):
        for code in np.unique(codes):
            value = f"{code // 1000}x{code % 1000}" if name == GRID else str(code)
            alike = set()
            for row in np.flatnonzero(codes == code):
                schedule = ranking.table.schedule(int(row))
                shape = (schedule.family, schedule.cta, schedule.warps, schedule.split_k, schedule.swap_ab, schedule.persistent_ctas_per_sm)
                if shape not in alike:
                    alike.add(shape)
                    found.setdefault((name, value), []).append(schedule)
                if len(alike) == EACH:
                    break
    return found


def measure(problem: Problem, hardware: Hardware, workshop: Workshop, *, more: bool) -> Row:
    chosen = choices(rank(problem, hardware, load_space("default")))
    schedules = list(dict.fromkeys(schedule for group in chosen.values() for schedule in group))
    with workshop.measuring_bench(problem, hardware, print, more=more) as bench:
        bench.pool.submit([compile_job(schedule, problem, hardware) for schedule in schedules])
        compiled = {job.schedule for job, result in bench.pool.results() if result.status == "ok"}
        assert bench.process is not None
        times: dict[Schedule, float] = {}
        for schedule in (s for s in schedules if s in compiled):
            measured = bench.process.measure(schedule, None)
            if measured.median_us is not None:
                times[schedule] = measured.median_us
        best = {key: min(group, key=lambda s: times.get(s, np.inf)) for key, group in chosen.items() if any(s in times for s in group)}
        finalists = list(dict.fromkeys(best.values()))
        samples = bench.process.finals(finalists, FINALS_SECONDS)
    median = dict(zip(finalists, np.median(samples.times_us, axis=0), strict=True))
    fastest = min(median.values())
    return Row(shape=problem.shape, best={key: (s, float(median[s]), float(median[s] / fastest)) for key, s in best.items()})


def report(rows: Sequence[Row], hardware: Hardware) -> str:
    device = device_present()
    lines = ["# What the warp grid and the instruction's N are worth", ""]
    lines += ["Microseconds of the fastest schedule with each, and how many times the fastest of all that is; timed in turn.", ""]
    for name in (GRID, INSTRUCTION):
        lines += [f"| shape | {name} | schedule | us | x fastest |", "| --- | --- | --- | ---: | ---: |"]
        for row in rows:
            found = sorted(((value, *best) for (which, value), best in row.best.items() if which == name), key=lambda item: item[2])
            lines += [f"| {row.shape} | {value} | `{schedule}` | {us:.2f} | {share:.3f} |" for value, schedule, us, share in found]
        lines.append("")
    if device is not None:
        lines += [f"{device.name}, {device.sms} SMs, driver {device.driver}; the model's first {EACH} of each, {hardware.name}.", ""]
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--gpu", required=True)
    parser.add_argument("--shape", action="append", help="MxNxK; repeatable")
    parser.add_argument("--output", type=Path, required=True)
    given = parser.parse_args()
    hardware = load_gpu(given.gpu)
    problems = [Problem(m=m, n=n, k=k) for m, n, k in map(parse_shape, given.shape or SHAPES)]
    with open_workshop() as workshop:
        rows = [measure(problem, hardware, workshop, more=problem is not problems[-1]) for problem in problems]
    text = report(rows, hardware)
    publish(given.output, text)


if __name__ == "__main__":
    main()
