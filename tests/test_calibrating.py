"""From stored times to a GPU's own constants: which times count, what comes back, what is refused, and where the file goes."""

from __future__ import annotations

import os
import re
from dataclasses import replace
from datetime import date
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from click.testing import CliRunner
from store_samples import CRASHED, ENVIRONMENT, record, timed

from cost_models.calibration import Calibration, parse_calibration
from cost_models.calibration_files import borrowed, calibration_text, load_calibration, packaged_calibration, user_file
from cost_models.fitting import fit
from cost_models.hierarchy import estimate
from db.records import Environment
from db.store import open_store
from search_spaces.errors import UserError
from search_spaces.gpu_files import load_gpu
from search_spaces.hardware import Hardware
from search_spaces.lowering import lower
from search_spaces.problem import Problem
from search_spaces.schedule import Schedule
from search_spaces.space import Space, prune
from search_spaces.table import ScheduleTable
from tuner import calibrating, designing
from tuner.cli import app
from tuner.environment import DeviceInfo
from tuner.searching import SearchWish
from tuner.strategies import Candidates, StrategySettings, load_strategy

DAY = date(2026, 1, 2)
SHAPES = ((4096, 4096, 4096), (16, 8192, 8192), (256, 1024, 16384), (256, 512, 1024))
TRUTH = {"tensor_core_share": 0.7, "dram_share": 0.75, "launch_seconds": 4e-6}  # constants of the made-up machine that was measured


@pytest.fixture(autouse=True)
def data_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A user without any files, and a machine that fits in this process."""
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    monkeypatch.delenv("TUNER_DB", raising=False)
    monkeypatch.setattr(calibrating, "compile_workers", lambda worker_bytes: 1)
    return tmp_path / "data" / "tuner"


@pytest.fixture
def unfitted(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fitting that leaves the constants as they are: for what is done around it."""
    monkeypatch.setattr(calibrating, "fit", lambda samples, hardware, start: start)


def some_schedules(problem: Problem, hardware: Hardware, count: int) -> list[Schedule]:
    axes = {"cta_m": (16, 64, 128), "cta_n": (64, 128, 256), "cta_k": (64,), "warps": (4, 8), "stages": (3, 4), "split_k": (1, 2, 4)}
    table = prune(Space("few", {"tma": axes, "pointer": axes}).enumerate(), problem, hardware).survivors
    return table.take(np.random.default_rng(0).permutation(len(table))[:count]).schedules()


def seconds_of(schedules: list[Schedule], problem: Problem, hardware: Hardware, calibration: Calibration) -> list[float]:
    table = ScheduleTable.of(schedules)
    return estimate(table, lower(table, problem, hardware), problem, hardware, calibration).seconds.tolist()


def fill(
    path: Path,
    hardware: Hardware,
    shapes: tuple[tuple[int, int, int], ...] = SHAPES,
    count: int = 40,
    environment: Environment = ENVIRONMENT,
) -> None:
    """A store of what a machine with the constants of TRUTH would have measured."""
    truth = replace(load_calibration(hardware), **TRUTH)
    with open_store(path) as store:
        run = store.begin_run(environment, "{}")
        for m, n, k in shapes:
            problem = Problem(m=m, n=n, k=k)
            schedules = some_schedules(problem, hardware, count)
            for schedule, seconds in zip(schedules, seconds_of(schedules, problem, hardware, truth), strict=True):
                measurement = timed(round(seconds * 1e6, 4))
                store.add(run, record(measurement, problem=problem, schedule=schedule, environment=environment))
        store.finish_run(run, "finished")


def calibrate(*arguments: str) -> tuple[int, str, str]:
    """Exit code (2 for a person's mistake), stdout and stderr."""
    result = CliRunner().invoke(app, ["calibrate", "--gpu", "h200", *arguments])
    if isinstance(result.exception, UserError):
        return 2, result.stdout, str(result.exception)
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    return result.exit_code, result.stdout, result.stderr


# which times count


def test_times_of_one_place_are_a_landscape_and_the_newest_of_a_schedule_counts(tmp_path: Path) -> None:
    schedules = [replace(record(CRASHED).schedule, stages=stages) for stages in (2, 3, 4)]
    with open_store(tmp_path / "t.db") as store:
        run = store.begin_run(ENVIRONMENT, "{}")
        for schedule, us in zip((*schedules, schedules[0]), (10.0, 20.0, 30.0, 11.0), strict=True):
            store.add(run, record(timed(us), schedule=schedule))
        store.add(run, record(CRASHED, schedule=replace(schedules[0], stages=5)))
        (found,) = store.landscapes(ENVIRONMENT.gpu, sms=132)
        assert found.median_us == dict(zip(schedules, (11.0, 20.0, 30.0), strict=True))
        assert store.landscapes(ENVIRONMENT.gpu, sms=16) == ()
        assert store.landscapes("h100-sxm-80gb", sms=None) == ()


