"""A search from end to end with a fake measuring process: every outcome is a row, killing loses nothing, the same command goes on."""

from __future__ import annotations

import json
import os
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, ClassVar

import pytest

from db.best import Scope
from db.reading import open_reader
from db.records import Environment, Measurement, RunInfo, is_moments
from db.store import Store, open_store
from search_spaces.errors import MachineFault, UserError
from search_spaces.gpu_files import load_gpu
from search_spaces.hardware import Hardware
from search_spaces.problem import Problem
from search_spaces.schedule import Schedule
from search_spaces.space import parse_space
from tuner.compiling import Compiled, CompileJob, CompilePool, CompileStatus
from tuner.environment import DeviceInfo
from tuner.measuring import MeasureSettings, MeasuringProcess
from tuner.outcomes import Run
from tuner.ranking import rank
from tuner.report import search_json, search_text
from tuner.search import Progress, Request, SearchResult, search
from tuner.searching import SearchWish, choose_device, choose_strategy, parse_budget, parse_regret
from tuner.stopping import Regret
from tuner.warm_start import nearby_rows
from tuner.workbench import open_workbench

TESTS = Path(__file__).parent
FAKE = (sys.executable, str(TESTS / "fake_measure_process.py"))
HERE = Environment(
    gpu="h200-sxm-141gb", triton="3.9.0", python="3.11", code_version="0", device_name="NVIDIA H200", sms=132, device_memory_bytes=1
)
PROBLEM = Problem(m=1024, n=1024, k=512)
NEIGHBOUR = Problem(m=1024, n=2048, k=512)
# group_m chooses what the fake does: 2 kills it, 4 is a wrong answer
SPACE = "pointer: {cta_m: [32, 64], cta_n: [32, 64], cta_k: 32, warps: 4, stages: 2, group_m: [1, 2, 4, 16]}"
WITHOUT_CRASHES = SPACE.replace("[1, 2, 4, 16]", "[1, 4, 16]")


def run(
    database: Path,
    *,
    space: str = SPACE,
    report: Callable[[Progress], None] = lambda _: None,
    measured: bool = True,
    problem: Problem = PROBLEM,
    say: Callable[[str], None] = lambda _: None,
    **request: object,
) -> SearchResult:
    hardware = load_gpu("h200")
    asked = Request(problem=problem, hardware=hardware, space=parse_space("small", space), **request)  # type: ignore[arg-type]
    ranking = rank(problem, hardware, asked.space)

    def measuring(cache: Path) -> MeasuringProcess:
        settings = MeasureSettings(command=FAKE, candidate_seconds=20.0)
        return MeasuringProcess(problem, hardware, settings, cache_dir=cache)

    with open_store(database) as store, open_workbench(measuring if measured else None) as bench:
        return search(asked, ranking, store, HERE, bench, report=report, say=say)


@pytest.fixture(scope="module")
def searched(tmp_path_factory: pytest.TempPathFactory) -> tuple[SearchResult, Path]:
    database = tmp_path_factory.mktemp("search") / "t.db"
    return run(database), database


def test_every_schedule_becomes_a_row(searched: tuple[SearchResult, Path]) -> None:
    result, database = searched
    with open_reader(database) as reader:
        rows = list(reader.records(run_id=result.run_id))
    assert len(rows) == len(result.outcomes) == 16
    by_kind: dict[int, set[str]] = {}
    for row in rows:
        by_kind.setdefault(row.schedule.group_m, set()).add(row.measurement.status)
    assert by_kind == {1: {"ok"}, 2: {"crashed"}, 4: {"wrong_answer"}, 16: {"ok"}}
    assert all(
        row.measurement.shared_memory_bytes == row.estimate.shared_memory_bytes for row in rows if row.measurement.shared_memory_bytes
    )


def test_the_winner_is_the_fastest_that_was_right(searched: tuple[SearchResult, Path]) -> None:
    result, database = searched
    assert result.winner is not None
    assert result.winner.schedule.cta[:2] == (64, 64)
    assert result.winner.schedule.group_m in (1, 16)
    with open_reader(database) as reader:
        answer = reader.best(PROBLEM, Scope(gpu="h200-sxm-141gb", sms=132))
    assert answer is not None
    assert answer.measured
    assert answer.record.schedule == result.winner.schedule
    assert answer.finalist is not None
    assert answer.finalist.eager_us == pytest.approx(answer.finalist.median_us + 10)


