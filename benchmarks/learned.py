"""Whether a learned correction of the hierarchical model would earn its place: log(measured / estimated) by LightGBM from scale-free
features, judged on shapes that neither the constants nor the correction have seen.

    python benchmarks/learned.py --landscape h200-bf16-nt.csv --db measured.db --gpu h200 --output benchmarks/results/learned.md

Needs LightGBM, which the package does not.
"""

from __future__ import annotations

import argparse
import functools
import importlib
import importlib.util
import multiprocessing
import platform
from collections import Counter
from collections.abc import Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from landscapes import Landscape, others, prepare, read_csv, read_database
from numpy.typing import NDArray
from publishing import publish
from regret import FIRSTS, fit_all, percent, row, score

from cost_models import hierarchy
from cost_models.calibration import FALLBACK, Calibration
from cost_models.calibration_files import packaged_calibration
from cost_models.estimate import EstimateTable
from cost_models.fitting import geometric_mean
from cost_models.roofline import roofline
from search_spaces.gpu_files import load_gpu
from search_spaces.hardware import Hardware
from search_spaces.lowering import lower
from search_spaces.schedule import AXES
from search_spaces.space import load_space
from search_spaces.table import ScheduleTable

NEAR, FAR_WEIGHT = 0.3, 0.05  # weight of a row: exp(-log seconds behind the best / NEAR) + FAR_WEIGHT
RANK_UNIT = 0.05  # log seconds of the estimate that are one unit of a ranking learner's score
GRADES, GRADE_NEAR = 20, 0.05  # relevance for a ranking learner: GRADES exp(-log seconds behind the best / GRADE_NEAR), rounded
SHRINKAGES = (1.0, 0.5, 0.25)  # share of the learned correction that is applied
INNER_FOLDS = 3
LEAST_SHARE = 1e-6
FACTS_IN_LOG = ("waves", "resident_ctas", "bytes_in_flight_per_sm")
FACTS_AS_THEY_ARE = ("tail", "l2_hit")
CHOSEN_BY = FIRSTS.index(8)

RULE = (
    "Rule, set before the study ran: the correction earns its place if, in the median over seeds and for the variant chosen without the",
    "held-out shapes, it raises neither the geometric mean nor the worst of the first-8 regrets on any held-out set, and lowers the mean",
    "on one at least. First 1 is compared too and decides nothing: a search measures more than one.",
)
NOTES = (
    "Learned: log(measured / estimated) of the hierarchical model, less each shape's own weighted mean, from each term's log share of the",
    "estimate, waves, tail, resident CTAs, bytes in flight, L2 hits, the axes in log2 and the family. Rows near the best weigh more; all",
    "shapes weigh the same. `rank` is LambdaRank within a shape, boosted from the estimate. x1, x0.5, x0.25: share of the correction that",
    "is applied. The corrected time is never below that of the published peak, nor of each byte moved once at the published bandwidth.",
    "",
    "Held out twice: the constants of the hierarchical model and the correction for a shape are fitted without it. A variant is chosen per",
    f"held-out shape and seed: least first-8, then first-1 regret in {INNER_FOLDS} folds over the training shapes alone.",
    "Regrets are in percent, behind the best that was measured; means are geometric, over shapes.",
)

Matrix = NDArray[np.float64]


@dataclass(frozen=True)
class Learner:
    name: str
    trees: int
    parameters: Mapping[str, float]
    ranks: bool = False


LEARNERS = (
    Learner("small", 200, {"num_leaves": 15, "learning_rate": 0.05, "min_data_in_leaf": 50}),
    Learner("large", 400, {"num_leaves": 31, "learning_rate": 0.03, "min_data_in_leaf": 100}),
    Learner("rank", 100, {"num_leaves": 15, "learning_rate": 0.1, "min_data_in_leaf": 50}, ranks=True),
)
SAMPLED = {"feature_fraction": 0.5, "bagging_fraction": 0.8, "bagging_freq": 1}  # what seeds change
REPEATABLE = {"num_threads": 1, "deterministic": True, "force_row_wise": True, "verbosity": -1}
VARIANTS = tuple((learner.name, shrinkage) for learner in LEARNERS for shrinkage in SHRINKAGES)


