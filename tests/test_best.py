"""What is known to be best: the rule of `db.best`, as both kinds of reader answer it. Times and ratios are made up; who has to win follows
from the rule by hand."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from store_samples import (
    COMPILED,
    CRASHED,
    ENVIRONMENT,
    HASHES,
    NO_GPU,
    PROBLEM,
    SCHEDULE,
    SLICE,
    finalist,
    finals,
    record,
    run_with,
    timed,
)

from db.best import Scope
from db.reading import Reader, open_reader
from db.records import BestAnswer, Measurement, Record
from db.store import Store, open_store

GPU = ENVIRONMENT.gpu
CARD = Scope(gpu=GPU, sms=132)
OTHER = replace(SCHEDULE, cta_n=128)
THIRD = replace(SCHEDULE, stages=2)
POINTER = replace(SCHEDULE, family="pointer", flatten=0)
NEWER = replace(ENVIRONMENT, driver="580.2")
ROOT = Path(__file__).parents[1]


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with open_store(tmp_path / "tuner.db") as opened:
        yield opened


@pytest.fixture(params=["file", "store"])
def reader(request: pytest.FixtureRequest, store: Store) -> Iterator[Reader]:
    if request.param == "store":
        yield store
    else:
        with open_reader(store.location) as opened:
            yield opened


def held(store: Store, *contestants: tuple[Record, float], status: str = "finished") -> list[int]:
    """A run with finals: records with their ratios, best first."""
    run_id, ids = run_with(store, *(each for each, _ in contestants), status=status)
    ratios = [ratio for _, ratio in contestants]
    store.add_finalists(run_id, [finalist(i, rank + 1, ratio, tied=False) for rank, (i, ratio) in enumerate(zip(ids, ratios, strict=True))])
    return ids


def known(reader: Reader, scope: Scope = CARD, **changes: Any) -> BestAnswer:
    answer = reader.best(PROBLEM, replace(scope, **changes))
    assert answer is not None
    return answer


# within one environment


def test_the_best_paired_ratio_answers_whichever_run_held_the_finals(store: Store, reader: Reader) -> None:
    """A full search, then one of a single family, then a calibration's: neither takes the winner's place, though they came later."""
    (first, _) = held(store, (record(timed(190.0)), 1.05), (record(timed(191.0), schedule=OTHER), 1.04))
    held(store, (record(timed(390.0), schedule=POINTER, kernel_hash=HASHES["pointer"]), 0.51))
    held(store, (record(timed(200.0), schedule=THIRD, strategy="spread"), 1.0))
    answer = known(reader)
    assert (answer.record.trial_id, answer.finalist and answer.finalist.ratio, answer.measured) == (first, 1.05, True)


def test_a_later_run_that_is_better_answers(store: Store, reader: Reader) -> None:
    held(store, (record(timed(190.0)), 1.05))
    (second,) = held(store, (record(timed(188.0), schedule=OTHER), 1.06))
    assert known(reader).record.trial_id == second


def test_finals_of_an_interrupted_run_count(store: Store, reader: Reader) -> None:
    (first,) = held(store, (record(timed(190.0)), 1.05), status="interrupted")
    held(store, (record(timed(200.0), schedule=OTHER), 1.0))
    assert known(reader).record.trial_id == first


@pytest.mark.parametrize(("us", "wins"), [(185.0, False), (184.4, False), (184.2, True), (100.0, True)])
def test_a_time_that_was_never_paired_wins_by_more_than_the_clock_moves(store: Store, reader: Reader, us: float, wins: bool) -> None:
    """97 % of the winner's own unpaired time of 190 us are 184.3 us."""
    (first,) = held(store, (record(timed(190.0)), 1.05))
    _, (second,) = run_with(store, record(timed(us), schedule=OTHER), status="interrupted")
    answer = known(reader)
    assert answer.record.trial_id == (second if wins else first)
    assert (answer.finalist is None) == wins


def test_who_was_timed_in_a_run_with_finals_had_its_chance(store: Store, reader: Reader) -> None:
    """Seen on an H200: timed first, while the clock was high, one looked 15 % faster than the winner of finals that it did not
    reach."""
    run_id, ids = run_with(store, record(timed(174.73), schedule=OTHER), record(timed(203.0)))
    store.add_finalists(run_id, [finalist(ids[1], 1, 1.022, tied=False)])
    assert known(reader).record.schedule == SCHEDULE


