"""From stored measurements of a GPU to constants fitted to it: which times count, how far the fit is to be trusted, and what is written.
What is measured for it is `designing`'s."""

from __future__ import annotations

import multiprocessing
import statistics
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass, replace
from datetime import date
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cost_models.calibration import Calibration, constants
from cost_models.calibration_files import calibration_text, load_calibration, user_file
from cost_models.fitting import Sample, fit, geometric_mean, regrets
from cost_models.hierarchy import estimate
from db.reading import keep_silent, open_reader
from db.records import Environment, Landscape
from search_spaces.errors import UserError
from search_spaces.gpu_files import on_device
from search_spaces.hardware import Hardware
from search_spaces.lowering import lower
from search_spaces.problem import Problem
from search_spaces.table import ScheduleTable
from tuner.files import write_file
from tuner.report import table
from tuner.resources import compile_workers

LEAST_PROBLEMS, LEAST_SCHEDULES = 3, 20
HELD_OUT_PROBLEMS = 4  # from so many on, each problem is also predicted by constants that were fitted without it
FIRSTS = (1, 8)  # how many of the model's leaders a regret lets be measured
SIGNIFICANT_DIGITS = 4
FIT_BYTES = 300 * 2**20  # of memory that one process takes to fit


@dataclass(frozen=True, kw_only=True)
class Error:
    """How far an estimate is off on one problem. regrets: of the first FIRSTS. seconds: median of |estimated / measured - 1|."""

    regrets: tuple[float, ...]
    seconds: float


@dataclass(frozen=True, kw_only=True)
class Fitted:
    """Constants fitted to all the samples. `after` has each problem's error under constants fitted without it if `held_out`."""

    start: Calibration
    calibration: Calibration
    problems: tuple[Problem, ...]
    before: tuple[Error, ...]
    in_sample: tuple[Error, ...]
    after: tuple[Error, ...]
    held_out: bool

    @property
    def is_worse(self) -> bool:
        """Whether the constants it started from rank its own data better."""
        return sum(mean_regrets(self.in_sample)) > sum(mean_regrets(self.before))

    @property
    def caution(self) -> str | None:
        """What to say where a shape that was left out is ranked worse than before: too few shapes, or a start that knew them."""
        after, before = (mean_regrets(errors) for errors in (self.after, self.before))
        if not self.held_out or sum(after) <= sum(before):
            return None
        return (
            f"constants fitted to the other shapes rank a shape worse ({_percents(after)} %) than {self.start.name}'s did"
            f" ({_percents(before)} %): more shapes make a better fit, and without the file things are as before"
        )


def mean_regrets(errors: Sequence[Error]) -> tuple[float, ...]:
    """Geometric means over problems, one for each of FIRSTS."""
    return tuple(geometric_mean(column) for column in zip(*(error.regrets for error in errors), strict=True))


def stored_landscapes(hardware: Hardware, location: str | None, say: Callable[[str], None] = keep_silent) -> tuple[Landscape, ...]:
    """The problems with enough times taken on this GPU itself. Refuses what is too little to fit to."""
    with open_reader(location, say) as reader:
        found = reader.landscapes(hardware.name, sms=hardware.sms, least=LEAST_SCHEDULES)
        where = reader.location
    ample = tuple(item for item in found if len(item.median_us) >= LEAST_SCHEDULES and _taken_on(hardware, item.environment))
    if len(ample) < LEAST_PROBLEMS:
        raise UserError(
            f"{where} has {len(ample)} shapes with {LEAST_SCHEDULES} or more schedules measured on {hardware.name}, a fit needs"
            f" {LEAST_PROBLEMS}: run `tuner search` for more shapes, or give --measure where that GPU is present"
        )
    return ample