def test_the_same_search_again_measures_nothing(searched: tuple[SearchResult, Path]) -> None:
    first, database = searched
    again = run(database)
    assert {outcome.from_store for outcome in again.outcomes if not is_moments(outcome.measurement.status)} == {True}
    assert again.winner is not None
    assert first.winner is not None
    assert again.winner.schedule == first.winner.schedule


@pytest.mark.usefixtures("flaky")
def test_again_measures_what_is_known(tmp_path: Path) -> None:
    space = "pointer: {cta_m: [32, 64], cta_n: 32, cta_k: 32, warps: 4, stages: 2, group_m: 1}"
    run(tmp_path / "t.db", space=space)
    again = run(tmp_path / "t.db", space=space, anew=True)
    assert [outcome.from_store for outcome in again.outcomes] == [False, False]
    with open_reader(tmp_path / "t.db") as reader:
        assert reader.stats().trials == {"ok": 4}


def test_trials_are_the_most_that_is_measured(tmp_path: Path) -> None:
    assert len(run(tmp_path / "t.db", trials=3).outcomes) == 3


def test_a_budget_ends_the_search(tmp_path: Path) -> None:
    """Compiling alone takes longer than this; the run still ends as finished, with nothing half-written."""
    begin = time.monotonic()
    result = run(tmp_path / "t.db", budget_seconds=4.5, space=WITHOUT_CRASHES.replace("[32, 64]", "[16, 32, 64, 128]"))
    assert len(result.outcomes) < 64
    assert time.monotonic() - begin < 25
    with open_reader(tmp_path / "t.db") as reader:
        assert [r.status for r in reader.runs()] == ["finished"]


def test_without_a_gpu_candidates_are_compiled_and_said_to_be_unmeasured(tmp_path: Path) -> None:
    result = run(tmp_path / "t.db", measured=False, trials=2)
    assert not result.measured
    assert result.found
    assert result.winner is None
    assert [o.measurement.status for o in result.outcomes] == ["compiled", "compiled"]
    with open_reader(tmp_path / "t.db") as reader:
        answer = reader.best(PROBLEM, Scope(gpu="h200-sxm-141gb", sms=132))
    assert answer is not None
    assert not answer.measured


def test_schedules_that_launch_the_same_binary_are_measured_once(tmp_path: Path) -> None:
    """16 rows of tiles: groups of 16 and 17 are the same raster, but 17 is no power of two that pruning knows as a twin."""
    space = "pointer: {cta_m: 64, cta_n: 64, cta_k: 32, warps: 4, stages: 2, group_m: [16, 17]}"
    statuses = sorted(outcome.measurement.status for outcome in run(tmp_path / "t.db", space=space).outcomes)
    assert statuses == ["duplicate", "ok"]


@pytest.mark.parametrize("strategy", ["auto", "ranked", "local", "exhaustive", "random", "tpe"])
def test_every_strategy_drives_a_search(tmp_path: Path, strategy: str) -> None:
    result = run(tmp_path / "t.db", strategy=strategy, trials=6)
    assert len(result.outcomes) == 6
    assert len({outcome.schedule for outcome in result.outcomes}) == 6


SMALLER = "pointer: {cta_m: [16, 32, 64], cta_n: [16, 32, 64], cta_k: 32, warps: 4, stages: 2, group_m: [1, 16]}"
WIDE = "pointer: {cta_m: [16, 32, 64, 128], cta_n: [16, 32, 64, 128], cta_k: 32, warps: 4, stages: 2, group_m: [1, 16]}"


@pytest.fixture(scope="module")
def stopped(tmp_path_factory: pytest.TempPathFactory) -> tuple[SearchResult, list[Progress]]:
    seen: list[Progress] = []
    database = tmp_path_factory.mktemp("stopped") / "t.db"
    return run(database, space=WIDE, report=seen.append, regret=0.5), seen


def test_a_search_stops_where_little_is_expected_of_the_rest(stopped: tuple[SearchResult, list[Progress]]) -> None:
    """Of 26 schedules, after the 16 that are the least, what is left is not expected to take half the time of the best."""
    result, seen = stopped
    assert result.regret.stopped
    assert result.regret.estimated is not None
    assert result.regret.estimated < 0.5
    assert len(result.outcomes) == 16
    assert seen[0].regret is None
    assert seen[-1].regret == result.regret.estimated