@pytest.mark.parametrize("change", [{"driver": "600.1"}, {"triton": "3.9.0"}, {"torch": "3.0"}])
def test_times_under_another_driver_or_library_are_not_mixed(tmp_path: Path, change: dict[str, str]) -> None:
    """The place with the newest time counts, unless it has too few and another has enough. Clocks of the moment are no other place."""
    newer = replace(ENVIRONMENT, **change)
    places = ((ENVIRONMENT, 2), (replace(ENVIRONMENT, sm_clock_mhz=345.0), 3), (ENVIRONMENT, 4), (newer, 2))
    with open_store(tmp_path / "t.db") as store:
        run = store.begin_run(ENVIRONMENT, "{}")
        for place, stages in places:
            store.add(run, record(timed(10.0 + stages), schedule=replace(record(CRASHED).schedule, stages=stages), environment=place))
        (found,) = store.landscapes(ENVIRONMENT.gpu, sms=132)
        assert sorted(found.median_us.values()) == [12.0]
        (ample,) = store.landscapes(ENVIRONMENT.gpu, sms=132, least=2)
        assert sorted(ample.median_us.values()) == [12.0, 13.0, 14.0]


def test_too_little_is_refused_with_both_numbers(tmp_path: Path, h200: Hardware) -> None:
    database = tmp_path / "t.db"
    fill(database, h200, SHAPES[:2])
    fill(database, h200, SHAPES[2:3], count=19)
    code, out, sentence = calibrate("--db", str(database))
    assert (code, out) == (2, "")
    assert sentence == (
        f"{database} has 2 shapes with 20 or more schedules measured on h200-sxm-141gb, a fit needs 3: run `tuner search` for more shapes,"
        " or give --measure where that GPU is present"
    )


def test_another_gpu_that_was_measured_under_this_name_does_not_count(tmp_path: Path, h200: Hardware) -> None:
    fill(tmp_path / "t.db", h200, environment=replace(ENVIRONMENT, device_name="NVIDIA H100 80GB HBM3"))
    with pytest.raises(UserError, match="has 0 shapes"):
        calibrating.stored_landscapes(h200, str(tmp_path / "t.db"))


def test_no_database_is_said(tmp_path: Path) -> None:
    code, _, sentence = calibrate("--db", str(tmp_path / "none.db"))
    assert code == 2
    assert sentence.startswith(f"there is no database at {tmp_path / 'none.db'} yet")


# what comes back


def test_constants_of_the_machine_that_was_measured_come_back(tmp_path: Path, h200: Hardware, monkeypatch: pytest.MonkeyPatch) -> None:
    """The machine is slower than the start says; times, and with them the ranking, are those of the fit."""
    monkeypatch.setattr(calibrating, "fit", partial(fit, steps=200))
    database = tmp_path / "t.db"
    fill(database, h200)
    landscapes = calibrating.stored_landscapes(h200, str(database))
    fitted = calibrating.fit_landscapes(landscapes, h200, DAY)
    assert fitted.held_out
    assert not fitted.is_worse
    for before, inside in zip(fitted.before, fitted.in_sample, strict=True):
        assert inside.seconds < max(before.seconds, 0.05)
        assert inside.regrets[-1] <= 0.05
    source = fitted.calibration.source
    assert "on 2026-01-02 to 4 shapes (bf16 nt) with " in source
    assert "NVIDIA H200 (driver 570.1, torch 2.11.0, triton 3.6.0)" in source
    assert fitted.calibration.name == "h200-sxm-141gb"


def test_what_is_written_is_used_from_then_on_and_other_gpus_are_left_alone(tmp_path: Path, data_folder: Path, unfitted: None) -> None:
    h200, h100 = load_gpu("h200"), load_gpu("h100")
    others = load_calibration(h100)
    fill(tmp_path / "t.db", h200)
    code, out, said = calibrate("--db", str(tmp_path / "t.db"))
    file = data_folder / "calibrations" / "h200-sxm-141gb.yaml"
    assert code == 0, said
    assert said.splitlines()[-1] == f"wrote {file}"
    assert [path.name for path in file.parent.iterdir()] == [file.name]
    assert load_calibration(h200).source.startswith("Fitted on ")
    assert load_calibration(h100) == others
    assert "each by constants fitted to the others" in out
    assert all(f"{m}x{n}x{k}" in out for m, n, k in SHAPES)