@pytest.mark.parametrize(("mhz", "wins"), [(1980.0, False), (1500.0, True), (1200.0, True), (None, True)])
def test_a_time_at_a_higher_clock_is_taken_for_what_it_would_be_at_the_lower(
    store: Store, reader: Reader, mhz: float | None, wins: bool
) -> None:
    """175 us at 1980 MHz may be 231 us at the winner's 1500 MHz, of which 203 us is 88 %."""
    held(store, (record(replace(timed(203.0), sm_clock_mhz=1500.0)), 1.02))
    run_with(store, record(replace(timed(175.0), sm_clock_mhz=mhz), schedule=OTHER), status="interrupted")
    assert (known(reader).record.schedule == OTHER) == wins


def test_the_loser_of_finals_is_not_judged_by_its_unpaired_time(store: Store, reader: Reader) -> None:
    """It was timed while the clock was high, and lost in turn."""
    first, _ = held(store, (record(timed(190.0)), 1.05), (record(timed(150.0), schedule=OTHER), 0.98))
    assert known(reader).record.trial_id == first


def test_the_winner_by_fewer_resources_stands_for_its_finals(store: Store, reader: Reader) -> None:
    first, second = finals(store, record(timed(190.0)), record(timed(191.0), schedule=OTHER))
    answer = known(reader)
    assert (answer.record.trial_id, answer.ties, answer.finals_run) == (first, (OTHER,), answer.record.run_id)
    assert reader.finalists(answer.record.run_id or 0)[1].trial_id == second


def test_without_finals_the_least_time_answers(store: Store, reader: Reader) -> None:
    slow = replace(timed(100.0), status="slow")
    _, ids = run_with(store, record(timed(190.0)), record(timed(185.0), schedule=OTHER), record(slow, schedule=THIRD))
    answer = known(reader)
    assert (answer.record.trial_id, answer.finalist, answer.ties) == (ids[1], None, ())


def test_what_later_gave_a_wrong_answer_is_no_longer_best(store: Store, reader: Reader) -> None:
    held(store, (record(timed(180.0), schedule=OTHER), 1.06), (record(timed(190.0)), 1.05))
    run_with(store, record(Measurement(status="wrong_answer"), schedule=OTHER))
    assert known(reader).record.schedule == SCHEDULE


@pytest.mark.parametrize("status", ["machine_fault", "crashed", "timeout", "killed"])
def test_what_befell_the_machine_later_disproves_nothing(store: Store, reader: Reader, status: Any) -> None:
    held(store, (record(timed(180.0), schedule=OTHER), 1.06))
    run_with(store, record(Measurement(status=status), schedule=OTHER))
    assert known(reader).record.schedule == OTHER


ratios = st.lists(st.integers(500, 2000), min_size=1, max_size=4, unique=True).map(lambda found: [r / 1000 for r in sorted(found)[::-1]])


@settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.tuples(ratios, st.sampled_from(["finished", "interrupted"])), min_size=1, max_size=5))
def test_measuring_more_or_less_never_makes_the_answer_worse(tmp_path_factory: pytest.TempPathFactory, runs: list[Any]) -> None:
    """After each of any row of searches the answer is the best ratio that any of them found."""
    with open_store(tmp_path_factory.mktemp("best") / "t.db") as store:
        found: list[float] = []
        for number, (of_run, status) in enumerate(runs):
            contestants = [
                (record(timed(200 / r), schedule=replace(SCHEDULE, group_m=1 + 9 * number + i)), r) for i, r in enumerate(of_run)
            ]
            held(store, *contestants, status=status)
            found.append(of_run[0])
            answer = known(store)
            assert answer.finalist is not None
            assert answer.finalist.ratio == max(found)


# whose measurements count


def test_this_machine_s_environment_answers_first_and_another_is_named(store: Store, reader: Reader) -> None:
    held(store, (record(timed(180.0), schedule=OTHER), 1.10))
    elsewhere = known(reader, here=NEWER)
    assert (elsewhere.record.schedule, elsewhere.differs) == (OTHER, ("driver 570.1, here 580.2",))
    held(store, (record(timed(190.0), environment=NEWER), 1.05))
    here = known(reader, here=NEWER)
    assert (here.record.schedule, here.differs) == (SCHEDULE, ())
    assert known(reader, here=NEWER, any_environment=True).record.schedule == OTHER


@pytest.mark.parametrize("change", [{"triton": "3.5.0"}, {"torch": "2.10.0"}, {"cuda": "12.4"}, {"driver": "560.0"}])
def test_ratios_of_different_environments_are_not_mixed_with_unpaired_times(store: Store, reader: Reader, change: dict[str, str]) -> None:
    """The time of another driver or library is far less than the winner's here, and says nothing of it."""
    held(store, (record(timed(190.0)), 1.05))
    run_with(store, record(timed(90.0), schedule=OTHER, environment=replace(ENVIRONMENT, **change)))
    assert known(reader, here=ENVIRONMENT).record.schedule == SCHEDULE
    assert known(reader).record.schedule == SCHEDULE