def test_the_result_says_why_it_stopped_and_what_is_left(stopped: tuple[SearchResult, list[Progress]]) -> None:
    result, _ = stopped
    text, facts = search_text(result, 10), search_json(result, 10)
    assert f"stopped: estimated regret {result.regret.estimated:.1%} is under 50%" in text
    assert "16 measured" in text
    assert (facts["measurements"], facts["regret_bound"], facts["stopped_by_regret"]) == (16, 0.5, True)
    assert facts["estimated_regret"] == result.regret.estimated


@pytest.mark.usefixtures("flaky")
def test_without_a_bound_every_trial_is_used_and_the_regret_left_is_said(tmp_path: Path) -> None:
    """All 8 schedules were tried, so that nothing is left to regret."""
    result = run(tmp_path / "t.db", space=SPACE.replace("[1, 2, 4, 16]", "[1, 4]"))
    assert result.regret == Regret(estimated=0.0, bound=0.0, stopped=False)
    assert "estimated regret 0.0%: by so much" in search_text(result, 10)


def test_what_was_lost_to_the_moment_may_still_be_the_best(searched: tuple[SearchResult, Path]) -> None:
    """Four schedules killed the measuring process: of them nothing is known, so that there is something left to regret."""
    assert searched[0].regret.estimated is not None
    assert searched[0].regret.estimated > 0


def test_compiling_alone_estimates_no_regret_and_stops_for_none(tmp_path: Path) -> None:
    result = run(tmp_path / "t.db", measured=False, trials=2, regret=0.9)
    assert result.regret == Regret(estimated=None, bound=0.0, stopped=False)
    assert len(result.outcomes) == 2
    assert search_json(result, 2)["estimated_regret"] is None


def test_the_winner_of_a_shape_nearby_is_tried_first(tmp_path: Path) -> None:
    """A tile that the model ranks behind the others: alone in its space it won on the other shape."""
    last = "pointer: {cta_m: 16, cta_n: 32, cta_k: 32, warps: 4, stages: 2, group_m: 1}"
    first = run(tmp_path / "t.db", space=last)
    assert first.winner is not None
    warm = run(tmp_path / "t.db", space=SMALLER, trials=2, problem=NEIGHBOUR)
    cold = run(tmp_path / "empty.db", space=SMALLER, trials=2, problem=NEIGHBOUR)
    assert first.winner.schedule in {outcome.schedule for outcome in warm.outcomes}
    assert first.winner.schedule not in {outcome.schedule for outcome in cold.outcomes}


def nearby(database: Path, problem: Problem) -> tuple[int, ...]:
    hardware = load_gpu("h200")
    with open_reader(database) as reader:
        return nearby_rows(reader, rank(problem, hardware, parse_space("small", SPACE)))


def test_winners_nearby_are_those_of_like_problems_within_a_factor_of_eight(searched: tuple[SearchResult, Path]) -> None:
    result, database = searched
    assert result.winner is not None
    hardware = load_gpu("h200")
    row = rank(NEIGHBOUR, hardware, parse_space("small", SPACE)).row_of(result.winner.schedule)
    assert nearby(database, NEIGHBOUR) == (row,)
    assert len(nearby(database, Problem(m=8 * 1024, n=1024, k=512))) == 1
    assert nearby(database, Problem(m=16 * 1024, n=1024, k=512)) == ()
    assert nearby(database, PROBLEM) == ()
    assert nearby(database, Problem(m=1024, n=2048, k=512, layout="nn")) == ()


@pytest.mark.parametrize(
    ("text", "share"), [("1%", 0.01), ("0.01", 0.01), (".5 %", 0.005), ("0", 0.0), ("0%", 0.0), (" 2.5% ", 0.025), ("5.%", 0.05)]
)
def test_regret_is_a_share_or_a_percentage(text: str, share: float) -> None:
    assert parse_regret(text, "auto") == pytest.approx(share)


@pytest.mark.parametrize("text", ["1", "100%", "-1%", "one", "%", "1e-2", "nan", "1%%"])
def test_regrets_that_make_no_sense_are_refused(text: str) -> None:
    with pytest.raises(UserError, match=r"regret .* is no share below 1; give a percentage such as 1%"):
        parse_regret(text, "auto")