@dataclass(frozen=True)
class Rows:
    """One shape as the learners see it, under given constants. Times in log seconds."""

    landscape: Landscape
    features: Matrix
    estimated: Matrix
    measured: Matrix
    floor: float

    @staticmethod
    def of(landscape: Landscape, hardware: Hardware, calibration: Calibration) -> Rows:
        sample = landscape.sample
        estimates = hierarchy.estimate(sample.table, lower(sample.table, sample.problem, hardware), sample.problem, hardware, calibration)
        floor = float(np.log(roofline(sample.problem, hardware).lower_bound_seconds))
        return Rows(landscape, features(sample.table, estimates), np.log(estimates.seconds), np.log(sample.seconds), floor)

    @property
    def behind(self) -> Matrix:
        return np.asarray(self.measured - self.measured.min())

    @property
    def weights(self) -> Matrix:
        """They add up to 1."""
        weights = np.exp(-self.behind / NEAR) + FAR_WEIGHT
        return np.asarray(weights / weights.sum())

    @property
    def errors(self) -> Matrix:
        """Of the estimates, less the shape's own offset, which no ranking within it can feel."""
        errors = self.measured - self.estimated
        return np.asarray(errors - (self.weights * errors).sum())

    @property
    def grades(self) -> NDArray[np.int64]:
        return np.asarray(np.rint(GRADES * np.exp(-self.behind / GRADE_NEAR)), dtype=np.int64)

    def regrets(self, correction: Matrix | float) -> tuple[float, ...]:
        return score(self.landscape, np.exp(np.maximum(self.estimated + correction, self.floor))).regrets


def features(table: ScheduleTable, estimates: EstimateTable) -> Matrix:
    """No launch overhead among the shares: it is one time for all, so its share would tell the estimate itself and with it the shape."""
    shares = [np.log(np.maximum(term / estimates.seconds, LEAST_SHARE)) for name, term in estimates.terms.items() if name != "launch"]
    facts = [np.log2(np.maximum(estimates.facts[name], LEAST_SHARE)) for name in FACTS_IN_LOG]
    facts += [estimates.facts[name] for name in FACTS_AS_THEY_ARE]
    axes = [np.log2(table.columns[axis] + 1.0) for axis in AXES]
    return np.stack([*shares, *facts, *axes, table.is_family(["tma"]).astype(np.float64)], axis=1)


def learn(learner: Learner, shapes: Sequence[Rows], seed: int) -> Any:
    lightgbm = importlib.import_module("lightgbm")
    inputs = np.concatenate([one.features for one in shapes])
    parameters: dict[str, object] = {**SAMPLED, **REPEATABLE, **learner.parameters, "seed": seed}
    if learner.ranks:
        parameters |= {"objective": "lambdarank", "label_gain": list(range(GRADES + 1))}
        start = np.concatenate([(one.estimated.min() - one.estimated) / RANK_UNIT for one in shapes])
        grades = np.concatenate([one.grades for one in shapes])
        data = lightgbm.Dataset(inputs, grades, group=[len(one.grades) for one in shapes], init_score=start)
    else:
        errors = np.concatenate([one.errors for one in shapes])
        weights = np.concatenate([one.weights for one in shapes]) * len(errors) / len(shapes)
        data = lightgbm.Dataset(inputs, errors, weight=weights)
    return lightgbm.train(parameters, data, num_boost_round=learner.trees)


def corrected_regrets(training: Sequence[Rows], judged: Sequence[Rows], seed: int) -> NDArray[np.float64]:
    """By variant, judged shape and FIRSTS."""
    found = []
    for learner in LEARNERS:
        model = learn(learner, training, seed)
        sign = -RANK_UNIT if learner.ranks else 1.0
        corrections = [sign * np.asarray(model.predict(one.features), dtype=np.float64) for one in judged]
        for share in SHRINKAGES:
            found.append([one.regrets(share * correction) for one, correction in zip(judged, corrections, strict=True)])
    return np.array(found)


def choose(regrets: NDArray[np.float64]) -> int:
    """The variant of least mean first-8 regret; among equals, of least first-1 regret."""
    means = np.log1p(regrets).mean(axis=1)
    return int(np.lexsort((np.round(means[:, 0], 6), np.round(means[:, CHOSEN_BY], 6)))[0])


@dataclass(frozen=True)
class Fold:
    """What is learned from, what is judged, and the constants, which know the first alone."""

    training: Sequence[Landscape]
    judged: Sequence[Landscape]
    calibration: Calibration
    seed: int


@dataclass(frozen=True)
class Outcome:
    """Regrets of the judged shapes: by shape and FIRSTS, and for all variants by variant besides."""

    analytic: NDArray[np.float64]
    variants: NDArray[np.float64]
    chosen: int


def study(fold: Fold, hardware: Hardware) -> Outcome:
    training, judged = ([Rows.of(one, hardware, fold.calibration) for one in part] for part in (fold.training, fold.judged))
    inner = []
    for at in range(INNER_FOLDS):
        kept = [one for place, one in enumerate(training) if place % INNER_FOLDS != at]
        inner.append(corrected_regrets(kept, training[at::INNER_FOLDS], fold.seed))
    chosen = choose(np.concatenate(inner, axis=1))
    analytic = np.array([one.regrets(0.0) for one in judged])
    return Outcome(analytic, corrected_regrets(training, judged, fold.seed), chosen)