def test_where_no_gpu_is_here_the_best_ratio_of_any_environment_answers(store: Store, reader: Reader) -> None:
    """A newer driver with one schedule measured does not take the place of a full search before it."""
    held(store, (record(timed(180.0), schedule=OTHER), 1.10))
    held(store, (record(timed(300.0), environment=NEWER), 0.70))
    answer = known(reader)
    assert (answer.record.schedule, answer.differs) == (OTHER, ())


@pytest.mark.parametrize("name", ["NVIDIA H100 80GB HBM3", "NVIDIA H100 80GB HBM3 MIG 1g.10gb", "NVIDIA GH200 480GB", None])
def test_another_card_measured_under_this_name_does_not_answer(store: Store, reader: Reader, name: str | None) -> None:
    other = replace(ENVIRONMENT, device_name=name)
    held(store, (record(timed(90.0), schedule=OTHER, environment=other), 2.0))
    named = replace(CARD, device_names=("NVIDIA H200",))
    assert reader.best(PROBLEM, named) is None
    assert reader.tuned_problems(named) == ()
    held(store, (record(timed(190.0)), 1.05))
    assert known(reader, named).record.schedule == SCHEDULE
    if name:
        assert known(reader, named, any_environment=True).record.schedule == OTHER


def test_half_of_the_card_s_sms_do_not_answer_for_all(store: Store, reader: Reader) -> None:
    held(store, (record(timed(90.0), schedule=OTHER, environment=replace(ENVIRONMENT, sms=66)), 1.5))
    assert reader.best(PROBLEM, CARD) is None


@pytest.mark.parametrize("sms", [16, 26, 32, 60])
def test_the_full_card_never_answers_for_a_slice(store: Store, reader: Reader, sms: int) -> None:
    finals(store, record(timed(190.0)))
    assert reader.best(PROBLEM, replace(CARD, sms=sms)) is None
    assert reader.tuned_problems(replace(CARD, sms=sms)) == ()


def test_a_slice_never_answers_for_the_full_card(store: Store, reader: Reader) -> None:
    finals(store, record(timed(950.0), environment=SLICE))
    assert reader.best(PROBLEM, CARD) is None
    assert known(reader, sms=16, device_names=("NVIDIA H200",)).record.environment == SLICE


def test_another_gpu_never_answers(store: Store, reader: Reader) -> None:
    finals(store, record(timed(190.0)))
    assert reader.best(PROBLEM, replace(CARD, gpu="h100-sxm-80gb")) is None


def test_today_s_kernel_answers_first_and_older_ones_are_stale(store: Store, reader: Reader) -> None:
    finals(store, record(timed(150.0), kernel_hash="old"))
    old = known(reader, kernel_hashes=HASHES)
    assert (old.stale, old.record.kernel_hash) == (True, "old")
    run_with(store, record(timed(190.0), schedule=OTHER))
    new = known(reader, kernel_hashes=HASHES)
    assert (new.stale, new.record.schedule) == (False, OTHER)


def test_families_and_triton_narrow(store: Store, reader: Reader) -> None:
    pointer = record(timed(200.0), schedule=POINTER, kernel_hash=HASHES["pointer"])
    old = record(timed(170.0), schedule=OTHER, environment=replace(ENVIRONMENT, triton="3.5.0"))
    held(store, (record(timed(190.0)), 1.05), (pointer, 1.0))
    held(store, (old, 1.08))
    assert known(reader, families=("pointer",)).record.schedule == POINTER
    assert known(reader, triton="3.6.0").record.schedule == SCHEDULE
    assert known(reader, triton="3.5.0").record.schedule == OTHER
    assert reader.best(PROBLEM, replace(CARD, triton="3.9.0")) is None
    assert reader.best(PROBLEM, replace(CARD, families=("gemv",))) is None


def test_bits_that_may_differ_answer_only_who_asks_for_them(store: Store, reader: Reader) -> None:
    """The unordered sum was faster, and crowned where it was allowed; an ordered one was crowned before, and another tied with each."""
    ordered, tied = replace(SCHEDULE, flatten=0, split_k=4, fused_reduction=1), replace(OTHER, split_k=2, fused_reduction=2)
    unordered = replace(ordered, fused_reduction=2)
    first, *_ = finals(store, record(timed(180.0), schedule=ordered), record(timed(181.0), schedule=tied))
    run_id, ids = run_with(store, record(timed(170.0), schedule=unordered), record(timed(171.0), schedule=OTHER))
    places = ((ids[0], 1, 1.2, False), (ids[1], 2, 1.0, True))
    store.add_finalists(run_id, [finalist(i, rank, ratio, tied=tied) for i, rank, ratio, tied in places])
    asked = known(reader, unordered=True)
    assert (asked.record.schedule, asked.ties) == (unordered, (OTHER,))
    answer = known(reader)
    assert (answer.record.trial_id, answer.record.schedule, answer.ties) == (first, ordered, ())


