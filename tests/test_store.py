"""What is stored comes back, under exactly the key it was measured for, and the best answer is never taken from elsewhere."""

from __future__ import annotations

import dataclasses
import math
import shutil
import subprocess
import sys
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
    SLICE,
    finalist,
    record,
    timed,
)

from db import reading
from db.faults import SCHEMA_VERSION, VERSION_TABLE
from db.reading import Reader, open_reader
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


def run_with(store: Store, *records: Record, status: str = "finished") -> tuple[int, list[int]]:
    run_id = store.begin_run(records[0].environment, "{}")
    ids = [store.add(run_id, each) for each in records]
    store.finish_run(run_id, status)
    return run_id, ids


def finals(store: Store, *records: Record, status: str = "finished") -> list[int]:
    """A run whose records are its finalists in this order, the second one tied."""
    run_id, ids = run_with(store, *records, status=status)
    store.add_finalists(run_id, [finalist(trial_id, i + 1, 1.05 - i / 100, tied=i == 1) for i, trial_id in enumerate(ids)])
    return ids


# round trip

positive = st.floats(min_value=1e-9, max_value=1e9)
count = st.integers(0, 2**31 - 1)
words = st.text(st.characters(codec="utf-8", exclude_characters="\0"), max_size=20)


def maybe(strategy: st.SearchStrategy) -> st.SearchStrategy:
    return st.none() | strategy


@st.composite
def measurements(draw: st.DrawFn) -> Measurement:
    status = draw(st.sampled_from(get_args(Status)))
    times = {"samples_us": tuple(draw(st.lists(positive, max_size=5))), "median_us": draw(positive)}
    plain = {name: draw(maybe(count)) for name in ("registers", "spill_slots", "shared_memory_bytes")}
    texts = {name: draw(maybe(words)) for name in ("mma_instruction", "binary_hash", "throttle_reasons")}
    reals = {name: draw(maybe(st.floats(0, math.inf))) for name in ("relative_error", "error_bound", "compile_seconds", "sm_clock_mhz")}
    return Measurement(status=status, message=draw(words), **(times if status in TIMED else {}), **plain, **texts, **reals)


tiles = st.builds(Tile, count, count, count)
environments = st.builds(
    Environment,
    **dict.fromkeys(("gpu", "triton", "python", "code_version"), words),
    **{name: maybe(words) for name in ("device_name", "device_uuid", "compute_capability", "driver", "cuda", "torch")},
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
    schedule=st.builds(Schedule, family=words, **dict.fromkeys(AXES, count)),
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
        answer = store.best(PROBLEM, GPU, sms=132)
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
    assert stats.shapes == {(GPU, "4096x4096x4096"): 4}


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


def test_known_holds_successes_and_failures_but_not_what_was_killed(store: Store) -> None:
    killed = record(Measurement(status="killed"), schedule=replace(SCHEDULE, stages=5))
    _, ids = run_with(store, record(timed(190.0)), record(CRASHED, schedule=OTHER), killed)
    known = store.known(PROBLEM, ENVIRONMENT, HASHES, PROTOCOL)
    assert known == {SCHEDULE: (ids[0], timed(190.0)), OTHER: (ids[1], CRASHED)}


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
}


def test_the_changes_below_leave_no_field_out() -> None:
    assert set(PROBLEM_CHANGES) == {field.name for field in dataclasses.fields(Problem)}
    assert set(PLACE_CHANGES) == set(MeasuredOn._fields)


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
    other = replace(ENVIRONMENT, **{field: PLACE_CHANGES[field]})
    _, ids = run_with(store, record(timed(10.0)), record(timed(20.0), environment=other, gpu=other.gpu))
    assert store.known(PROBLEM, ENVIRONMENT, HASHES, PROTOCOL) == {SCHEDULE: (ids[0], timed(10.0))}
    assert store.known(PROBLEM, other, HASHES, PROTOCOL) == {SCHEDULE: (ids[1], timed(20.0))}


