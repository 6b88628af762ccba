"""The contract that every strategy found keeps, and the search logic on recorded times of a real GPU.

`data/landscape_sample.csv` was measured on an H200 with torch 2.11 and Triton 3.6.0; its first lines say how its rows were chosen.
"""

from __future__ import annotations

from dataclasses import asdict
from itertools import product
from pathlib import Path
from statistics import median

import numpy as np
import pytest

from search_spaces.errors import UserError
from search_spaces.problem import Problem
from search_spaces.schedule import Schedule
from search_spaces.table import ScheduleTable
from tuner.replay import ReplayDevice
from tuner.strategies import Candidates, StrategySettings, Trial, load_strategy, stops_early, strategy_names, strategy_summary

SAMPLE = Path(__file__).parent / "data" / "landscape_sample.csv"
RECORDED = (Problem(m=64, n=8192, k=8192), Problem(m=4096, n=4096, k=4096))
every_strategy = pytest.mark.parametrize("name", strategy_names())


def grid(cta_m: tuple[int, ...] = (16, 64, 256), cta_n: tuple[int, ...] = (32, 128)) -> Candidates:
    """24 schedules of two families, in an order that is not that of their estimates."""
    tiles = product(("pointer", "tma"), cta_m, cta_n, (1, 4))
    schedules = [Schedule(family=f, cta_m=m, cta_n=n, cta_k=64, group_m=g, stages=3) for f, m, n, g in tiles]
    return Candidates(table=ScheduleTable.of(schedules), seconds=np.random.default_rng(1).uniform(1e-5, 1e-4, len(schedules)))


def wide_grid() -> Candidates:
    """80 schedules."""
    return grid((16, 32, 64, 128, 256), (16, 32, 64, 128))


def settings(**changes: int) -> StrategySettings:
    return StrategySettings(**({"seed": 5, "batch": 7} | changes))


def result(row: int) -> Trial:
    return Trial(row=row, status="ok", seconds=1e-5 * (1 + row % 13))


def failure(row: int) -> Trial:
    return Trial(row=row, status="out_of_resources", seconds=None)


def batches(name, candidates, chosen, answer=result):
    """Every batch of a run in which each proposed row is answered."""
    proposals, found = load_strategy(name)(candidates, chosen), []
    try:
        rows = next(proposals)
        while True:
            found.append(rows)
            rows = proposals.send([answer(row) for row in rows])
    except StopIteration:
        return found


def rows_of(name, candidates, chosen, answer=result):
    return [row for batch in batches(name, candidates, chosen, answer) for row in batch]


@every_strategy
@pytest.mark.parametrize("answer", [result, failure], ids=["ok", "all fail"])
def test_24_schedules_are_24_proposals_and_then_it_stops(name, answer):
    assert list(range(24)) == sorted(rows_of(name, grid(), settings(limit=200), answer))


@every_strategy
def test_without_a_limit_every_schedule_is_proposed(name):
    assert list(range(24)) == sorted(rows_of(name, grid(), settings()))


@every_strategy
def test_no_batch_is_empty_or_larger_than_asked_for(name):
    sizes = [len(batch) for batch in batches(name, grid(), settings(first=9, batch=7))]
    assert min(sizes) >= 1
    assert sizes[0] <= 9
    assert max(sizes[1:]) <= 7


@every_strategy
@pytest.mark.parametrize("limit", [0, 1, 7, 20])
def test_limit_is_the_number_of_different_rows(name, limit):
    assert limit == len(set(rows_of(name, grid(), settings(limit=limit))))


@every_strategy
def test_where_few_rows_of_the_product_can_run_only_those_are_proposed(name):
    kept = np.flatnonzero(np.random.default_rng(2).random(24) < 0.2)
    whole = grid()
    few = Candidates(table=whole.table.take(kept), seconds=whole.seconds[kept])
    assert 0 < len(kept) < 8
    assert list(range(len(kept))) == sorted(rows_of(name, few, settings()))