def test_three_shapes_are_fitted_and_their_figures_are_said_to_be_in_sample(tmp_path: Path, h200: Hardware, unfitted: None) -> None:
    fill(tmp_path / "t.db", h200, SHAPES[:3])
    code, out, _ = calibrate("--db", str(tmp_path / "t.db"), "--output", str(tmp_path / "mine.yaml"))
    assert code == 0
    assert "in sample" in out
    assert "In sample, the best of the first 1 / 8" in parse_calibration("mine", (tmp_path / "mine.yaml").read_text("utf-8")).source
    assert not user_file("h200-sxm-141gb").exists()


def test_a_fit_that_ranks_worse_than_the_start_is_not_written(
    tmp_path: Path, data_folder: Path, h200: Hardware, monkeypatch: pytest.MonkeyPatch
) -> None:
    nonsense = replace(load_calibration(h200), tensor_core_share=1e-3)  # as if all waited for the tensor cores
    monkeypatch.setattr(calibrating, "fit", lambda samples, hardware, start: nonsense)
    fill(tmp_path / "t.db", h200)
    code, _, said = calibrate("--db", str(tmp_path / "t.db"))
    assert code == 1
    assert "nothing is written: the constants it started from rank the measured schedules better" in said
    assert not data_folder.joinpath("calibrations").exists()


def test_a_fit_that_ranks_what_it_has_not_seen_worse_is_cautioned_about(h200: Hardware) -> None:
    calibration = replace(load_calibration(h200), name="sm_90")
    good, bad = (calibrating.Error(regrets=(first, 0.0), seconds=0.1) for first in (0.01, 0.05))
    figures = {"start": calibration, "calibration": calibration, "problems": (), "before": (good,), "in_sample": (good,)}
    assert calibrating.Fitted(**figures, after=(good,), held_out=True).caution is None
    assert calibrating.Fitted(**figures, after=(bad,), held_out=True).caution == (
        "constants fitted to the other shapes rank a shape worse (5.0 / 0.0 %) than sm_90's did (1.0 / 0.0 %): more shapes make a better"
        " fit, and without the file things are as before"
    )


# files


def test_a_calibration_reads_back_as_it_was(h200: Hardware) -> None:
    calibration = replace(load_calibration(h200), source="measured: 3 shapes, 60 schedules; für 'h200'")
    assert parse_calibration(calibration.name, calibration_text(calibration)) == calibration


def test_the_users_file_comes_before_the_packages(h200: Hardware) -> None:
    packaged = load_calibration(h200)
    calibrating.write_calibration(replace(packaged, name="h200-sxm-141gb", source="mine", **TRUTH), None)
    assert load_calibration(h200) == replace(packaged, name="h200-sxm-141gb", source="mine", **TRUTH)
    assert packaged_calibration(packaged.name) == packaged


def test_a_write_that_fails_leaves_what_was_there(h200: Hardware, monkeypatch: pytest.MonkeyPatch) -> None:
    mine = replace(load_calibration(h200), name="h200-sxm-141gb", source="first")
    file = calibrating.write_calibration(mine, None)

    def full(source: object, target: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "replace", full)
    with pytest.raises(UserError, match="No space left on device; what was there is as before"):
        calibrating.write_calibration(replace(mine, source="second"), None)
    assert load_calibration(h200).source == "first"
    assert [path.name for path in file.parent.iterdir()] == [file.name]


@pytest.mark.parametrize(
    "text", ["source: of an older version\n", "{", "launch_seconds: [1", "dram_share: fast", "dram_share: .nan", "dram_share: 0"]
)
def test_a_users_file_that_cannot_be_used_is_named_with_what_to_do(h200: Hardware, text: str) -> None:
    file = user_file("h200-sxm-141gb")
    file.parent.mkdir(parents=True)
    whole = calibration_text(load_calibration(h200))
    file.write_text(re.sub(r"dram_share: .*", text, whole) if text.startswith("dram_share") else text, encoding="utf-8")
    with pytest.raises(UserError, match="fit it anew with `tuner calibrate --gpu h200-sxm-141gb`, or remove it") as error:
        load_calibration(h200)
    assert str(file) in str(error.value)
    assert load_calibration(load_gpu("a100")).name