def _taken_on(hardware: Hardware, environment: Environment) -> bool:
    """False where another GPU was measured under this one's name."""
    place = environment
    if not hardware.device_names:
        return True  # a file that does not say what the driver calls it
    if place.device_name is None or place.sms is None or place.device_memory_bytes is None or place.compute_capability is None:
        return False
    major, minor = map(int, place.compute_capability.split("."))
    device = {"sms": place.sms, "memory_bytes": place.device_memory_bytes}
    return on_device(hardware, place.device_name, compute_capability=(major, minor), **device) is not None


def sample(landscape: Landscape) -> Sample:
    seconds = np.array([*landscape.median_us.values()]) * 1e-6
    return Sample(problem=landscape.problem, table=ScheduleTable.of([*landscape.median_us]), seconds=seconds)


def estimated_seconds(given: Sample, hardware: Hardware, calibration: Calibration) -> NDArray[np.float64]:
    lowering = lower(given.table, given.problem, hardware)
    return estimate(given.table, lowering, given.problem, hardware, calibration).seconds


def error_of(given: Sample, hardware: Hardware, calibration: Calibration) -> Error:
    estimated = estimated_seconds(given, hardware, calibration)
    off = float(np.median(np.abs(estimated / given.seconds - 1)))
    return Error(regrets=regrets(given, estimated, FIRSTS), seconds=off)


def fit_landscapes(landscapes: Sequence[Landscape], hardware: Hardware, day: date) -> Fitted:
    """Constants fitted to these, with words on where they come from, starting from those that stand for this GPU now."""
    workers = compile_workers(FIT_BYTES)
    fitted = fit_samples([sample(landscape) for landscape in landscapes], hardware, load_calibration(hardware), workers)
    return replace(fitted, calibration=replace(fitted.calibration, source=provenance(landscapes, fitted, day)))


def fit_samples(samples: Sequence[Sample], hardware: Hardware, start: Calibration, workers: int) -> Fitted:
    """Fit to all, and where there are enough also to all but one, in `workers` processes."""
    held_out = len(samples) >= HELD_OUT_PROBLEMS
    without = [[other for other in samples if other is not one] for one in samples] if held_out else []
    whole, *others = _fits([samples, *without], hardware, start, workers)
    in_sample = tuple(error_of(one, hardware, whole) for one in samples)
    return Fitted(
        start=start,
        calibration=whole,
        problems=tuple(one.problem for one in samples),
        before=tuple(error_of(one, hardware, start) for one in samples),
        in_sample=in_sample,
        after=tuple(error_of(one, hardware, c) for one, c in zip(samples, others, strict=True)) if held_out else in_sample,
        held_out=held_out,
    )


def _fits(sets: Sequence[Sequence[Sample]], hardware: Hardware, start: Calibration, workers: int) -> list[Calibration]:
    one = partial(_fit_rounded, hardware=hardware, start=start)
    if workers == 1:
        return [*map(one, sets)]
    with ProcessPoolExecutor(min(workers, len(sets)), multiprocessing.get_context("spawn")) as pool:
        return [*pool.map(one, sets)]


def _fit_rounded(samples: Sequence[Sample], hardware: Hardware, start: Calibration) -> Calibration:
    """As the file will have it."""
    found = fit(samples, hardware, start)
    rounded: dict[str, Any] = {name: float(f"{value:.{SIGNIFICANT_DIGITS}g}") for name, value in _values(found).items()}
    return replace(found, name=hardware.name, **rounded)