@pytest.mark.parametrize(("strategy", "share"), [("auto", 0.01), ("ranked", 0.01), ("exhaustive", 0.0), ("random", 0.0)])
def test_unless_told_only_strategies_that_look_for_the_best_stop(strategy: str, share: float) -> None:
    assert parse_regret("", strategy) == share


@pytest.mark.parametrize(
    ("name", "measures", "chosen"), [("auto", True, "auto"), ("auto", False, "ranked"), ("tpe", False, "tpe"), ("random", True, "random")]
)
def test_auto_is_the_model_s_order_where_nothing_is_measured(name: str, measures: bool, chosen: str) -> None:
    assert choose_strategy(name, measures=measures) == chosen


def test_progress_counts_up(tmp_path: Path) -> None:
    seen: list[Progress] = []
    run(tmp_path / "t.db", report=seen.append, trials=4, budget_seconds=100.0)
    assert seen[-1].compiled == 4
    assert seen[-1].measured + seen[-1].failed == 4
    assert seen[-1].seconds_left is not None


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGTERM])
def test_a_killed_search_keeps_what_it_measured_and_goes_on(tmp_path: Path, how: signal.Signals) -> None:
    database = tmp_path / "t.db"
    code = f"""
import signal, sys; sys.path[:0] = [{str(TESTS.parent)!r}, {str(TESTS)!r}]
signal.signal(signal.SIGINT, signal.default_int_handler)  # whoever runs the tests may ignore it
signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))  # as the command line does
from pathlib import Path
from test_search import run
run(Path({str(database)!r}), space={WITHOUT_CRASHES!r}, report=lambda p: print(p.measured + p.failed, flush=True))
"""
    process = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    assert process.stdout is not None
    shown = 0
    for line in process.stdout:
        shown = int(line)
        if shown >= 5:
            process.send_signal(how)
            break
    process.stdout.close()
    process.wait(timeout=30)
    with open_reader(database) as reader:
        kept = sum(reader.stats().trials.values())
        statuses = [r.status for r in reader.runs()]
    assert kept >= shown
    assert statuses == ["interrupted"]
    again = run(database, space=WITHOUT_CRASHES)
    assert sum(outcome.from_store for outcome in again.outcomes) == kept
    assert len(again.outcomes) == 12
    with sqlite3.connect(database) as connection:
        twice = connection.execute("SELECT COUNT(*) FROM trial GROUP BY cta_m, cta_n, group_m HAVING COUNT(*) > 1").fetchall()
    connection.close()
    assert twice == []


def test_the_request_is_kept_with_the_run(searched: tuple[SearchResult, Path]) -> None:
    result, database = searched
    with open_reader(database) as reader:
        request = json.loads(reader.runs()[0].request)
    assert request["problem"]["m"] == 1024
    assert request["gpu"] == "h200-sxm-141gb"
    assert result.run_id == 1


def test_interrupting_leaves_no_process(tmp_path: Path) -> None:
    import psutil

    code = f"""
import signal, sys; sys.path[:0] = [{str(TESTS.parent)!r}, {str(TESTS)!r}]
signal.signal(signal.SIGINT, signal.default_int_handler)  # whoever runs the tests may ignore it
from pathlib import Path
from test_search import run
run(Path({str(tmp_path / "t.db")!r}), report=lambda p: print(p.compiled, flush=True))
"""
    process = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
    assert process.stdout is not None
    process.stdout.readline()
    family = psutil.Process(process.pid).children(recursive=True)
    os.kill(process.pid, signal.SIGINT)
    process.stdout.close()
    process.wait(timeout=30)
    gone, alive = psutil.wait_procs(family, timeout=10)
    assert gone
    assert [p for p in alive if p.is_running() and p.status() != psutil.STATUS_ZOMBIE] == []


FEW = "pointer: {cta_m: [32, 64], cta_n: [32, 64], cta_k: 32, warps: 4, stages: 2, group_m: GROUPS}"


class Flaky(CompilePool):
    """Compilers that need no time, of whose answers some are replaced: by the number of the answer, from 1."""

    def __init__(self, workers: int, limit_seconds: float, cache_dir: Path) -> None:
        super().__init__(workers, limit_seconds, cache_dir, compile_function="faulty_compilers:without_fault")

    answered = 0
    instead: ClassVar[dict[int, Compiled]] = {}
    submitted: ClassVar[list[int]] = []

    def submit(self, jobs: Sequence[CompileJob]) -> None:
        Flaky.submitted.append(len(jobs))
        super().submit(jobs)

    def poll(self, timeout_seconds: float) -> list[tuple[CompileJob, Compiled]]:
        found = []
        for job, compiled in super().poll(timeout_seconds):
            Flaky.answered += 1
            found.append((job, Flaky.instead.get(Flaky.answered, compiled)))
        return found