def test_a_gpu_without_its_own_constants_says_whose_it_uses(h100: Hardware) -> None:
    borrowed_ones = replace(load_calibration(h100), name="sm_90")
    assert borrowed(h100, borrowed_ones) == (
        "h100-sxm-80gb has no calibration of its own: estimates use its architecture's, sm_90; `tuner calibrate --gpu h100-sxm-80gb` fits"
        " one to measurements"
    )
    assert "estimates use first guesses;" in (borrowed(load_gpu("a100"), replace(borrowed_ones, name="first_guess")) or "")
    assert borrowed(h100, replace(borrowed_ones, name="h100-sxm-80gb")) is None
    result = CliRunner().invoke(app, ["explain", "--gpu", "a100", "--shape", "64x64x64", "--db", "none.db"])
    assert "a100-sxm-80gb has no calibration of its own" in result.stderr


# measuring


def device(name: str) -> DeviceInfo:
    figures = {"sms": 132, "memory_bytes": 150_754_820_096, "compute_capability": (9, 0), "driver": "570", "cuda": "12.8"}
    clocks = {"sm_clock_mhz": 1980.0, "memory_clock_mhz": 3201.0, "power_limit_w": 700.0, "others": 0, "busy_percent": 0}
    return DeviceInfo(name=name, uuid="GPU-0", **figures, **clocks)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("present", "sentence"),
    [
        (None, "--measure needs h200-sxm-141gb, and no GPU is present"),
        (device("NVIDIA B200"), "--measure needs h200-sxm-141gb, and the GPU present is NVIDIA B200"),
    ],
)
def test_measuring_where_the_gpu_is_not(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, present: DeviceInfo | None, sentence: str) -> None:
    monkeypatch.setattr(designing, "device_present", lambda: present)
    assert calibrate("--measure", "--db", str(tmp_path / "t.db")) == (2, "", f"{sentence}; without --measure, what is stored of it is used")
    assert not (tmp_path / "t.db").exists()


def measured_with(budget_seconds: float, hardware: Hardware, monkeypatch: pytest.MonkeyPatch) -> tuple[list[SearchWish], list[str]]:
    """The searches that --measure makes, and what it says."""
    wishes: list[SearchWish] = []
    said: list[str] = []
    monkeypatch.setattr(designing, "device_present", lambda: device("NVIDIA H200"))
    monkeypatch.setattr(designing, "run_search", lambda wish, say, report: wishes.append(wish) or SimpleNamespace(fault=""))
    designing.measure(hardware, None, budget_seconds, said.append, lambda progress: None)
    return wishes, said


def test_the_designed_set_is_searched_shape_by_shape_within_the_budget(h200: Hardware, monkeypatch: pytest.MonkeyPatch) -> None:
    wishes, said = measured_with(120, h200, monkeypatch)
    assert [wish.problem for wish in wishes] == [*designing.designed_problems(h200)]
    assert {(wish.strategy, wish.trials, wish.measure) for wish in wishes} == {("spread", 60, True)}
    assert wishes[0].budget == "15.0s"
    assert said == []


def test_a_budget_that_is_too_short_for_a_shape_is_said(h200: Hardware, monkeypatch: pytest.MonkeyPatch) -> None:
    assert measured_with(10, h200, monkeypatch) == ([], ["the budget of 10 s allows for 0 of 8 shapes"])


def test_a_shape_that_is_measured_gets_enough_of_a_small_budget(h200: Hardware, monkeypatch: pytest.MonkeyPatch) -> None:
    """An eighth of 60 s would be gone before anything is measured."""
    wishes, _ = measured_with(60, h200, monkeypatch)
    assert wishes[0].budget == "12.0s"


def test_the_designed_shapes_wait_for_different_things(h200: Hardware) -> None:
    ridge = h200.peak_flops["bf16"] / h200.dram_bytes_per_second
    sides = [problem.arithmetic_intensity > ridge for problem in designing.designed_problems(h200)]
    assert any(sides)
    assert not all(sides)
    assert {problem.dtype for problem in designing.designed_problems(load_gpu("t4"))} == {"fp16"}


def test_spread_begins_with_the_leaders_and_then_shares_the_axes_out() -> None:
    axes = {"cta_m": (64, 128), "cta_n": (64, 128, 256), "cta_k": (64,), "warps": (4, 8), "stages": (2, 3, 4, 5), "split_k": (1, 2, 4, 8)}
    table = Space("few", {"tma": axes}).enumerate()
    seconds = np.linspace(1.0, 2.0, len(table))
    seconds[-10:] = 100.0
    (rows,) = load_strategy("spread")(Candidates(table=table, seconds=seconds), StrategySettings(batch=60, limit=60))
    assert rows[:20] == [*range(20)]
    drawn = table.take(np.array(rows[20:]))
    assert max(rows) < len(table) - 10
    for axis in ("cta_m", "cta_n", "stages", "split_k"):
        counts = np.unique(drawn.columns[axis], return_counts=True)[1]
        assert len(counts) == len(axes[axis])
        assert np.ptp(counts) <= 3
