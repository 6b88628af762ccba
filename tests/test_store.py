"""What is stored comes back, under exactly the key it was measured for, and the best answer is never taken from elsewhere."""

from __future__ import annotations

import dataclasses
import math
import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import get_args

import pytest
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from store_samples import (
    COMPILED,
    CRASHED,
    ENVIRONMENT,
    HASHES,
    NO_GPU,
    PROBLEM,
    PROTOCOL,
    SCHEDULE,
    record,
    run_with,
    timed,
)

from db import reading
from db.best import Scope
from db.faults import SCHEMA_VERSION, VERSION_TABLE
from db.reading import open_reader
from db.records import TIMED, Environment, Estimated, MeasuredOn, Measurement, Record, Status
from db.rows import TRIAL_COLUMNS
from db.schema import METADATA, TRIAL
from db.store import Store, open_store, upgrade_store
from search_spaces.problem import Problem
from search_spaces.schedule import AXES, Schedule, Tile

GPU = ENVIRONMENT.gpu
OTHER = replace(SCHEDULE, cta_n=128)
ROOT = Path(__file__).parents[1]


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with open_store(tmp_path / "tuner.db") as opened:
        yield opened


# round trip

positive = st.floats(min_value=1e-9, max_value=1e9)
count = st.integers(0, 2**31 - 1)
axis = st.integers(0, 2**20)
words = st.text(st.characters(codec="utf-8", categories=("L", "M", "N", "P", "S", "Zs")), max_size=20)  # what can be printed
capability = st.builds("{}.{}".format, st.integers(0, 20), st.integers(0, 9))


def maybe(strategy: st.SearchStrategy) -> st.SearchStrategy:
    return st.none() | strategy


@st.composite
def measurements(draw: st.DrawFn) -> Measurement:
    status = draw(st.sampled_from(get_args(Status)))
    times = {"samples_us": tuple(draw(st.lists(positive, max_size=5))), "median_us": draw(positive)}
    plain = {name: draw(maybe(count)) for name in ("registers", "spill_slots", "shared_memory_bytes")}
    texts = {name: draw(maybe(words)) for name in ("mma_instruction", "binary_hash", "throttle_reasons")}
    reals = {name: draw(maybe(positive)) for name in ("compile_seconds", "sm_clock_mhz")}
    errors = {name: draw(maybe(st.floats(0, math.inf))) for name in ("relative_error", "error_bound")}
    return Measurement(status=status, message=draw(words), **(times if status in TIMED else {}), **plain, **texts, **reals, **errors)


tiles = st.builds(Tile, axis, axis, axis)
environments = st.builds(
    Environment,
    **dict.fromkeys(("gpu", "triton", "python", "code_version"), words),
    **{name: maybe(words) for name in ("device_name", "device_uuid", "driver", "cuda", "torch")},
    compute_capability=maybe(capability),
    sms=maybe(count),
    device_memory_bytes=maybe(st.integers(0, 2**40)),
    **{name: maybe(positive) for name in ("sm_clock_mhz", "memory_clock_mhz", "power_limit_w")},
)
records = st.builds(
    Record,
    problem=st.builds(
        Problem, m=count, n=count, k=count, layout=st.sampled_from(["nn", "nt", "tn", "tt"]), out_dtype=st.sampled_from(["", "fp32"])
    ),
    gpu=words,
    schedule=st.builds(Schedule, family=st.from_regex(r"[a-z_][a-z0-9_]{0,9}", fullmatch=True), **dict.fromkeys(AXES, axis)),
    warp_tile=tiles,
    mma_tile=tiles,
    estimate=st.builds(
        Estimated,
        seconds=positive,
        limiter=words,
        registers=maybe(count),
        shared_memory_bytes=maybe(count),
        waves=maybe(positive),
        terms=st.dictionaries(words, positive, max_size=4),
    ),
    environment=environments,
    measurement=measurements(),
    **dict.fromkeys(("kernel_hash", "protocol", "strategy", "model"), words),
)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(made=records)
def test_a_record_comes_back_as_it_was(store: Store, made: Record) -> None:
    run_id = store.begin_run(made.environment, "{}")
    trial_id = store.add(run_id, made)
    back = store.trial(trial_id)
    assert (back.trial_id, back.run_id) == (trial_id, run_id)
    assert back.recorded is not None
    assert replace(back, trial_id=None, run_id=None, recorded=None) == made
    with open_reader(store.location) as reader:
        assert reader.trial(trial_id) == back


def test_every_field_and_axis_has_its_column() -> None:
    assert {column.name for column in TRIAL.columns} == {"id", "environment_id", *TRIAL_COLUMNS}
    assert set(AXES) <= set(TRIAL_COLUMNS)