@pytest.mark.parametrize("changes", [{"kernel_hash": "cccc"}, {"protocol": "graph-2"}])
def test_another_kernel_or_protocol_is_not_known(store: Store, changes: dict[str, str]) -> None:
    run_with(store, record(timed(10.0), **changes))
    assert store.known(PROBLEM, ENVIRONMENT, HASHES, PROTOCOL) == {}


# the best answer, as both kinds of reader give it


@pytest.fixture(params=["file", "store"])
def reader(request: pytest.FixtureRequest, store: Store) -> Iterator[Reader]:
    if request.param == "store":
        yield store
    else:
        with open_reader(store.location) as opened:
            yield opened


def test_the_best_is_the_winner_of_the_latest_finished_run(store: Store, reader: Reader) -> None:
    finals(store, record(timed(180.0), schedule=OTHER))
    first, _, _ = finals(
        store, record(timed(190.0)), record(timed(191.0), schedule=OTHER), record(timed(189.0), schedule=replace(OTHER, stages=2))
    )
    finals(store, record(timed(170.0), schedule=OTHER), status="interrupted")
    answer = reader.best(PROBLEM, GPU, sms=132)
    assert answer is not None
    assert (answer.measured, answer.stale, answer.record) == (True, False, store.trial(first))
    assert answer.finalist == finalist(first, 1, 1.05, tied=False)
    assert answer.ties == (OTHER,)
    assert answer.record.run_id is not None
    assert reader.finalists(answer.record.run_id)[0] == answer.finalist


def test_without_finals_the_best_is_the_lowest_median(store: Store, reader: Reader) -> None:
    slow = replace(timed(100.0), status="slow")
    _, ids = run_with(store, record(timed(190.0)), record(timed(185.0), schedule=OTHER), record(slow, schedule=replace(OTHER, stages=2)))
    answer = reader.best(PROBLEM, GPU, sms=132)
    assert answer is not None
    assert (answer.record.trial_id, answer.finalist, answer.ties) == (ids[1], None, ())


def test_bits_that_may_differ_answer_only_who_asks_for_them(store: Store, reader: Reader) -> None:
    """The unordered sum was faster, and crowned where it was allowed; an ordered one was crowned before, and another tied with each."""
    ordered, tied = replace(SCHEDULE, flatten=0, split_k=4, fused_reduction=1), replace(OTHER, split_k=2, fused_reduction=2)
    unordered = replace(ordered, fused_reduction=2)
    first, *_ = finals(store, record(timed(180.0), schedule=ordered), record(timed(181.0), schedule=tied))
    second, *_ = finals(store, record(timed(170.0), schedule=unordered), record(timed(171.0), schedule=OTHER))
    asked = reader.best(PROBLEM, GPU, sms=132, unordered=True)
    assert asked is not None
    assert (asked.record.trial_id, asked.record.schedule, asked.ties) == (second, unordered, (OTHER,))
    answer = reader.best(PROBLEM, GPU, sms=132)
    assert answer is not None
    assert (answer.record.trial_id, answer.record.schedule, answer.ties) == (first, ordered, ())


def test_a_problem_with_unordered_answers_only_is_tuned_for_who_takes_them(store: Store, reader: Reader) -> None:
    run_with(store, record(timed(170.0), schedule=replace(SCHEDULE, flatten=0, split_k=4, fused_reduction=2)))
    assert reader.best(PROBLEM, GPU, sms=132) is None
    assert reader.tuned_problems(GPU, sms=132) == ()
    assert reader.tuned_problems(GPU, sms=132, unordered=True) == (PROBLEM,)


def test_compiled_only_is_never_a_measured_best(store: Store, reader: Reader) -> None:
    quick = record(COMPILED, environment=NO_GPU, schedule=OTHER, protocol="compile")
    quick = replace(quick, estimate=replace(quick.estimate, seconds=1e-4))
    _, ids = run_with(store, record(COMPILED, environment=NO_GPU, protocol="compile"), quick)
    answer = reader.best(PROBLEM, GPU, sms=132)
    assert answer is not None
    assert (answer.measured, answer.record.trial_id, answer.record.measurement.median_us) == (False, ids[1], None)
    run_with(store, record(timed(999.0)))
    answer = reader.best(PROBLEM, GPU, sms=132)
    assert answer is not None
    assert (answer.measured, answer.record.measurement) == (True, timed(999.0))


