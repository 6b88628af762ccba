"""How many measurements each strategy needs to come within 1 % of the best recorded, on recorded times in place of a GPU.

    python benchmarks/strategies.py --landscape h200-bf16-nt.csv --gpu h200 --output benchmarks/results/strategies.md

A strategy chooses among the recorded schedules that survive pruning, by the model's estimates of them; the best is that of all that was
recorded. With --held-out a shape's estimates come from constants fitted to the other shapes (minutes more), else from those that the
package has. `gp` takes up to a second a proposal, so it has to be asked for.
"""

from __future__ import annotations

import argparse
import platform
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from landscapes import NEAR_BEST, Landscape, others, prepare, read_csv
from publishing import publish
from regret import by_hierarchy, fit_all, percent, row

from cost_models.calibration import FALLBACK, Calibration
from cost_models.calibration_files import load_calibration, packaged_calibration
from cost_models.fitting import STEPS, geometric_mean
from search_spaces.gpu_files import load_gpu
from search_spaces.space import load_space
from tuner.search import FIRST_BATCH, MOST_BATCH
from tuner.stopping import Regret, RegretWatch
from tuner.strategies import Candidates, StrategySettings, Trial, load_strategy

STRATEGIES = ("auto", "ranked", "local", "tpe", "exhaustive", "random")
DRAW = ("auto", "tpe", "gp", "random")  # whose steps follow from the seed
AFTER = (8, 16, 32, 64)
STOP = 0.01
NEVER = float("inf")


@dataclass(frozen=True)
class Replay:
    """One search. seconds: of each measurement, in their order. estimates: after so many of them, the regret that was estimated."""

    seconds: tuple[float, ...]
    best_seconds: float
    estimates: tuple[tuple[int, float], ...]

    @property
    def needed(self) -> float:
        """Measurements until one was within 1 % of the best."""
        near = (place for place, seconds in enumerate(self.seconds, start=1) if seconds <= NEAR_BEST * self.best_seconds)
        return next(near, NEVER)

    def regret(self, measurements: int) -> float:
        return min(self.seconds[:measurements]) / self.best_seconds - 1

    @property
    def stopped_at(self) -> int | None:
        """After how many measurements the search would have ended by itself."""
        return next((measurements for measurements, regret in self.estimates if regret < STOP), None)


def replay(strategy: str, landscape: Landscape, estimated: np.ndarray, seed: int, batches: tuple[int, int]) -> Replay:
    """A search of so many measurements as the last of AFTER, whatever regret it estimates on the way."""
    candidates = Candidates(table=landscape.sample.table, seconds=estimated)
    settings = StrategySettings(seed=seed, first=batches[0], batch=batches[1], limit=AFTER[-1])
    watch, measured = RegretWatch(candidates, STOP), list[float]()
    estimates = list[tuple[int, float]]()
    proposals, trials = load_strategy(strategy)(candidates, settings), None
    while True:
        try:
            rows = next(proposals) if trials is None else proposals.send(trials)
        except StopIteration:
            return Replay(tuple(measured), landscape.best_seconds, tuple(estimates))
        trials = [Trial(row=at, status="ok", seconds=float(landscape.sample.seconds[at])) for at in rows]
        measured += [float(landscape.sample.seconds[at]) for at in rows]
        watch.tell(trials)
        estimates.append((len(measured), _estimated(watch.regret)))


def _estimated(regret: Regret) -> float:
    return NEVER if regret.estimated is None else regret.estimated


def number(value: float) -> str:
    return f"> {AFTER[-1]}" if value == NEVER else f"{value:g}"


def quantile(values: Sequence[float], share: float) -> float:
    """The least value that so large a share does not exceed: never between one that was reached and one that was not."""
    return float(np.quantile(values, share, method="inverted_cdf"))


def strategy_cells(replays: Sequence[Replay]) -> list[str]:
    needed = [one.needed for one in replays]
    behind = [[one.regret(after) for one in replays] for after in AFTER]
    stopped = [(one.stopped_at, one.regret(one.stopped_at)) for one in replays if one.stopped_at is not None]
    cells = [number(quantile(needed, share)) for share in (0.25, 0.5, 0.75, 1.0)]
    cells += [f"{percent(geometric_mean(values))} ({percent(max(values))})" for values in behind]
    cells.append(f"{len(stopped)} of {len(replays)}")
    if not stopped:
        return [*cells, "-", "-", "-"]
    true = [regret for _, regret in stopped]
    over = sum(regret > STOP for regret in true)
    return [*cells, f"{np.median([at for at, _ in stopped]):g}", f"{percent(geometric_mean(true))} ({percent(max(true))})", str(over)]