@pytest.fixture
def flaky(monkeypatch: pytest.MonkeyPatch) -> type[Flaky]:
    monkeypatch.setenv("PYTHONPATH", f"{TESTS.parent}{os.pathsep}{TESTS}")
    monkeypatch.setattr("tuner.workbench.CompilePool", Flaky)
    Flaky.answered, Flaky.instead, Flaky.submitted = 0, {}, []
    return Flaky


def lost(message: str, status: CompileStatus = "machine_fault", **others: Any) -> Compiled:
    return Compiled(status=status, message=message, log=f"{message}\nand so on", seconds=0.1, kernels=(), **others)


def test_what_the_machine_failed_once_is_tried_again(tmp_path: Path, flaky: type[Flaky]) -> None:
    """Two of four candidates meet a moment without memory; all four are compiled in the end, and nothing else is stored."""
    flaky.instead = {1: lost("no memory"), 3: lost("no reason", "compile_failed")}
    result = run(tmp_path / "t.db", space=FEW.replace("GROUPS", "1"), measured=False)
    assert flaky.submitted == [4, 2]
    assert [outcome.measurement.status for outcome in result.outcomes] == ["compiled"] * 4
    assert result.fault == ""
    with open_reader(tmp_path / "t.db") as reader:
        assert reader.stats().trials == {"compiled": 4}


def test_a_run_that_loses_more_than_a_third_to_the_machine_says_so(tmp_path: Path, flaky: type[Flaky]) -> None:
    """Two of four fail twice. What there is is shown, the run does not count as finished, and the next one does better."""
    flaky.instead = dict.fromkeys((1, 2, 5, 6), lost("OSError: [Errno 12] Cannot allocate memory: '/tmp/a1'"))
    result = run(tmp_path / "t.db", space=FEW.replace("GROUPS", "1"), measured=False)
    reason = "2 machine_fault: OSError: [Errno 12] Cannot allocate memory: '/tmp/a1'"
    assert result.fault.startswith(f"2 of 4 candidates failed for reasons that are not their own ({reason}): the result stands for the")
    assert reason in search_text(result, 10).splitlines()
    facts = search_json(result, 10)
    assert facts["failures"] == [{"status": "machine_fault", "reason": reason.partition(": ")[2], "count": 2}]
    assert facts["machine_fault"] == result.fault
    with open_reader(tmp_path / "t.db") as reader:
        assert [found.status for found in reader.runs()] == ["interrupted"]
        logs = [record.measurement.compile_log for record in reader.records() if record.measurement.status == "machine_fault"]
    assert logs == ["OSError: [Errno 12] Cannot allocate memory: '/tmp/a1'\nand so on"] * 2
    flaky.instead = {}
    again = run(tmp_path / "t.db", space=FEW.replace("GROUPS", "1"), measured=False)
    assert [outcome.measurement.status for outcome in again.outcomes] == ["compiled"] * 4


def test_a_third_is_borne(tmp_path: Path, flaky: type[Flaky]) -> None:
    flaky.instead = dict.fromkeys((1, 5), lost("no memory"))
    result = run(tmp_path / "t.db", space=FEW.replace("GROUPS", "1"), measured=False)
    assert (result.fault, [outcome.measurement.status for outcome in result.outcomes].count("machine_fault")) == ("", 1)


def test_what_a_schedule_does_itself_is_no_loss(tmp_path: Path, flaky: type[Flaky]) -> None:
    """Refused once is refused for good, and is known from then on."""
    flaky.instead = dict.fromkeys((1, 2, 3), lost("C7602", "refused"))
    result = run(tmp_path / "t.db", space=FEW.replace("GROUPS", "1"), measured=False)
    assert (result.fault, flaky.submitted) == ("", [4])
    assert "3 refused: C7602" in search_text(result, 10)


