"""How far the best of a model's first choices is behind the best measured, per model and shape; and whether pruning loses a best.

    python benchmarks/regret.py --landscape h200-bf16-nt.csv --db measured.db --gpu h200 --output benchmarks/results/regret.md

Constants for a shape are fitted on the other shapes of the landscape (without one, of the database), aligned ones only, and start from
the package's first guesses. nvMatmulHeuristics is compared where it can be imported.
"""

from __future__ import annotations

import argparse
import functools
import multiprocessing
import platform
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import peers
from landscapes import NEAR_BEST, Landscape, others, prepare, read_csv, read_database
from numpy.typing import NDArray
from publishing import publish

from cost_models import hierarchy, roofline
from cost_models.calibration import FALLBACK, Calibration
from cost_models.calibration_files import packaged_calibration
from cost_models.fitting import STEPS, Sample, fit, geometric_mean, regrets
from search_spaces.gpu_files import load_gpu
from search_spaces.hardware import Hardware
from search_spaces.lowering import lower
from search_spaces.space import load_space

FIRSTS = (1, 8, 16, 64)
NOTES = (
    "How far the best of a model's first k is behind the best measured, in percent; means are geometric, over shapes.",
    "Constants for a shape are fitted without it; those for a database's shapes to the recorded landscape, where both are given.",
    "Chance is the expected value of a random draw. A proposal of nvMatmulHeuristics (CTA tile and split-K) counts where it was recorded,",
    "with the best choice of all that it leaves open; few are, so that its first 16 and 64 are often its first 8.",
)
Seconds = NDArray[np.float64]


@dataclass(frozen=True)
class Score:
    """regrets: of the first FIRSTS against the best of all that was recorded; nan where the model proposed nothing that was. spearman: of
    the estimates with the times, nan where there are no estimates."""

    regrets: tuple[float, ...]
    spearman: float


def score(landscape: Landscape, estimated: Seconds) -> Score:
    lost = landscape.sample.seconds.min() / landscape.best_seconds
    behind = tuple((1 + regret) * lost - 1 for regret in regrets(landscape.sample, estimated, FIRSTS))
    return Score(behind, spearman(estimated, landscape.sample.seconds))


def chance(landscape: Landscape) -> Score:
    """What a random draw is expected to be behind."""
    ordered = np.sort(landscape.sample.seconds)
    behind = tuple(float(expected_least(ordered, k)) / landscape.best_seconds - 1 for k in FIRSTS)
    return Score(behind, 0.0)


def expected_least(ordered: Seconds, count: int) -> float:
    """Mean of the least of `count` values drawn without replacement from ascending ones."""
    left = len(ordered) - np.arange(len(ordered))
    drawn_now = np.minimum(count / left, 1.0)
    none_before = np.concatenate([[1.0], np.cumprod(1 - drawn_now)[:-1]])
    return float((ordered * drawn_now * none_before).sum())


def proposed(landscape: Landscape, times: Sequence[float]) -> Score:
    """Of a peer's proposals, best choice of what they leave open, in their order."""
    behind = [min(times[:k], default=float("nan")) / landscape.best_seconds - 1 for k in FIRSTS]
    return Score(tuple(behind), float("nan"))


def spearman(a: Seconds, b: Seconds) -> float:
    ranks = [_mean_ranks(values) for values in (a, b)]
    return float(np.corrcoef(*ranks)[0, 1]) if all(np.ptp(values) for values in ranks) else 0.0


def _mean_ranks(values: Seconds) -> Seconds:
    _, group, counts = np.unique(values, return_inverse=True, return_counts=True)
    last = np.cumsum(counts)
    return np.asarray((last - (counts - 1) / 2)[group], dtype=np.float64)


def by_hierarchy(sample: Sample, hardware: Hardware, calibration: Calibration) -> Seconds:
    lowering = lower(sample.table, sample.problem, hardware)
    return hierarchy.estimate(sample.table, lowering, sample.problem, hardware, calibration).seconds