def provenance(landscapes: Sequence[Landscape], fitted: Fitted, day: date) -> str:
    """The data that the constants came from and how well they do there, in words."""
    places = [landscape.environment for landscape in landscapes]
    kinds = dict.fromkeys(f"{problem.dtype} {problem.layout}" for problem in fitted.problems)
    schedules = sum(len(landscape.median_us) for landscape in landscapes)
    libraries = ", ".join(f"{name} {_all([getattr(place, name) for place in places])}" for name in ("driver", "torch", "triton"))
    errors = fitted.after if fitted.held_out else fitted.in_sample
    how = "each shape by constants fitted to the others" if fitted.held_out else "in sample"
    behind, firsts = _percents(mean_regrets(errors)), " / ".join(map(str, FIRSTS))
    off = statistics.median(error.seconds for error in errors)
    return (
        f"Fitted on {day.isoformat()} to {len(landscapes)} shapes ({', '.join(kinds)}) with {schedules} schedules in all, measured on"
        f" {_all([place.device_name for place in places])} ({libraries}). {how.capitalize()}, the best of the first {firsts}"
        f" is {behind} % behind the best measured, in geometric mean, and times are off by {100 * off:.0f} % in the median;"
        f" by the constants it started from ({fitted.start.name}) it was {_percents(mean_regrets(fitted.before))} %."
    )


def _all(values: Sequence[str | None]) -> str:
    return " and ".join(dict.fromkeys(value or "unknown" for value in values))


def write_calibration(calibration: Calibration, output: Path | None, *, made_from: str | None = None) -> Path:
    """To `output`, else to where `load_calibration` finds it before the package's own; all of it or nothing. made_from: the GPU's file,
    where it was named by one; it is not written over."""
    file = output or user_file(calibration.name)
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(f"the folder of {file} cannot be made ({error.strerror}); name another file with --output") from None
    write_file(file, calibration_text(calibration), made_from=(made_from,))
    return file


def _values(calibration: Calibration) -> dict[str, float]:
    return {name: getattr(calibration, name) for name in constants()}


def fitted_text(fitted: Fitted) -> str:
    """Each constant, and how far the model is off on each problem, before and after."""
    before, after = _values(fitted.start), _values(fitted.calibration)
    moved = [(name, f"{before[name]:.4g}", f"{after[name]:.4g}", f"{after[name] / before[name]:.2f}") for name in after]
    columns = ("constant", f">{fitted.start.name}", ">fitted", ">ratio")
    how = "each by constants fitted to the others" if fitted.held_out else "in sample: each by constants fitted to it, too"
    firsts = " / ".join(map(str, FIRSTS))
    rows = [
        (problem.shape, problem.dtype, problem.layout, *_error_cells(before_it), *_error_cells(after_it))
        for problem, before_it, after_it in zip(fitted.problems, fitted.before, fitted.after, strict=True)
    ]
    rows.append(("geometric mean", "", "", *_mean_cells(fitted.before), *_mean_cells(fitted.after)))
    heads = (f">regret of the first {firsts} before, %", ">times off, %", f">{firsts} after, %", ">times off, %")
    title = f"\nregret: how far the best of the model's first {firsts} is behind the best measured; after: {how}"
    return table(columns, moved) + "\n" + table(("shape", "dtype", "layout", *heads), rows, title)


def _error_cells(error: Error) -> tuple[str, str]:
    return _percents(error.regrets), f"{100 * error.seconds:.0f}"


def _mean_cells(errors: Sequence[Error]) -> tuple[str, str]:
    return _percents(mean_regrets(errors)), f"{100 * statistics.median(error.seconds for error in errors):.0f}"


def _percents(shares: Sequence[float]) -> str:
    return " / ".join(f"{100 * share:.1f}" for share in shares)


def fitted_json(fitted: Fitted) -> dict[str, object]:
    errors = zip(fitted.problems, fitted.before, fitted.in_sample, fitted.after, strict=True)
    return {
        "gpu": fitted.calibration.name,
        "start": fitted.start.name,
        "source": fitted.calibration.source,
        "constants": {"before": _values(fitted.start), "after": _values(fitted.calibration)},
        "firsts": list(FIRSTS),
        "held_out": fitted.held_out,
        "worse_than_start": fitted.is_worse,
        "problems": [
            {"problem": asdict(problem), "before": asdict(before), "in_sample": asdict(inside), "after": asdict(after)}
            for problem, before, inside, after in errors
        ],
    }