def test_migrations_lead_to_the_tables_of_the_schema(store: Store) -> None:
    with store.reading() as connection:
        context = MigrationContext.configure(connection, opts={"version_table": VERSION_TABLE, "compare_type": True})
        assert context.get_current_revision() == SCHEMA_VERSION
        assert compare_metadata(context, METADATA) == []


def test_the_first_released_file_is_read(tmp_path: Path) -> None:
    path = tmp_path / "tuner.db"
    shutil.copy(Path(__file__).parent / "data" / "schema_0001.db", path)
    assert upgrade_store(path) == ("0001", SCHEMA_VERSION)
    with open_store(path) as store:
        answer = store.best(PROBLEM, Scope(gpu=GPU, sms=132))
        assert answer is not None
        assert answer.finalist is not None
        assert (answer.record.schedule, answer.record.measurement, answer.finalist.ratio, answer.ties) == (
            SCHEDULE,
            timed(190.0),
            1.05,
            (OTHER,),
        )
        assert store.stats().trials == {"compiled": 1, "crashed": 1, "ok": 2}


@pytest.mark.parametrize("status", [status for status in get_args(Status) if status not in TIMED])
def test_what_failed_has_no_time(status: Status) -> None:
    with pytest.raises(ValueError, match=f"status {status} with a time of 5.0 us"):
        Measurement(status=status, median_us=5.0)


@pytest.mark.parametrize("status", TIMED)
def test_what_was_timed_has_a_time(status: Status) -> None:
    with pytest.raises(ValueError, match="without a median"):
        Measurement(status=status)
    with pytest.raises(ValueError, match="not all above 0 and finite"):
        Measurement(status=status, median_us=math.inf)


def test_an_output_with_nan_is_infinitely_wrong() -> None:
    assert Measurement(status="wrong_answer", relative_error=math.nan).relative_error == math.inf


# runs


def test_runs_tell_how_they_ended(store: Store) -> None:
    first, second = store.begin_run(ENVIRONMENT, '{"trials": 64}'), store.begin_run(ENVIRONMENT, "{}")
    store.finish_run(first, "finished")
    runs = store.runs()
    assert [(run.id, run.request, run.status) for run in runs] == [(first, '{"trials": 64}', "finished"), (second, "{}", "running")]
    assert runs[0].finished is not None
    assert runs[0].started <= runs[0].finished
    assert runs[1].finished is None


def test_an_environment_is_stored_once(store: Store) -> None:
    run_with(store, record(timed(190.0)), record(timed(191.0), schedule=OTHER))
    with open_store(store.location) as again:
        run_with(again, record(timed(192.0)), record(timed(192.0), environment=replace(ENVIRONMENT, driver="580.2")))
    stats = store.stats()
    assert (stats.environments, stats.runs, stats.trials, stats.finalists) == (2, {"finished": 2}, {"ok": 4}, 0)
    assert stats.shapes == {(GPU, "4096x4096x4096 bf16 nt"): 4}


def test_records_are_filtered_and_come_in_order(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reading, "PAGE", 2)
    small = replace(PROBLEM, m=64)
    run_id, ids = run_with(store, *(record(timed(190.0 + i)) for i in range(5)))
    other_run, (last,) = run_with(store, record(CRASHED, problem=small, gpu="l4"))
    assert [r.trial_id for r in store.records()] == [*ids, last]
    assert [r.trial_id for r in store.records(problem=small)] == [last]
    assert [r.trial_id for r in store.records(gpu="l4")] == [last]
    assert [r.trial_id for r in store.records(run_id=run_id, problem=PROBLEM, gpu=GPU)] == ids
    assert list(store.records(run_id=other_run, problem=PROBLEM)) == []


# what is already known


@pytest.mark.parametrize("status", get_args(Status))
def test_known_holds_what_a_schedule_does_and_not_what_befell_the_machine(store: Store, status: Status) -> None:
    """The second of the two kinds is the moment's: disk, memory, driver, neighbours, time under load."""
    own = {"ok", "slow", "compiled", "duplicate", "wrong_answer", "unstable", "refused", "out_of_resources", "faulted"}
    moments = {"compile_failed", "compile_timeout", "launch_failed", "timeout", "crashed", "killed", "machine_fault", "implausible"}
    assert own | moments == set(get_args(Status))
    measurement = timed(190.0) if status in TIMED else Measurement(status=status)
    measurement = replace(measurement, status=status)
    _, ids = run_with(store, record(measurement))
    assert store.known(PROBLEM, ENVIRONMENT, HASHES, PROTOCOL) == ({SCHEDULE: (ids[0], measurement)} if status in own else {})