def scores(landscape: Landscape, hardware: Hardware, start: Calibration, fitted: Calibration) -> dict[str, Score]:
    """Model -> its score on one shape."""
    sample = landscape.sample
    lowering = lower(sample.table, sample.problem, hardware)
    flat = roofline.estimate(sample.table, lowering, sample.problem, hardware, start).seconds
    found = {
        "chance": chance(landscape),
        "roofline": score(landscape, flat),
        "Triton's former model": score(landscape, peers.triton_former_model(sample.table, sample.problem, hardware)),
    }
    for target in peers.NVMMH_TARGETS if peers.nvmmh_is_installed() else ():
        proposals = peers.nvmmh_proposals(target, sample.problem, hardware)
        found[f"nvMatmulHeuristics {target}"] = proposed(landscape, peers.best_of_proposals(proposals, sample.table, sample.seconds))
    found["hierarchy, uncalibrated"] = score(landscape, by_hierarchy(sample, hardware, start))
    found["hierarchy, fitted to the others"] = score(landscape, by_hierarchy(sample, hardware, fitted))
    return found


def _fit(samples: Sequence[Sample], hardware: Hardware, start: Calibration, steps: int) -> tuple[Calibration, float]:
    begin = time.perf_counter()
    return fit(samples, hardware, start, steps=steps), time.perf_counter() - begin


def fit_all(
    sets: Sequence[Sequence[Sample]], hardware: Hardware, start: Calibration, processes: int, steps: int = STEPS
) -> list[tuple[Calibration, float]]:
    """Constants for each set of samples, and the seconds it took; sets of the same problems are fitted once."""
    keys = [tuple(sample.problem for sample in one) for one in sets]
    unique = dict(zip(keys, sets, strict=True))
    one = functools.partial(_fit, hardware=hardware, start=start, steps=steps)
    with ProcessPoolExecutor(processes, multiprocessing.get_context("spawn")) as pool:
        found = dict(zip(unique, pool.map(one, unique.values()), strict=True))
    return [found[key] for key in keys]


def percent(value: float) -> str:
    return "-" if np.isnan(value) else f"{100 * value:.1f}"


def row(*cells: object) -> str:
    return f"| {' | '.join(map(str, cells))} |"


def summary_lines(results: Mapping[str, Sequence[Score]], shapes: Sequence[str]) -> list[str]:
    lines = [
        row("ranked by", *(f"first {k}" for k in FIRSTS), "worst of first 1", "worst of first 8", "Spearman"),
        row("---", *("---:" for _ in FIRSTS), "---", "---", "---:"),
    ]
    for model, found in results.items():
        columns = list(zip(*(one.regrets for one in found), strict=True))
        means = [_mean(column) for column in columns]
        worst = [_worst(columns[FIRSTS.index(k)], shapes) for k in (1, 8)]
        order = np.mean([one.spearman for one in found])
        lines.append(row(model, *map(percent, means), *worst, "-" if np.isnan(order) else f"{order:.2f}"))
    return lines


def _mean(values: Sequence[float]) -> float:
    """Geometric, of those that there are."""
    found = [value for value in values if not np.isnan(value)]
    return geometric_mean(found) if found else float("nan")


def _worst(values: Sequence[float], shapes: Sequence[str]) -> str:
    found = [pair for pair in zip(values, shapes, strict=True) if not np.isnan(pair[0])]
    return "-" if not found else f"{percent(max(found)[0])} ({max(found)[1]})"


def shape_lines(landscapes: Sequence[Landscape], results: Mapping[str, Sequence[Score]]) -> list[str]:
    models = list(results)
    firsts = " / ".join(map(str, FIRSTS))
    lines = [
        f"First {firsts} [Spearman], regret in percent:",
        "",
        row("shape", "schedules", "best, us", "library / best", *models),
        row("---", "---:", "---:", "---:", *("---:" for _ in models)),
    ]
    for at, one in enumerate(landscapes):
        library = "-" if one.recorded.library is None else f"{one.recorded.library:.3f}"
        cells = []
        for model in models:
            found = results[model][at]
            order = "" if np.isnan(found.spearman) else f" [{found.spearman:.2f}]"
            cells.append(" / ".join(map(percent, found.regrets)) + order)
        facts = (one.problem.shape, len(one.sample.seconds), f"{one.best_seconds * 1e6:.2f}", library)
        lines.append(row(*facts, *cells))
    return lines