@dataclass(frozen=True)
class Results:
    """Of one held-out set. analytic: by shape and FIRSTS; variants: by seed, variant, shape and FIRSTS; chosen: by seed and shape."""

    title: str
    landscapes: Sequence[Landscape]
    analytic: NDArray[np.float64]
    variants: NDArray[np.float64]
    chosen: NDArray[np.int64]

    @property
    def corrected(self) -> NDArray[np.float64]:
        """By seed, shape and FIRSTS."""
        seeds, shapes = np.ogrid[: len(self.variants), : len(self.landscapes)]
        return np.asarray(self.variants[seeds, self.chosen, shapes])


def summary(regrets: NDArray[np.float64]) -> tuple[list[float], list[float]]:
    """(geometric means, worst) over shapes, of regrets by shape and FIRSTS."""
    return [geometric_mean(list(column)) for column in regrets.T], [float(column.max()) for column in regrets.T]


@dataclass(frozen=True)
class Change:
    """Of the first k, (before, after): geometric means and worst over shapes, the corrected in the median over seeds."""

    means: tuple[float, float]
    worst: tuple[float, float]

    @staticmethod
    def of(results: Results, k: int) -> Change:
        at = FIRSTS.index(k)
        after = np.median([[values[at] for values in summary(one)] for one in results.corrected], axis=0)
        before = [values[at] for values in summary(results.analytic)]
        return Change((before[0], float(after[0])), (before[1], float(after[1])))

    @property
    def raises(self) -> bool:
        return self.means[1] > self.means[0] or self.worst[1] > self.worst[0]

    @property
    def lowers_the_mean(self) -> bool:
        return self.means[1] < self.means[0]

    def __str__(self) -> str:
        return f"mean {fine(self.means[0])} -> {fine(self.means[1])}, worst {fine(self.worst[0])} -> {fine(self.worst[1])}"


def earns_its_place(changes: Sequence[Change]) -> bool:
    """Changes of the first 8 on each held-out set."""
    return not any(one.raises for one in changes) and any(one.lowers_the_mean for one in changes)


def leave_one_out(landscapes: Sequence[Landscape], calibrations: Sequence[Calibration], seeds: int) -> list[Fold]:
    """By seed, then by the shape that is left out."""
    pairs = list(zip(landscapes, calibrations, strict=True))
    return [
        Fold([other for other in landscapes if other is not one], [one], calibration, seed)
        for seed in range(seeds)
        for one, calibration in pairs
    ]


def join(title: str, outcomes: Sequence[Sequence[Outcome]], landscapes: Sequence[Landscape]) -> Results:
    """Of outcomes by seed, each with one shape or more."""
    return Results(
        title,
        landscapes,
        np.concatenate([one.analytic for one in outcomes[0]]),
        np.array([np.concatenate([one.variants for one in seed], axis=1) for seed in outcomes]),
        np.array([[one.chosen for one in seed for _ in one.analytic] for seed in outcomes]),
    )


def summary_lines(results: Results) -> list[str]:
    lines = [
        row("ranked by", "chosen", *(f"first {k}" for k in FIRSTS), *(f"worst of first {k}" for k in FIRSTS)),
        row("---", "---:", *("---:" for _ in (*FIRSTS, *FIRSTS))),
        row("hierarchy", "", *map(fine, np.ravel(summary(results.analytic)))),
    ]
    lines += [row(f"corrected, seed {seed}", "", *map(fine, np.ravel(summary(one)))) for seed, one in enumerate(results.corrected)]
    for at, variant in enumerate(VARIANTS):
        medians = np.median([np.ravel(summary(one[at])) for one in results.variants], axis=0)
        lines.append(row(f"{label(variant)}, median of seeds", int((results.chosen == at).sum()), *map(fine, medians)))
    return lines


def shape_lines(results: Results) -> list[str]:
    firsts = " / ".join(map(str, FIRSTS))
    lines = [
        row(
            "shape",
            "schedules",
            f"hierarchy, first {firsts}",
            "corrected, median of seeds",
            "over seeds, first 1; first 8",
            "variants chosen",
        ),
        row("---", "---:", "---:", "---:", "---:", "---"),
    ]
    for at, one in enumerate(results.landscapes):
        corrected = results.corrected[:, at]
        before, after = (" / ".join(map(percent, found)) for found in (results.analytic[at], np.median(corrected, axis=0)))
        spans = [f"{percent(corrected[:, column].min())} to {percent(corrected[:, column].max())}" for column in (0, CHOSEN_BY)]
        counts = Counter(label(VARIANTS[variant]) for variant in results.chosen[:, at])
        chosen = ", ".join(f"{name}: {count}" for name, count in counts.most_common())
        lines.append(row(one.problem.shape, len(one.sample.seconds), before, after, "; ".join(spans), chosen))
    return lines