@every_strategy
def test_seed_decides_the_order_and_nothing_else_does(name):
    assert rows_of(name, grid(), settings()) == rows_of(name, grid(), settings())


@every_strategy
@pytest.mark.parametrize("rows", [0, 1])
def test_tables_with_nothing_to_choose(name, rows):
    whole = grid()
    least = Candidates(table=whole.table.take(slice(rows)), seconds=whole.seconds[:rows])
    assert list(range(rows)) == rows_of(name, least, settings())


@every_strategy
def test_rows_without_an_estimate_are_proposed_too(name):
    unknown = Candidates(table=grid().table, seconds=np.full(24, np.nan))
    assert list(range(24)) == sorted(rows_of(name, unknown, settings()))


@every_strategy
def test_rows_known_from_an_earlier_run_and_rows_never_reached_are_answers_too(name):
    def known(row):
        return Trial(row=row, status="known", seconds=1e-5)

    proposals = load_strategy(name)(grid(), settings())
    first = next(proposals)
    second = proposals.send([known(first[0])])
    assert not set(first) & set(second)


@every_strategy
def test_the_driver_may_stop_at_any_time(name):
    proposals = load_strategy(name)(grid(), settings())
    next(proposals)
    proposals.close()
    assert list(proposals) == []


@every_strategy
def test_the_person_s_own_logging_of_optuna_is_left_alone(name, capfd):
    import optuna

    before = optuna.logging.get_verbosity()
    rows_of(name, grid(), settings(limit=18))
    assert before == optuna.logging.get_verbosity()
    assert capfd.readouterr() == ("", "")


@every_strategy
def test_every_strategy_says_what_it_is(name):
    assert strategy_summary(name).endswith(".")


def test_strategies_are_found_by_the_name_of_their_file():
    assert {"auto", "ranked", "local", "gp", "tpe", "exhaustive", "random"} <= set(strategy_names())


def test_unknown_strategy_names_those_there_are():
    with pytest.raises(UserError, match=r"no strategy named 'anneal'; known: .*exhaustive, .*tpe"):
        load_strategy("anneal")


@pytest.mark.parametrize("wrong", [{"batch": 0}, {"first": 0}, {"limit": -1}])
def test_settings_that_make_no_sense_are_refused(wrong):
    with pytest.raises(UserError, match="give"):
        settings(**wrong)


def test_order_of_the_estimates():
    candidates = grid()
    assert np.argsort(candidates.seconds).tolist() == rows_of("exhaustive", candidates, settings())


@pytest.mark.parametrize("name", ["ranked", "local", "tpe", "gp"])
def test_the_leaders_of_the_model_come_first(name):
    candidates = grid()
    assert np.argsort(candidates.seconds)[:16].tolist() == rows_of(name, candidates, settings(first=16, limit=16))


@pytest.mark.parametrize("name", ["ranked", "auto"])
def test_a_family_that_the_model_has_too_fast_gives_way_to_the_other(name):
    """By the estimates two families are as fast; measuring shows one to take twice its estimate."""
    table = grid().table
    flattered = table.is_family(["pointer"])
    candidates = Candidates(table=table, seconds=1e-5 * (1 + np.arange(24) % 12 * 1e-3))
    measured = np.where(flattered, 2e-5, 1e-5)
    found = batches(name, candidates, settings(first=6, batch=4), lambda row: Trial(row=row, status="ok", seconds=measured[row]))
    assert 0 < np.count_nonzero(flattered[found[0]]) < 6
    assert not flattered[found[1]].any()