def test_a_problem_with_unordered_answers_only_is_tuned_for_who_takes_them(store: Store, reader: Reader) -> None:
    run_with(store, record(timed(170.0), schedule=replace(SCHEDULE, flatten=0, split_k=4, fused_reduction=2)))
    assert reader.best(PROBLEM, CARD) is None
    assert reader.tuned_problems(CARD) == ()
    assert reader.tuned_problems(replace(CARD, unordered=True)) == (PROBLEM,)


# where nothing was timed


def compiled(seconds: float, **changes: Any) -> Record:
    made = record(COMPILED, environment=NO_GPU, protocol="compile", **changes)
    return replace(made, estimate=replace(made.estimate, seconds=seconds))


def test_the_least_prediction_of_one_named_model_answers_as_what_it_is(store: Store, reader: Reader) -> None:
    """A later run of few schedules, and another model's lower numbers, change nothing."""
    _, ids = run_with(store, compiled(2e-4), compiled(1e-4, schedule=OTHER))
    run_with(store, compiled(5e-4, schedule=THIRD))
    run_with(store, compiled(1e-6, schedule=THIRD, model="roofline"))
    answer = known(reader)
    assert (answer.measured, answer.record.trial_id, answer.record.model) == (False, ids[1], "hierarchy")
    assert known(reader, models=("roofline",)).record.schedule == THIRD


def test_where_the_named_model_said_nothing_another_answers_by_its_name(store: Store, reader: Reader) -> None:
    run_with(store, compiled(1e-6, model="roofline"))
    assert known(reader).record.model == "roofline"


def test_compiled_only_is_never_a_measured_best(store: Store, reader: Reader) -> None:
    run_with(store, compiled(1e-9))
    assert not known(reader).measured
    run_with(store, record(timed(999.0)))
    answer = known(reader)
    assert (answer.measured, answer.record.measurement) == (True, timed(999.0))


# what else is tuned


@pytest.mark.parametrize("m", [3, 9, 64, 4096])
def test_another_m_is_named_but_never_answers(store: Store, reader: Reader, m: int) -> None:
    tuned = [replace(PROBLEM, m=each) for each in (1, 2, 4, 8)]
    for each in tuned:
        finals(store, record(timed(20.0), problem=each))
    finals(store, record(timed(20.0), problem=replace(PROBLEM, m=16, layout="nn")))
    finals(store, record(CRASHED, problem=replace(PROBLEM, m=32)))
    asked = replace(PROBLEM, m=m)
    assert reader.best(asked, CARD) is None
    near = reader.nearest(asked, CARD)
    assert set(near) == set(tuned)
    assert near[0].m == (4 if m == 3 else 8)
    assert reader.nearest(replace(asked, n=2048), CARD) == ()


@pytest.mark.parametrize(
    "change", [{"alignment_bytes": 32}, {"dtype": "fp16", "out_dtype": "fp16"}, {"layout": "nn"}, {"ldb": 4104}, {"out_dtype": "fp32"}]
)
def test_the_same_extents_otherwise_tuned_are_named_first(store: Store, reader: Reader, change: dict[str, Any]) -> None:
    other = replace(PROBLEM, **change)
    finals(store, record(timed(20.0), problem=replace(PROBLEM, m=8)))
    finals(store, record(timed(20.0), problem=other))
    assert reader.best(PROBLEM, CARD) is None
    assert reader.nearest(PROBLEM, CARD) == (other, replace(PROBLEM, m=8))


def test_the_best_is_found_without_sqlalchemy_and_numpy(store: Store) -> None:
    finals(store, record(timed(190.0)))
    program = (
        "import sys; from db.best import Scope; from db.reading import open_reader; from search_spaces.problem import Problem\n"
        f"print(open_reader(sys.argv[1]).best(Problem(m=4096, n=4096, k=4096), Scope(gpu={GPU!r}, sms=132)).record.schedule)\n"
        "print([name for name in ('sqlalchemy', 'alembic', 'numpy', 'torch') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", program, store.location], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == [str(SCHEDULE), "[]"]