@pytest.mark.parametrize("sms", [16, 26, 32, 60])
def test_the_full_card_never_answers_for_a_slice(store: Store, reader: Reader, sms: int) -> None:
    finals(store, record(timed(190.0)))
    assert reader.best(PROBLEM, GPU, sms=sms) is None
    assert reader.tuned_problems(GPU, sms=sms) == ()


def test_a_slice_never_answers_for_the_full_card(store: Store, reader: Reader) -> None:
    finals(store, record(timed(950.0), environment=SLICE))
    assert reader.best(PROBLEM, GPU, sms=132) is None
    answer = reader.best(PROBLEM, GPU, sms=16)
    assert answer is not None
    assert answer.record.environment == SLICE


@pytest.mark.parametrize("m", [3, 9, 64, 4096])
def test_another_m_is_named_but_never_answers(store: Store, reader: Reader, m: int) -> None:
    tuned = [replace(PROBLEM, m=each) for each in (1, 2, 4, 8)]
    for each in tuned:
        finals(store, record(timed(20.0), problem=each))
    finals(store, record(timed(20.0), problem=replace(PROBLEM, m=16, layout="nn")))
    finals(store, record(CRASHED, problem=replace(PROBLEM, m=32)))
    asked = replace(PROBLEM, m=m)
    assert reader.best(asked, GPU, sms=132) is None
    near = reader.nearest(asked, GPU, sms=132)
    assert set(near) == set(tuned)
    assert near[0].m == (4 if m == 3 else 8)
    assert reader.nearest(replace(asked, n=2048), GPU, sms=132) == ()


def test_another_gpu_never_answers(store: Store, reader: Reader) -> None:
    finals(store, record(timed(190.0)))
    assert reader.best(PROBLEM, "h100-sxm-80gb", sms=132) is None


def test_answers_of_today_s_kernel_come_first_and_older_ones_are_stale(store: Store, reader: Reader) -> None:
    old, new = record(timed(150.0), kernel_hash="old"), record(timed(190.0), schedule=OTHER)
    finals(store, old)
    answer = reader.best(PROBLEM, GPU, sms=132, kernel_hashes=HASHES)
    assert answer is not None
    assert (answer.stale, answer.record.kernel_hash) == (True, "old")
    run_with(store, new)
    answer = reader.best(PROBLEM, GPU, sms=132, kernel_hashes=HASHES)
    assert answer is not None
    assert (answer.stale, answer.record.schedule) == (False, OTHER)


def test_the_compiler_s_version_can_be_asked_for(store: Store, reader: Reader) -> None:
    finals(store, record(timed(150.0), environment=replace(ENVIRONMENT, triton="3.5.0")))
    assert reader.best(PROBLEM, GPU, sms=132, triton="3.6.0") is None
    answer = reader.best(PROBLEM, GPU, sms=132)
    assert answer is not None
    assert answer.record.environment.triton == "3.5.0"


def test_what_later_gave_a_wrong_answer_is_no_longer_best(store: Store, reader: Reader) -> None:
    finals(store, record(timed(180.0), schedule=OTHER), record(timed(190.0)))
    run_with(store, record(Measurement(status="wrong_answer"), schedule=OTHER))
    answer = reader.best(PROBLEM, GPU, sms=132)
    assert answer is not None
    assert answer.record.schedule == SCHEDULE


def test_the_best_is_found_without_sqlalchemy_and_numpy(store: Store) -> None:
    finals(store, record(timed(190.0)))
    program = (
        "import sys; from db.reading import open_reader; from search_spaces.problem import Problem\n"
        f"print(open_reader(sys.argv[1]).best(Problem(m=4096, n=4096, k=4096), {GPU!r}, sms=132).record.schedule)\n"
        "print([name for name in ('sqlalchemy', 'alembic', 'numpy', 'torch') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", program, store.location], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == [str(SCHEDULE), "[]"]