def test_auto_does_not_fill_its_first_batch_with_twins():
    """Ten tiles, each in four raster groups that the model holds equal: ranked takes the groups of the first tiles, auto the tiles."""
    tiles = product((16, 32, 64, 128, 256), (64, 128), (1, 2, 4, 8))
    table = ScheduleTable.of([Schedule(family="tma", cta_m=m, cta_n=n, cta_k=64, group_m=g, stages=3) for m, n, g in tiles])
    candidates = Candidates(table=table, seconds=np.repeat(1e-5 * (1 + 0.005 * np.arange(10)), 4))

    def tiles_of(name):
        rows = batches(name, candidates, settings(batch=8))[0]
        return len({row // 4 for row in rows})

    assert tiles_of("ranked") == 2
    assert tiles_of("auto") >= 6


def test_local_steps_along_one_axis_from_the_fastest():
    candidates = wide_grid()
    first, second = batches("local", candidates, settings(batch=8, limit=16))
    best = min(first, key=lambda row: result(row).seconds)
    leader = candidates.table.schedule(best)
    steps = [asdict(candidates.table.schedule(row)) for row in second]
    changed = [sum(value != getattr(leader, axis) for axis, value in step.items()) for step in steps]
    assert changed[0] == 1
    assert changed.count(1) >= 3


@pytest.mark.parametrize("name", ["auto", "ranked", "local"])
def test_winners_of_shapes_nearby_are_half_of_the_first_batch(name):
    whole = grid()
    worst = np.argsort(whole.seconds)[-4:].tolist()
    warm = Candidates(table=whole.table, seconds=whole.seconds, nearby=tuple(worst))
    assert batches(name, warm, settings(batch=6))[0][:3] == worst[:3]
    assert list(range(24)) == sorted(rows_of(name, warm, settings()))


@pytest.mark.parametrize("nearby", [(24,), (-1,), (3, 3)])
def test_rows_that_are_none_are_not_nearby(nearby):
    with pytest.raises(ValueError, match="nearby"):
        Candidates(table=grid().table, seconds=grid().seconds, nearby=nearby)


@pytest.mark.parametrize(("name", "may_stop"), [("auto", True), ("gp", True), ("exhaustive", False), ("random", False)])
def test_strategies_that_look_for_the_best_stop_early(name, may_stop):
    assert stops_early(name) is may_stop


def test_gp_without_scipy_is_refused_in_a_sentence(monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(UserError, match="gp needs scipy, which is not installed; `pip install scipy`"):
        load_strategy("gp")(grid(), settings())


def test_random_takes_another_order_for_another_seed_and_none_from_the_estimates():
    candidates = grid()
    reversed_estimates = Candidates(table=candidates.table, seconds=-candidates.seconds)
    assert rows_of("random", candidates, settings(seed=1)) != rows_of("random", candidates, settings(seed=2))
    assert rows_of("random", candidates, settings(seed=1)) == rows_of("random", reversed_estimates, settings(seed=1))


def test_tpe_asks_for_results_before_it_proposes_half_of_what_it_may():
    assert max(len(batch) for batch in batches("tpe", wide_grid(), settings(batch=60, limit=60))) <= 30


def test_tpe_keeps_away_from_what_fails():
    """Every schedule of one family fails; a strategy that learned nothing would propose as many of it as of the other."""
    candidates = wide_grid()
    failing = candidates.table.is_family(["pointer"])
    rows = rows_of("tpe", candidates, settings(limit=40), lambda row: failure(row) if failing[row] else result(row))
    assert np.count_nonzero(failing) == 40
    assert np.count_nonzero(failing[rows[16:]]) < 8


@pytest.fixture(scope="module", params=RECORDED, ids=lambda problem: problem.shape)
def device(request):
    return ReplayDevice.read_csv(SAMPLE, request.param)


def search(name, device, chosen, rows=None):
    """The best time that a strategy without any estimate finds, as a ratio to the best recorded. rows: of the recorded, the fastest so
    many."""
    fastest = sorted(device.recorded_us, key=lambda schedule: device.recorded_us[schedule])
    table = ScheduleTable.of(fastest[:rows])
    blind = Candidates(table=table, seconds=np.random.default_rng(chosen.seed).random(len(table)))

    def measure(row):
        replayed = device.measure(table.schedule(row))
        return Trial(row=row, status=replayed.status, seconds=replayed.median_us * 1e-6)

    times = [measure(row).seconds for row in rows_of(name, blind, chosen, measure)]
    return min(times) * 1e6 / device.best_us


@every_strategy
def test_every_strategy_ends_at_the_recorded_best(name, device):
    assert search(name, device, settings(batch=16), rows=24) == pytest.approx(1.0)


def test_tpe_finds_what_is_near_the_best_without_a_model(device):
    """64 of 150 schedules. The median of five seeds, since single runs end up to 22 % off."""
    assert median(search("tpe", device, settings(seed=seed, limit=64)) for seed in range(5)) <= 1.03


def test_recorded_times_are_those_of_the_file():
    small, square = (ReplayDevice.read_csv(SAMPLE, problem) for problem in RECORDED)
    assert (len(small.schedules()), len(square.schedules())) == (150, 150)
    assert (small.best_us, square.best_us) == (35.41, 172.023)
    best = Schedule(family="tma", cta_m=128, cta_n=256, cta_k=64, warps=8, stages=3, group_m=16, persistent_ctas_per_sm=1, flatten=1)
    assert (square.measure(best).status, square.measure(best).median_us) == ("ok", 172.023)
    assert small.library_us == pytest.approx(37.158)


def test_a_schedule_that_was_not_recorded_has_no_time(device):
    absent = device.measure(Schedule(family="tma", cta_m=1, cta_n=1, cta_k=1))
    assert (absent.status, absent.median_us) == ("not_recorded", None)


HEADER = "M,N,K,family,cta_m,cta_n,cta_k,warps,stages,epilogue_subtile,flatten,persistent_ctas_per_sm,split_k,group_m,median_us\n"
ROW = "8,8,8,tma,16,16,16,4,2,1,0,0,1,1,"


def test_epilogue_subtile_counts_slices_and_repeated_rows_count_with_their_median(tmp_path):
    file = tmp_path / "times.csv"
    file.write_text("# a note\n" + HEADER + "".join(f"{ROW}{us}\n" for us in (3, 1, 2)))
    device = ReplayDevice.read_csv(file, Problem(m=8, n=8, k=8))
    assert {Schedule(family="tma", cta_m=16, cta_n=16, cta_k=16, stages=2, epilogue_subtile=2): 2.0} == device.recorded_us
    assert device.library_us is None


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        (None, "cannot read the file of recorded times .*No such file.*give a CSV file"),
        ("M,N\n1,2\n", "has no column 'K'; it needs M, N, K"),
        (HEADER, "has no schedule of 8x8x8"),
        (HEADER + ROW + "fast\n", "line 2: a time of 'fast' us is no number above 0; give the median"),
        ("# note\n" + HEADER + ROW + "nan\n", "line 3: a time of 'nan' us is no number above 0"),
        (HEADER + "8,8,8,tma\n", "line 2: fewer values than columns; give 15"),
        (HEADER + ROW + "0.0000001\n", r"line 2: 0.0000001 us for 8x8x8 is 10240 TFLOP/s, more than the 2700 that any GPU could reach"),
        (HEADER + ROW + "1_0\n", "line 2: a time of '1_0' us is no number above 0"),
        (HEADER + ROW.replace("16,16,16", "16,227,16") + "1\n", "line 2: cta_n is 227, no power of two: no kernel of tma"),
        (HEADER + ROW.replace("16,4,2", "16,3,2") + "1\n", "line 2: warps is 3, no power of two"),
        (HEADER + ROW.replace("16,16,16", "16,-64,16") + "1\n", "line 2: cta_n is -64; it is a whole number from 1"),
        (HEADER + ROW.replace("16,16,16", "16,²,16") + "1\n", "line 2: cta_n is '²', which is no whole number"),
        (HEADER + ROW.replace("tma", "tmx") + "1\n", "line 2: no family named 'tmx'"),
    ],
)
def test_files_that_are_no_recording_are_refused(tmp_path, text, sentence):
    file = tmp_path / "times.csv"
    if text is not None:
        file.write_text(text)
    with pytest.raises(UserError, match=sentence):
        ReplayDevice.read_csv(file, Problem(m=8, n=8, k=8))
