"""How fast a million schedules are enumerated, pruned and ranked on one core.

    python benchmarks/enumeration.py --output benchmarks/results/enumeration.md

The space is the default one with more raster groups. The process binds itself to one core.
"""

from __future__ import annotations

import argparse
import os
import platform
import resource
import statistics
import time
from pathlib import Path

os.environ["OMP_NUM_THREADS"] = "1"

import numpy as np

from search_spaces.gpu_files import load_gpu
from search_spaces.problem import Problem
from search_spaces.space import Space, load_space, prune
from tuner.ranking import rank

REPEATS = 7
GROUPS = {"pointer": (1, 2, 4, 8, 16), "tma": (1, 2, 3, 4, 5, 6, 8, 12, 16, 24, 32)}
SHAPES = ((4096, 4096, 4096), (64, 8192, 8192), (1000, 999, 4100))


def wide_space() -> Space:
    axes = load_space("default").axes
    return Space("wide", {family: {**values, "group_m": GROUPS[family]} for family, values in axes.items()})


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", type=Path, required=True)
    given = parser.parse_args()
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    space, h100 = wide_space(), load_gpu("h100")
    lines = [
        f"{space.size} schedules, h100, bf16 nt, one core; median of {REPEATS} runs, slowest in brackets.",
        "",
        "| shape | survivors | enumerate and prune, s | all, with ranking, s |",
        "|---|---:|---:|---:|",
    ]
    for m, n, k in SHAPES:
        problem, pruned, whole, survivors = Problem(m=m, n=n, k=k), [], [], 0
        for _ in range(REPEATS):
            begin = time.perf_counter()
            prune(space.enumerate(), problem, h100)
            pruned.append(time.perf_counter() - begin)
            begin = time.perf_counter()
            survivors = len(rank(problem, h100, space).table)
            whole.append(time.perf_counter() - begin)
        times = " | ".join(f"{statistics.median(values):.2f} [{max(values):.2f}]" for values in (pruned, whole))
        lines.append(f"| {problem.shape} | {survivors} | {times} |")
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    lines += ["", f"Peak memory {peak:.0f} MiB. Python {platform.python_version()}, numpy {np.__version__}, {_processor()}.", ""]
    given.output.parent.mkdir(parents=True, exist_ok=True)
    given.output.write_text("\n".join(lines), encoding="utf-8")
    print("\n".join(lines))


def _processor() -> str:
    for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.machine()


if __name__ == "__main__":
    main()