def strategy_lines(results: dict[str, list[list[Replay]]]) -> list[str]:
    columns = ["strategy", "25 %", "median", "75 %", "most", *(f"after {after}" for after in AFTER)]
    lines = [
        row(*columns, "stopped", "at", "regret then", "of them over 1 %"),
        row("---", *("---:" for _ in range(len(columns) + 3))),
    ]
    return lines + [row(name, *strategy_cells([one for shape in shapes for one in shape])) for name, shapes in results.items()]


def shape_lines(landscapes: Sequence[Landscape], results: dict[str, list[list[Replay]]]) -> list[str]:
    lines = [
        "Measurements until within 1 %, per shape: median over seeds [most].",
        "",
        row("shape", "schedules", "within 1 %", *results),
        row("---", "---:", "---:", *("---:" for _ in results)),
    ]
    for at, one in enumerate(landscapes):
        cells = [[replayed.needed for replayed in shapes[at]] for shapes in results.values()]
        near = int(np.count_nonzero(one.sample.seconds <= NEAR_BEST * one.best_seconds))
        texts = [f"{number(quantile(needed, 0.5))} [{number(max(needed))}]" for needed in cells]
        lines.append(row(one.problem.shape, len(one.sample.seconds), near, *texts))
    return lines


def section(
    title: str, landscapes: Sequence[Landscape], search: Callable[[str, Landscape], list[Replay]], names: Sequence[str]
) -> list[str]:
    if not landscapes:
        return []
    results = {name: [search(name, one) for one in landscapes] for name in names}
    on = "; ".join(dict.fromkeys(one.recorded.measured_on for one in landscapes))
    head = [f"## {title}", "", f"{len(landscapes)} shape{'s' * (len(landscapes) > 1)}, measured on {on}.", ""]
    return [*head, *strategy_lines(results), "", *shape_lines(landscapes, results), ""]


def calibrations(landscapes: Sequence[Landscape], given: argparse.Namespace) -> list[Calibration]:
    """What each shape's estimates are made with."""
    hardware = load_gpu(given.gpu)
    if not given.held_out:
        return [load_calibration(hardware)] * len(landscapes)
    start = packaged_calibration(FALLBACK)
    fits = fit_all([others(landscapes, one) for one in landscapes], hardware, start, given.processes, given.steps)
    return [fitted for fitted, _ in fits]


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--landscape", type=Path, required=True, help="CSV file of recorded times")
    parser.add_argument("--gpu", default="h200")
    parser.add_argument("--strategies", nargs="+", default=list(STRATEGIES))
    parser.add_argument("--seeds", type=int, default=5, help="of the strategies that draw")
    parser.add_argument("--first", type=int, default=FIRST_BATCH, help="measurements of the first batch")
    parser.add_argument(
        "--batch", type=int, default=MOST_BATCH, help="of the others: a search takes as many as there are compilers, 8 to 16"
    )
    parser.add_argument("--held-out", action="store_true", help="fit constants for each shape to the other shapes")
    parser.add_argument("--steps", type=int, default=STEPS, help="of one fit")
    parser.add_argument("--processes", type=int, default=2, help="fits at a time")
    parser.add_argument("--output", type=Path, required=True)
    return parser.parse_args()


def main() -> None:
    given, begin = arguments(), time.perf_counter()
    hardware, space = load_gpu(given.gpu), load_space("default")
    landscapes = [prepare(one, hardware, space) for one in read_csv(given.landscape, hardware.title)]
    models = calibrations(landscapes, given)
    estimated = {one.problem: by_hierarchy(one.sample, hardware, model) for one, model in zip(landscapes, models, strict=True)}

    def search(name: str, landscape: Landscape) -> list[Replay]:
        seeds = range(given.seeds if name in DRAW else 1)
        return [replay(name, landscape, estimated[landscape.problem], seed, (given.first, given.batch)) for seed in seeds]

    constants = "constants fitted to the other shapes" if given.held_out else f"the constants of {models[0].name}"
    lines = [
        "# Strategies",
        "",
        "Measurements until one is within 1 % of the best recorded; `after k`: how far the best of the first k is behind it, in percent,",
        "geometric mean (worst). `stopped`: searches that would have ended because the estimated regret fell under 1 %, after how many",
        f"measurements (median), and how far behind they then were. {AFTER[-1]} at most: {given.first}, then {given.batch} at a time.",
        f"Estimates by hierarchy with {constants}; {given.seeds} seeds of what draws, each a search, and one of what does not.",
        "",
    ]
    lines += section("Aligned shapes", [one for one in landscapes if one.is_aligned], search, given.strategies)
    lines += section("Rows that are not aligned", [one for one in landscapes if not one.is_aligned], search, given.strategies)
    lines += [f"Took {time.perf_counter() - begin:.0f} s. Python {platform.python_version()}, numpy {np.__version__}.", ""]
    publish(given.output, "\n".join(lines))


if __name__ == "__main__":
    main()
