"""From what a person wished for to a search: which GPU is there, what can be measured on it, which database, and what is to be said
about it."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from db.records import Environment
from search_spaces.errors import UserError
from search_spaces.gpu_files import match_device, on_device
from search_spaces.hardware import Hardware
from search_spaces.plain_text import shown
from search_spaces.problem import Problem
from search_spaces.space import choose_space
from tuner.environment import DeviceInfo, device_present, environment, load_warnings, require_sound_driver, why_no_device
from tuner.measuring import MeasureSettings, MeasuringProcess
from tuner.request import Request
from tuner.strategies import stops_early, wants_all
from tuner.workbench import open_workbench

if TYPE_CHECKING:
    from tuner.search import Progress, SearchResult

COMPILE_TRIALS, MEASURE_TRIALS = 32, 48  # what --trials stands for when it is not given; on an H200, some ten seconds
DEFAULT_REGRET = 0.01
LONGEST_DIGITS = 9  # of a budget before its point: thirty years in seconds


@dataclass(frozen=True, kw_only=True)
class SearchWish:
    """The options of `tuner search` as they were typed."""

    problem: Problem
    hardware: Hardware
    space: str
    families: tuple[str, ...]
    axes: tuple[str, ...] = ()
    model: str
    strategy: str
    trials: int
    budget: str
    seed: int
    measure: bool
    measure_anyway: bool
    location: str | None
    regret: str = ""
    anew: bool = False


def parse_budget(text: str) -> float | None:
    """`30s`, `5m`, `1h` or bare seconds -> seconds; empty -> None."""
    if not text:
        return None
    match = re.fullmatch(r"([0-9]+(?:\.[0-9]+)?)([smh]?)", text.strip())
    if match and len(match[1].partition(".")[0].lstrip("0")) > LONGEST_DIGITS:
        raise UserError(f"budget {shown(text)} has more than {LONGEST_DIGITS} digits; leave it out for no limit")
    if not match or float(match[1]) == 0:
        raise UserError(f"budget {shown(text)} is no time above 0; give seconds or a number with s, m or h, such as 30s")
    return float(match[1]) * {"": 1, "s": 1, "m": 60, "h": 3600}[match[2]]


def parse_regret(text: str, strategy: str) -> float:
    """`1%` or `0.01` -> 0.01, from 0 on and below 1. Empty is 1 % for a strategy that looks for the best, and 0 for one that does not."""
    if not text:
        return DEFAULT_REGRET if stops_early(strategy) else 0.0
    match = re.fullmatch(r"([0-9]+\.?[0-9]*|\.[0-9]+)\s*(%?)", text.strip())
    share = float(match[1]) / (100 if match[2] else 1) if match else 1.0
    if share >= 1:
        raise UserError(
            f"regret {shown(text)} is no share below 1; give a percentage such as 1%, a share such as 0.01, or 0 for no such end"
        )
    return share


def choose_strategy(name: str, *, measures: bool) -> str:
    """`auto` hedges against what measuring may show; where nothing is measured, the model's order is the whole answer."""
    return "ranked" if name == "auto" and not measures else name


def choose_device(wish: SearchWish, device: DeviceInfo | None) -> tuple[Hardware, DeviceInfo | None, str]:
    """The hardware to search for, the device to measure on if any, and the sentence that says why."""
    if not wish.measure:
        return wish.hardware, None, "not measuring: --no-measure"
    if device is None:
        return wish.hardware, None, f"{why_no_device()}: candidates for {wish.hardware.name} are ranked and compiled, not measured"
    capability = device.compute_capability
    present = on_device(wish.hardware, device.name, sms=device.sms, memory_bytes=device.memory_bytes, compute_capability=capability)
    if present is not None and present.name == wish.hardware.name:
        return present, device, f"measuring on {device.name} ({device.sms} SMs, driver {device.driver})"
    present = present or match_device(device.name, sms=device.sms, memory_bytes=device.memory_bytes, compute_capability=capability)
    what = f"{device.name} ({present.name})" if present else f"{device.name}, which has no file here"
    same_chip = capability == wish.hardware.compute_capability
    if not same_chip or not wish.measure_anyway:
        how = _how_to_measure(wish.hardware, device, known=present is not None) if same_chip else ""
        return wish.hardware, None, f"the GPU present is {what}, not {wish.hardware.name}: nothing is measured{how}"
    return wish.hardware, device, f"measuring on {what} though {wish.hardware.name} was named"


def _how_to_measure(hardware: Hardware, device: DeviceInfo, *, known: bool) -> str:
    """What lets the GPU that is present be measured under this file, which is for a chip of its kind."""
    if not hardware.device_names:
        return f"; the file of {hardware.name} has no line device_names: add `device_names: [{device.name}]` where it describes this GPU"
    return "" if known else f"; write a file for it that has the line `device_names: [{device.name}]`, and pass it as --gpu FILE"


def place_of(hardware: Hardware, device: DeviceInfo | None) -> Environment:
    """What results are recorded under: the machine, and the file that says what the GPU is."""
    return replace(environment(hardware.name, device), gpu_figures=hardware.figures_hash or None)


def make_request(wish: SearchWish, hardware: Hardware, *, measures: bool) -> Request:
    """What the wish comes to on this hardware."""
    strategy = choose_strategy(wish.strategy, measures=measures)
    space = choose_space(wish.space, wish.families, wish.axes)
    return Request(
        problem=wish.problem,
        hardware=hardware,
        space=space,
        model=wish.model,
        strategy=strategy,
        trials=wish.trials or (space.size if wants_all(strategy) else MEASURE_TRIALS if measures else COMPILE_TRIALS),
        budget_seconds=parse_budget(wish.budget),
        regret=parse_regret(wish.regret, strategy),
        seed=wish.seed,
        anew=wish.anew,
    )


def run_search(wish: SearchWish, say: Callable[[str], None], report: Callable[[Progress], None]) -> SearchResult:
    """Serve the wish. Raises UserError before anything is written where it cannot be served, and MachineFault where a GPU is present that
    its driver does not let anyone use."""
    if wish.measure:
        require_sound_driver()
    hardware, device, sentence = choose_device(wish, device_present())
    request = make_request(wish, hardware, measures=device is not None)

    def measuring(cache: Path) -> MeasuringProcess:
        return MeasuringProcess(wish.problem, hardware, MeasureSettings(), cache_dir=cache, wait=say)

    with open_workbench(measuring if device else None) as bench:
        # what these need takes a second to import, which the bench has use for
        from db.store import open_store
        from tuner.ranking import rank
        from tuner.search import search

        ranking = rank(request.problem, request.hardware, request.space, request.model, request.seed)
        with open_store(wish.location, say=say) as store:
            say(f"{wish.problem.text} on {hardware.name}: {ranking.scope}")
            say(sentence)
            for warning in (*store.warnings, *(load_warnings(device) if device else ())):
                say(warning)
            say(f"database: {store.location}")
            return search(request, ranking, store, place_of(hardware, device), bench, report=report, say=say)