def test_one_that_was_tried_alone_already_is_not_tried_a_third_time(tmp_path: Path, flaky: type[Flaky]) -> None:
    flaky.instead = {2: lost("not compiled in 60 s", "compile_timeout", alone=True)}
    run(tmp_path / "t.db", space=FEW.replace("GROUPS", "1"), measured=False)
    assert flaky.submitted == [4]


def test_where_nothing_can_be_compiled_the_run_ends_at_once(tmp_path: Path, flaky: type[Flaky]) -> None:
    flaky.instead = dict.fromkeys(range(5, 100), lost("OSError: [Errno 24] Too many open files"))
    with pytest.raises(MachineFault, match=r"the last 8 candidates could not be compiled \(OSError: .Errno 24. Too many open files\)"):
        run(tmp_path / "t.db", measured=False)
    with open_reader(tmp_path / "t.db") as reader:
        assert reader.stats().trials == {"compiled": 4}
        assert [found.status for found in reader.runs()] == ["interrupted"]


@pytest.mark.usefixtures("flaky")
def test_a_measurement_that_the_machine_failed_is_repeated(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A neighbour has the memory while the first two are measured. They come again last, without being compiled again."""
    measure, asked = MeasuringProcess.measure, []

    def short_of_memory(process: MeasuringProcess, schedule: Schedule, best_us: float | None) -> Measurement:
        asked.append(schedule)
        if len(asked) <= 2:
            return Measurement(status="machine_fault", message="CUDA out of memory")
        return measure(process, schedule, best_us)

    monkeypatch.setattr(MeasuringProcess, "measure", short_of_memory)
    result = run(tmp_path / "t.db", space=FEW.replace("GROUPS", "1"))
    assert set(asked[4:]) == set(asked[:2])
    assert {outcome.measurement.status for outcome in result.outcomes} <= {"ok", "slow"}
    assert len(result.outcomes) == 4


@pytest.mark.usefixtures("flaky")
def test_a_run_is_never_left_running(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object) -> None:
        raise RuntimeError("before the first candidate")

    monkeypatch.setattr("tuner.search.nearby_rows", broken)
    with pytest.raises(RuntimeError, match="before the first candidate"):
        run(tmp_path / "t.db", measured=False)
    with open_reader(tmp_path / "t.db") as reader:
        assert [found.status for found in reader.runs()] == ["interrupted"]


@pytest.mark.usefixtures("flaky")
def test_a_budget_that_is_over_before_anything_is_measured_says_why(tmp_path: Path) -> None:
    result = run(tmp_path / "t.db", budget_seconds=0.001, measured=False)
    assert "not measured: 0 of 16 candidates compiled" in search_text(result, 10)
    assert result.notes == (
        "the budget of 0.001 s was over before any candidate was done, as starting up takes some seconds; give a longer one",
    )
    assert result.notes[0] in search_text(result, 10)


@pytest.mark.usefixtures("flaky")
def test_candidates_are_counted_against_those_that_were_to_be_tried(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Time runs out after the second answer of twelve."""
    monkeypatch.setattr(Run, "out_of_time", property(lambda run: run.compiled >= 2))
    result = run(tmp_path / "t.db", budget_seconds=60.0, measured=False, trials=12)
    done = len(result.outcomes)
    assert 2 <= done < 12
    assert f"not measured: {done} of 12 candidates compiled" in search_text(result, 10)
    assert f"the budget of 60 s was over with {done} of 12 candidates done" in search_text(result, 10)


def test_the_cache_holds_no_more_than_what_is_needed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of each compiled candidate that is only ranked nothing stays; what is measured stays while it leads."""
    most: list[int] = []

    def count(_: Progress) -> None:
        most.append(sum(len(list(folder.glob("*.cubin"))) for folder in cache.iterdir() if folder.is_dir()))

    cache = tmp_path / "cache"
    monkeypatch.setattr("tuner.workbench.temporary_folder", lambda: nullcontext(cache))
    cache.mkdir()
    run(tmp_path / "t.db", measured=False, report=count, trials=8)
    assert max(most) <= 4  # those that finished since the last look, and those under way
    assert list(cache.glob("*/*.cubin")) == []


class Waiting(Store):
    """A store where an earlier search of the product goes on for three looks, and then has measured."""

    looks = 0

    def earlier_running(self, run_id: int) -> RunInfo | None:
        Waiting.looks += 1
        started = datetime(2026, 11, 30, tzinfo=UTC)
        return RunInfo(id=run_id - 1, request="{}", status="running", started=started, pid=1234) if Waiting.looks <= 3 else None


@pytest.mark.usefixtures("flaky")
def test_the_second_of_two_searches_waits_for_the_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    space, said = FEW.replace("GROUPS", "1"), []
    run(tmp_path / "t.db", space=space, measured=False)
    monkeypatch.setattr("db.store.Store", Waiting)
    monkeypatch.setattr(Waiting, "looks", 0)
    second = run(tmp_path / "t.db", space=space, measured=False, say=said.append)
    assert said == ["another search of this product is under way (process 1234): waiting for it; its results answer this one"]
    assert all(outcome.from_store for outcome in second.outcomes)
    assert Waiting.looks == 4


@pytest.mark.usefixtures("flaky")
def test_one_that_measures_anew_waits_for_nobody(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("db.store.Store", Waiting)
    monkeypatch.setattr(Waiting, "looks", 0)
    run(tmp_path / "t.db", space=FEW.replace("GROUPS", "1"), measured=False, anew=True)
    assert Waiting.looks == 0


@pytest.mark.usefixtures("flaky")
def test_results_of_a_part_of_the_gpu_are_those_of_a_part(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The process may use 66 SMs of 132: what the whole card reached is no answer here, and what this reaches is none there."""
    space, said = FEW.replace("GROUPS", "1"), []
    whole = run(tmp_path / "t.db", space=space)
    monkeypatch.setattr(MeasuringProcess, "sms", 66, raising=False)
    half = run(tmp_path / "t.db", space=space, say=said.append)
    assert said == ["the measuring process may use 66 of 132 SMs: results are those of 66 SMs, not of the whole GPU"]
    assert not any(outcome.from_store for outcome in half.outcomes)
    assert all(outcome.from_store for outcome in run(tmp_path / "t.db", space=space).outcomes)
    with open_reader(tmp_path / "t.db") as reader:
        assert {record.environment.sms for record in reader.records(run_id=whole.run_id)} == {132}
        assert {record.environment.sms for record in reader.records(run_id=half.run_id)} == {66}


def test_that_a_file_names_no_device_is_said_with_the_line_to_write() -> None:
    device = DeviceInfo(
        name="NVIDIA Thing",
        uuid="GPU-1",
        sms=132,
        memory_bytes=1,
        compute_capability=(9, 0),
        driver="570",
        cuda="12.8",
        sm_clock_mhz=None,
        memory_clock_mhz=None,
        power_limit_w=None,
        others=0,
        busy_percent=0,
    )
    assert how_measured(replace(load_gpu("h200"), name="mine", device_names=()), device).endswith(
        "nothing is measured; the file of mine has no line device_names: add `device_names: [NVIDIA Thing]` where it describes this GPU"
    )
    assert how_measured(load_gpu("h200"), device).endswith(
        "nothing is measured; write a file for it that has the line `device_names: [NVIDIA Thing]`, and pass it as --gpu FILE"
    )
    assert how_measured(load_gpu("a100"), device).endswith("not a100-sxm-80gb: nothing is measured")
    assert how_measured(load_gpu("h200"), None).startswith("no GPU is present: ")


def how_measured(hardware: Hardware, device: DeviceInfo | None) -> str:
    wish = SearchWish(
        problem=PROBLEM,
        hardware=hardware,
        space="default",
        families=(),
        model="hierarchy",
        strategy="auto",
        trials=1,
        budget="",
        seed=0,
        measure=True,
        measure_anyway=False,
        location=None,
    )
    return choose_device(wish, device)[2]


@pytest.mark.parametrize("text", ["9" * 5000, "1e400", "inf", "nan", "²", "٣s", "0", "0s", "-1s", "1d"])
def test_budgets_that_make_no_sense_are_refused_in_a_short_sentence(text: str) -> None:
    with pytest.raises(UserError, match=r"^budget '.*(is no time above 0|has more than 9 digits)") as raised:
        parse_budget(text)
    assert len(str(raised.value)) < 200


@pytest.mark.parametrize("text", ["9" * 5000, "²", "٣%", "inf"])
def test_regrets_of_other_digits_or_of_thousands_are_refused(text: str) -> None:
    with pytest.raises(UserError, match=r"is no share below 1") as raised:
        parse_regret(text, "auto")
    assert len(str(raised.value)) < 250