def test_what_befell_the_machine_leaves_what_was_known_before(store: Store) -> None:
    _, ids = run_with(store, record(timed(190.0)), record(CRASHED))
    assert store.known(PROBLEM, ENVIRONMENT, HASHES, PROTOCOL) == {SCHEDULE: (ids[0], timed(190.0))}


def test_of_several_attempts_the_newest_is_known(store: Store) -> None:
    _, ids = run_with(store, record(CRASHED), record(timed(190.0)), record(timed(195.0)))
    assert store.known(PROBLEM, ENVIRONMENT, HASHES, PROTOCOL) == {SCHEDULE: (ids[2], timed(195.0))}


def test_compiled_only_is_known_to_a_machine_without_the_gpu(store: Store) -> None:
    _, (compiled, _) = run_with(store, record(COMPILED, environment=NO_GPU, protocol="compile"), record(timed(190.0)))
    assert store.known(PROBLEM, NO_GPU, HASHES, "compile") == {SCHEDULE: (compiled, COMPILED)}


def test_what_cannot_change_the_answer_is_not_in_the_key(store: Store) -> None:
    run_with(store, record(timed(190.0)))
    another_day = replace(ENVIRONMENT, sm_clock_mhz=1900.0, device_uuid="GPU-1", python="3.13.0", code_version="0.1.1")
    assert SCHEDULE in store.known(PROBLEM, another_day, HASHES, PROTOCOL)


DENSE = Problem(m=256, n=256, k=256)
PROBLEM_CHANGES = {
    "m": 128,
    "n": 128,
    "k": 128,
    "dtype": "fp16",
    "out_dtype": "fp32",
    "layout": "nn",
    "lda": 264,
    "ldb": 264,
    "ldc": 264,
    "alignment_bytes": 8,
}
PLACE_CHANGES = {
    "gpu": "h100-sxm-80gb",
    "device_name": None,
    "sms": 60,
    "device_memory_bytes": 1,
    "compute_capability": "10.0",
    "triton": "3.9.0",
    "driver": "580.2",
    "cuda": "13.0",
    "torch": "2.12.0",
    "gpu_figures": "another file's",
}


def test_the_changes_below_leave_no_field_out() -> None:
    assert set(PROBLEM_CHANGES) == {field.name for field in dataclasses.fields(Problem)}
    assert set(PLACE_CHANGES) == {*MeasuredOn._fields, "driver", "cuda", "torch", "gpu_figures"}


@pytest.mark.parametrize("field", PROBLEM_CHANGES)
def test_problems_that_differ_in_one_field_are_apart(store: Store, field: str) -> None:
    other = replace(DENSE, **{field: PROBLEM_CHANGES[field]})
    _, ids = run_with(store, record(timed(10.0), problem=DENSE), record(timed(20.0), problem=other))
    assert store.known(DENSE, ENVIRONMENT, HASHES, PROTOCOL) == {SCHEDULE: (ids[0], timed(10.0))}
    assert store.known(other, ENVIRONMENT, HASHES, PROTOCOL) == {SCHEDULE: (ids[1], timed(20.0))}


@pytest.mark.parametrize("field", ["family", *AXES])
def test_schedules_that_differ_in_one_axis_are_apart(store: Store, field: str) -> None:
    other = replace(SCHEDULE, **{field: "pointer" if field == "family" else getattr(SCHEDULE, field) + 1})
    _, ids = run_with(store, record(timed(10.0)), record(timed(20.0), schedule=other, kernel_hash=HASHES[other.family]))
    assert store.known(PROBLEM, ENVIRONMENT, HASHES, PROTOCOL) == {SCHEDULE: (ids[0], timed(10.0)), other: (ids[1], timed(20.0))}


@pytest.mark.parametrize("field", PLACE_CHANGES)
def test_places_that_differ_in_one_field_are_apart(store: Store, field: str) -> None:
    here = replace(ENVIRONMENT, gpu_figures="this file's")
    other = replace(here, **{field: PLACE_CHANGES[field]})
    _, ids = run_with(store, record(timed(10.0), environment=here), record(timed(20.0), environment=other, gpu=other.gpu))
    assert store.known(PROBLEM, here, HASHES, PROTOCOL) == {SCHEDULE: (ids[0], timed(10.0))}
    assert store.known(PROBLEM, other, HASHES, PROTOCOL) == {SCHEDULE: (ids[1], timed(20.0))}


@pytest.mark.parametrize("changes", [{"kernel_hash": "cccc"}, {"protocol": "graph-2"}])
def test_another_kernel_or_protocol_is_not_known(store: Store, changes: dict[str, str]) -> None:
    run_with(store, record(timed(10.0), **changes))
    assert store.known(PROBLEM, ENVIRONMENT, HASHES, PROTOCOL) == {}
