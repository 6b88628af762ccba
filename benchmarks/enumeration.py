"""How fast schedules are enumerated, pruned and ranked on one core, and in how much memory: a million, twenty million in pieces, and a
sample of a thousand million.

    python benchmarks/enumeration.py --output benchmarks/results/enumeration.md

Each row of the table is a process of its own that binds itself to one core.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import resource
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

os.environ["OMP_NUM_THREADS"] = "1"

from publishing import publish

from search_spaces.gpu_files import load_gpu
from search_spaces.problem import Problem
from search_spaces.space import Space, load_space, prune
from tuner.ranking import pieces, rank

GPU = "h100"
SHAPES = ("4096x4096x4096", "64x8192x8192", "1000x999x4100")
UP_TO_32 = tuple(range(1, 33))


def _space(name: str) -> Space:
    """The default space; that with fewer values of some axes; and `pointer` and `tma` alone with more."""
    default = load_space("default")
    if name == "default":
        return default
    axes = default.axes
    if name == "million":
        fewer = {"pad": (0,), "group_m": (1, 2, 4, 16), "stages": (3, 4, 5)}
        return Space(name, {family: {**values, **_of(values, fewer)} for family, values in axes.items()})
    axes = {family: values for family, values in axes.items() if family in ("pointer", "tma")}
    many = {"cta_k": (16, 32, 64, 128), "stages": tuple(range(2, 9)), "split_k": UP_TO_32, "group_m": UP_TO_32}
    if name == "sampled":
        many |= {"split_k": tuple(range(1, 257)), "group_m": tuple(range(1, 201))}
    many |= {"fused_reduction": (0,), "swap_ab": (0,), "pad": (0,)}
    return Space(name, {family: {**values, **_of(values, many)} for family, values in axes.items()})


def _of(values: Mapping[str, tuple[int, ...]], changed: Mapping[str, tuple[int, ...]]) -> Mapping[str, tuple[int, ...]]:
    """Those changes whose axis the family has."""
    return {axis: some for axis, some in changed.items() if axis in values}


CASES = [
    *((name, shape, 7) for name in ("million", "default") for shape in SHAPES),
    *(("streamed", shape, 1) for shape in SHAPES),
    ("sampled", SHAPES[0], 3),
]


def _seconds(call: Callable[[], object]) -> float:
    begin = time.perf_counter()
    call()
    return time.perf_counter() - begin


def _measure(name: str, shape: str, repeats: int) -> dict[str, Any]:
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    m, n, k = map(int, shape.split("x"))
    space, hardware, problem = _space(name), load_gpu(GPU), Problem(m=m, n=n, k=k)

    def prune_all() -> None:
        for piece in pieces(space):
            prune(piece, problem, hardware)

    pruned = [_seconds(prune_all) for _ in range(repeats)]
    whole = [_seconds(lambda: rank(problem, hardware, space)) for _ in range(repeats)]
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    ranking = rank(problem, hardware, space)
    counts = {"size": space.size, "looked_at": ranking.pruning.enumerated, "survived": ranking.pruning.survived, "kept": len(ranking.table)}
    return {**counts, "pruned": pruned, "whole": whole, "peak_mib": peak}


def _row(name: str, shape: str, found: dict[str, Any]) -> str:
    times = [f"{statistics.median(values):.2f} [{max(values):.2f}]" for values in (found["pruned"], found["whole"])]
    counts = [f"{found[key]:,}" for key in ("size", "looked_at", "survived", "kept")]
    return "| " + " | ".join([name, shape, *counts, *times, f"{found['peak_mib']:.0f}"]) + " |"


def _in_a_process(case: tuple[str, str, int]) -> dict[str, Any]:
    command = [sys.executable, __file__, "--case", json.dumps(case)]
    found: dict[str, Any] = json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", type=Path, help="the table; required unless --case is given")
    parser.add_argument("--case", type=json.loads, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.case:
        print(json.dumps(_measure(*given.case)))
        return
    if given.output is None:
        parser.error("--output is missing")
    lines = [
        f"{GPU}, bf16 nt, one core; median of 7 runs for a million, of 1 streamed and of 3 sampled; slowest in brackets.",
        "",
        "| space | shape | schedules | looked at | can run | kept | enumerate and prune, s | all, with ranking, s | peak MiB |",
        "|---|---|---:|---:|---:|---:|---:|---:|---:|",
    ]
    for case in CASES:
        lines.append(_row(*case[:2], _in_a_process(case)))
        print(lines[-1], flush=True)
    lines += ["", f"{_processor()}.", ""]
    publish(given.output, "\n".join(lines))


def _processor() -> str:
    for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.machine()


if __name__ == "__main__":
    main()