def seed_line(results: Results) -> str:
    """How much of the change is the seed's."""
    before = summary(results.analytic)[0][CHOSEN_BY]
    after = np.array([summary(one)[0][CHOSEN_BY] for one in results.corrected])
    same = np.isclose(after, before, rtol=0, atol=1e-9)
    lower, higher = int((~same & (after < before)).sum()), int((~same & (after > before)).sum())
    return f"Mean of first 8: lower in {lower} of {len(after)} seeds, the same in {int(same.sum())}, higher in {higher}."


def label(variant: tuple[str, float]) -> str:
    return f"{variant[0]} x{variant[1]:g}"


def settings(parameters: Mapping[str, float]) -> str:
    return ", ".join(f"{name} {value}" for name, value in parameters.items())


def fine(value: float) -> str:
    return f"{100 * value:.2f}"


def section(results: Results) -> list[str]:
    on = "; ".join(dict.fromkeys(one.recorded.measured_on for one in results.landscapes))
    head = [f"## {results.title}", "", f"{len(results.landscapes)} shapes, measured on {on}.", ""]
    changes = [f"First {k}: {Change.of(results, k)}." for k in (8, 1)]
    return [*head, *changes, seed_line(results), "", *summary_lines(results), "", *shape_lines(results), ""]


def report(results: Sequence[Results], seeds: int) -> str:
    earned = earns_its_place([Change.of(one, 8) for one in results])
    verdict = "it earns its place" if earned else "it does not earn its place and is left out"
    lines = ["# A learned correction", "", *RULE, "", f"Verdict: {verdict}.", "", *NOTES, ""]
    lines += [line for one in results for line in section(one)]
    sizes = "; ".join(f"{one.name}: {one.trees} trees, {settings(one.parameters)}" for one in LEARNERS)
    lines += [f"{len(VARIANTS)} variants, {seeds} seeds. {sizes}. All: {settings(SAMPLED)}.", ""]
    version = importlib.import_module("lightgbm").__version__
    lines += [f"Python {platform.python_version()}, numpy {np.__version__}, LightGBM {version}, constants fitted from {FALLBACK}.", ""]
    return "\n".join(lines)


def study_all(
    landscapes: Sequence[Landscape], stored: Sequence[Landscape], hardware: Hardware, seeds: int, processes: int
) -> list[Results]:
    sets = [others(landscapes, one) for one in landscapes] + [[one.sample for one in landscapes]]
    fits = [found for found, _ in fit_all(sets, hardware, packaged_calibration(FALLBACK), processes)]
    folds = leave_one_out(landscapes, fits[:-1], seeds)
    if stored:
        folds += [Fold(landscapes, stored, fits[-1], seed) for seed in range(seeds)]
    with ProcessPoolExecutor(processes, multiprocessing.get_context("spawn")) as pool:
        outcomes = list(pool.map(functools.partial(study, hardware=hardware), folds))
    size = len(landscapes)
    by_seed = [outcomes[seed * size : (seed + 1) * size] for seed in range(seeds)]
    results = [join("Recorded landscape, each shape left out in turn", by_seed, landscapes)]
    if stored:
        results.append(join("Database, learned from all shapes of the landscape", [[one] for one in outcomes[seeds * size :]], stored))
    return results


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--landscape", type=Path, required=True, help="CSV file of recorded times")
    parser.add_argument("--db", help="database of `tuner search --strategy random` with other shapes")
    parser.add_argument("--gpu", default="h200")
    parser.add_argument("--seeds", type=int, default=7)
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--output", type=Path, required=True)
    given = parser.parse_args()
    if importlib.util.find_spec("lightgbm") is None:
        parser.error("this benchmark needs LightGBM, which is not installed; pip install lightgbm")
    hardware, space = load_gpu(given.gpu), load_space("default")
    recorded = [prepare(one, hardware, space) for one in read_csv(given.landscape, hardware.title)]
    recorded = [one for one in recorded if one.is_aligned]
    seen = {one.problem for one in recorded}
    stored = [prepare(one, hardware, space) for one in (read_database(given.db, hardware) if given.db else ())]
    stored = [one for one in stored if one.is_aligned and one.problem not in seen]
    text = report(study_all(recorded, stored, hardware, given.seeds, given.processes), given.seeds)
    publish(given.output, text)


if __name__ == "__main__":
    main()
