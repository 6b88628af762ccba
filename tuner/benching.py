"""From what a person wished for to a suite under way: which products, the GPU that is present, which files."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from cost_models.calibration_files import borrowed, load_calibration
from db.records import Environment
from db.store import open_store
from search_spaces.errors import UserError
from search_spaces.hardware import Hardware
from search_spaces.plain_text import shown
from search_spaces.problem import Problem
from tuner.bench import Benchmark, BenchRow
from tuner.bench_report import bench_csv, bench_markdown
from tuner.environment import DeviceInfo, device_present, load_warnings, require_sound_driver, why_no_device
from tuner.files import check_target, write_file
from tuner.ranking import check_model
from tuner.request import Request
from tuner.search import Progress
from tuner.searching import SearchWish, choose_device, make_request, place_of
from tuner.suite_files import SuiteRow, read_suite
from tuner.workbench import open_workshop


@dataclass(frozen=True, kw_only=True)
class BenchWish:
    """The options of `tuner bench`. search: what to search for, of a problem. output: the start of the names of the files to write."""

    suite: str
    only: str
    output: Path | None
    location: str | None
    search: Callable[[Problem], SearchWish]


@dataclass(frozen=True, kw_only=True)
class BenchResult:
    """faults: a sentence for each product that the machine failed, so that its row stands for a part of its candidates only."""

    rows: tuple[BenchRow, ...]
    environment: Environment
    faults: tuple[str, ...]


def run_bench(wish: BenchWish, say: Callable[[str], None], report: Callable[[Progress], None]) -> BenchResult:
    """Serve the wish. Raises UserError before anything is written where it cannot be served."""
    suite = read_suite(wish.suite)
    rows = only(suite.rows, wish.only)
    first = next((row.problem for row in rows if row.problem), None)
    if first is None:
        raise UserError(f"the tuner does none of the {len(rows)} products; the first: {rows[0].reason}")
    require_sound_driver()
    hardware, device = bench_device(wish.search(first), device_present())
    request = make_request(wish.search(first), hardware, measures=True)
    check_model(request.model)  # or every product would fail of it
    if suite.ignored:
        say(f"columns of {suite.title} that mean nothing here: {', '.join(suite.ignored)}")
    skipped = sum(row.problem is None for row in rows)
    say(f"{len(rows)} products of {suite.title} on {hardware.name}" + (f", {skipped} of them skipped" if skipped else ""))
    if sentence := borrowed(hardware, load_calibration(hardware)):
        say(sentence)
    place = place_of(hardware, device)
    if wish.output:
        _make_folder(wish.output.parent)
        for ending in ("csv", "md"):
            check_target(_file(wish.output, ending), made_from=(wish.suite,))

    def write(done: Sequence[BenchRow]) -> None:
        if wish.output:
            write_file(_file(wish.output, "csv"), bench_csv(done), made_from=(wish.suite,))
            write_file(_file(wish.output, "md"), bench_markdown(done, place, suite.title, _effort(request)), made_from=(wish.suite,))

    with open_workshop() as workshop, open_store(wish.location, say=say) as store:
        for warning in (*store.warnings, *load_warnings(device)):
            say(warning)
        say(f"database: {store.location}")
        work = {"wish": wish.search, "hardware": hardware, "environment": place, "store": store, "workshop": workshop}
        benchmark = Benchmark(rows=rows, **work, say=say, report=report, written=write)  # type: ignore[arg-type]
        done = benchmark.run()
    return BenchResult(rows=done, environment=place, faults=tuple(benchmark.faults))


def _make_folder(folder: Path) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(f"cannot make the folder {folder}: {error.strerror}; name another with --output") from None


def _file(prefix: Path, ending: str) -> Path:
    return prefix.with_name(f"{prefix.name}.{ending}")


def _effort(request: Request) -> str:
    limit = f" and {request.budget_seconds:g} s" if request.budget_seconds else ""
    end = f" until the estimated regret is under {100 * request.regret:g}%" if request.regret else ""
    return f"at most {request.trials} schedules{limit} a product, chosen by {request.strategy}{end}"


def only(rows: Sequence[SuiteRow], pattern: str) -> tuple[SuiteRow, ...]:
    """The rows whose suite, name, shape, types and layout, as one line of text, hold the regular expression."""
    try:
        wanted = re.compile(pattern)
    except re.error as error:
        raise UserError(f"--only {shown(pattern)} is no regular expression: {error}") from None
    found = tuple(row for row in rows if wanted.search(row.text))
    if not found:
        raise UserError(f"--only {pattern!r} leaves none of {len(rows)} products; it is looked for in lines such as {rows[0].text!r}")
    return found


def bench_device(wish: SearchWish, present: DeviceInfo | None) -> tuple[Hardware, DeviceInfo]:
    """What is measured on. Without it there is nothing to compare."""
    if present is None:
        raise UserError(f"bench times schedules beside cuBLAS on {wish.hardware.name}, and {why_no_device()}; `tuner search` needs none")
    hardware, device, sentence = choose_device(wish, present)
    if device is None:
        raise UserError(f"{sentence}; name the GPU that is present, or give --measure-anyway where it is of the same architecture")
    return hardware, device