def pruning_lines(landscapes: Sequence[Landscape]) -> list[str]:
    """Whether what is within 1 % of the best survives, itself or the schedule that launches the same."""
    lines = [
        f"Within {100 * (NEAR_BEST - 1):.0f} % of the best of each shape, launches that survive pruning. Stood for: recorded only"
        " under axis values that pruning replaces by others of the same launch. Outside: not in the default space, which has none for it.",
        "",
        row("shape", "within 1 %", "survive", "of them stood for", "outside", "lost"),
        row("---", "---:", "---:", "---:", "---:", "---"),
    ]
    for one in landscapes:
        lost = "; ".join(f"'{schedule}' ({ratio:.3f}x): {reason}" for schedule, ratio, reason in one.lost) or "none"
        lines.append(row(one.problem.shape, one.near, one.near - len(one.lost), one.stood_for, one.outside, lost))
    return lines


def section(title: str, scored: Sequence[tuple[Landscape, Mapping[str, Score]]]) -> list[str]:
    if not scored:
        return []
    landscapes = [landscape for landscape, _ in scored]
    results = {model: [found[model] for _, found in scored] for model in scored[0][1]}
    on = "; ".join(dict.fromkeys(one.recorded.measured_on for one in landscapes))
    shapes = [one.problem.shape for one in landscapes]
    parts = (summary_lines(results, shapes), shape_lines(landscapes, results), pruning_lines(landscapes))
    return [f"## {title}", "", f"{len(landscapes)} shapes, measured on {on}.", "", *(line for part in parts for line in (*part, ""))]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--landscape", type=Path, help="CSV file of recorded times")
    parser.add_argument("--db", help="database of `tuner search --strategy random`")
    parser.add_argument("--gpu", default="h200")
    parser.add_argument("--start", default=FALLBACK, help="calibration that counts as none; fits start from it")
    parser.add_argument("--steps", type=int, default=STEPS, help="of one fit")
    parser.add_argument("--processes", type=int, default=2, help="fits at a time")
    parser.add_argument("--output", type=Path, required=True)
    given = parser.parse_args()
    hardware = load_gpu(given.gpu)
    space = load_space("default")
    recorded = [prepare(one, hardware, space) for one in (read_csv(given.landscape, hardware.title) if given.landscape else ())]
    stored = [prepare(one, hardware, space) for one in (read_database(given.db, hardware) if given.db else ())]
    start = packaged_calibration(given.start)
    landscapes = [*recorded, *stored]
    fits = fit_all([others(recorded or stored, one) for one in landscapes], hardware, start, given.processes, given.steps)
    scored = [(one, scores(one, hardware, start, fitted)) for one, (fitted, _) in zip(landscapes, fits, strict=True)]
    lines = ["# Regret", "", *NOTES, ""]
    lines += section("Recorded landscape", [pair for pair in scored[: len(recorded)] if pair[0].is_aligned])
    lines += section("Database", [pair for pair in scored[len(recorded) :] if pair[0].is_aligned])
    lines += section("Rows that are not aligned, never fitted to", [pair for pair in scored if not pair[0].is_aligned])
    took = np.median([seconds for _, seconds in fits])
    lines += [
        f"Uncalibrated constants: {start.name}. One fit of {given.steps} steps takes {took:.0f} s (median). {', '.join(versions())}.",
        "",
    ]
    publish(given.output, "\n".join(lines))


def versions() -> list[str]:
    found = [f"Python {platform.python_version()}", f"numpy {np.__version__}"]
    return [*found, f"nvMatmulHeuristics {peers.nvmmh_version()}"] if peers.nvmmh_is_installed() else found


if __name__ == "__main__":
    main()
