"""What is found by its file's name is checked where it is loaded: strategies, cost models, families. A bad one is a sentence that names it,
and takes nothing from the others."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import cost_models
import tuner.strategies as strategies
from cost_models import hierarchy
from cost_models.estimate import EstimateTable
from search_spaces import families as family_files
from search_spaces.errors import UserError
from search_spaces.families import families, family, family_faults, parse_family
from search_spaces.gpu_files import load_gpu
from search_spaces.problem import Problem
from search_spaces.schedule import Schedule
from search_spaces.space import parse_space
from search_spaces.table import ScheduleTable
from tuner import ranking
from tuner.ranking import check_model, model_names, rank
from tuner.strategies import Candidates, StrategySettings, Trial, load_strategy, strategy_names, strategy_summary

SPACE = parse_space("few", "pointer: {cta_m: [64, 128], cta_n: [64, 128], cta_k: 64, warps: 4, stages: [2, 3]}")
ESTIMATE = hierarchy.estimate
CUBE = Problem(m=1024, n=1024, k=1024)


def plug_in(folder: Path, package: object, name: str, text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A module of this name in one more folder of the package."""
    (folder / f"{name}.py").write_text(text)
    monkeypatch.setattr(package, "__path__", [*package.__path__, str(folder)])
    monkeypatch.delitem(sys.modules, f"{package.__name__}.{name}", raising=False)


STRATEGY = "def propose(candidates, settings):\n    "


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ('"""Has none."""\n', "has no function propose(candidates, settings); add one, or name another --strategy"),
        ("propose = 5\n", "has no function propose(candidates, settings); add one, or name another --strategy"),
        ("import nowhere_to_be_found\n", "cannot be imported: ModuleNotFoundError: No module named 'nowhere_to_be_found'; mend it"),
        ("def propose(:\n", "cannot be imported: SyntaxError: invalid syntax"),
        ("1 / 0\n", "cannot be imported: ZeroDivisionError: division by zero; mend it"),
        (STRATEGY + "return [0, 1]\n", "propose gives list; it has to yield lists of rows"),
        (STRATEGY + "yield [0, 99]\n", "proposes row 99; there are rows from 0 to 5"),
        (STRATEGY + "yield [-1]\n", "proposes row -1; there are rows from 0 to 5"),
        (STRATEGY + "yield [2, 3, 2]\n", "proposes row 2 twice; each row is proposed once"),
        (STRATEGY + "yield [0]\n    yield [1, 0]\n", "proposes row 0 twice; each row is proposed once"),
        (STRATEGY + "yield [0.5]\n", "proposes the row 0.5, which is no whole number"),
        (STRATEGY + "yield [True]\n", "proposes the row True, which is no whole number"),
        (STRATEGY + "yield ['1']\n", "proposes the row 1, which is no whole number"),
        (STRATEGY + "yield 3\n", "proposes 3; it has to yield lists of rows"),
        (STRATEGY + "yield 'abc'\n", "proposes abc; it has to yield lists of rows"),
        (STRATEGY + "yield []\n", "proposes 0 rows at once, where 1 to 4 are asked for"),
        (STRATEGY + "yield [0, 1, 2, 3, 4]\n", "proposes 5 rows at once, where 1 to 4 are asked for"),
        (STRATEGY + "yield [0]\n    raise KeyError('x')\n", "failed: KeyError: 'x'; mend it, or name another --strategy"),
        ("def propose(candidates):\n    yield [0]\n", "failed: TypeError: propose() takes 1 positional argument but 2 were given"),
    ],
)
def test_a_bad_strategy_is_a_sentence(text: str, sentence: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plug_in(tmp_path, strategies, "mine", text, monkeypatch)
    with pytest.raises(UserError) as raised:
        run_strategy("mine")
    assert str(raised.value).startswith("strategy mine (tuner/strategies/mine.py)")
    assert sentence in str(raised.value)
    assert len([strategy_summary(name) for name in strategy_names()]) == len(strategy_names())  # the listing lives
    assert sorted(run_strategy("ranked")) == list(range(6))


def test_a_strategys_whole_numbers_of_any_kind_become_ints(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plug_in(tmp_path, strategies, "mine", "import numpy as np\n" + STRATEGY + "yield np.array([1, 0])\n", monkeypatch)
    assert [(row, type(row)) for row in run_strategy("mine")] == [(1, int), (0, int)]


def run_strategy(name: str) -> list[int]:
    """Every row it proposes of six, four at a time, each answered."""
    table = ScheduleTable.of([Schedule(family="pointer", cta_m=64, cta_n=64, cta_k=64, group_m=g) for g in range(1, 7)])
    candidates = Candidates(table=table, seconds=np.arange(1.0, 7.0))
    proposals, rows = load_strategy(name)(candidates, StrategySettings(batch=4)), []
    batch = next(proposals)
    while True:
        rows += batch
        try:
            batch = proposals.send([Trial(row=row, status="ok", seconds=1e-5) for row in batch])
        except StopIteration:
            return rows


def changed(change: Callable[[EstimateTable], object]) -> Callable[..., object]:
    return lambda *given: change(ESTIMATE(*given))


def with_seconds(value: float) -> Callable[[EstimateTable], object]:
    return lambda found: replace(found, seconds=np.where(np.arange(len(found)) == 1, value, found.seconds))


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (
            lambda found: replace(found, seconds=found.seconds[:1]),
            "gives seconds of shape (1,) for 8 schedules; one value each",
        ),
        (lambda found: replace(found, seconds=1e-3), "gives seconds as float for 8 schedules; one value each is asked for"),
        (with_seconds(np.nan), "gives seconds of nan to 1 of 8 schedules; finite seconds above 0 are asked for"),
        (with_seconds(np.inf), "gives seconds of inf to 1 of 8 schedules"),
        (with_seconds(-2.0), "gives seconds of -2.0 to 1 of 8 schedules"),
        (with_seconds(0.0), "gives seconds of 0.0 to 1 of 8 schedules"),
        (lambda found: replace(found, seconds=found.seconds.astype(str)), "gives seconds of type <U"),
        (lambda found: replace(found, terms={}), "gives no terms; each estimate is made of one or more"),
        (lambda found: replace(found, terms={"dram": found.seconds[:2]}), "gives terms[dram] of shape (2,) for 8 schedules"),
        (lambda found: replace(found, terms={"dram": -found.seconds}), "to 8 of 8 schedules; finite seconds of 0 or more are asked for"),
        (lambda found: replace(found, facts={"waves": found.seconds[0]}), "gives facts[waves] as float64 for 8 schedules"),
        (lambda found: found.seconds, "gives ndarray, no EstimateTable"),
        (lambda found: None, "gives NoneType, no EstimateTable"),
        (lambda found: found.terms["no such term"], "failed: KeyError: 'no such term'; mend it, or name another --model"),
    ],
)
def test_a_bad_model_is_a_sentence(change: Callable[[EstimateTable], object], sentence: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hierarchy, "estimate", changed(change))
    with pytest.raises(UserError) as raised:
        rank(CUBE, load_gpu("h100"), SPACE)
    assert str(raised.value).startswith("cost model hierarchy (cost_models/hierarchy.py)")
    assert sentence in str(raised.value)


def test_a_models_terms_are_the_same_for_every_piece(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = iter(range(9))
    names = changed(lambda found: replace(found, terms={f"term {next(calls)}": found.seconds}))
    monkeypatch.setattr(hierarchy, "estimate", names)
    monkeypatch.setattr(ranking, "PIECE_ROWS", 4)
    with pytest.raises(UserError, match="gives the terms term 1 after term 0; mend it, or name another --model"):
        rank(CUBE, load_gpu("h100"), SPACE)


def test_a_model_that_cannot_be_imported_takes_nothing_from_the_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plug_in(tmp_path, cost_models, "mine", "import nowhere_to_be_found\n", monkeypatch)
    assert "hierarchy" in model_names()
    assert "mine" not in model_names()
    check_model("hierarchy")
    with pytest.raises(UserError, match=r"cost model mine \(cost_models/mine\.py\) cannot be imported: ModuleNotFoundError: No module"):
        check_model("mine")
    with pytest.raises(UserError, match=r"no cost model named 'hierarchi'; known: .*; did you mean hierarchy"):
        check_model("hierarchi")


FAMILY = "title: mine\nloads: pointer\ndtypes: [bf16]\naxes: [cta_m, cta_n, cta_k, warps, stages]\n"


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (("title: mine\n", ""), "family mine has no title; give title, loads, dtypes, axes"),
        (("title: mine", "title: [a]"), "family mine: title is ['a']; give a line of text"),
        (("title: mine", "title: 5"), "family mine: title is 5; give a line of text"),
        (("title: mine", "titel: mine"), "family mine has the key 'titel'; known: title, loads, dtypes, axes; did you mean title?"),
        (("loads: pointer", "loads: rings"), "family mine loads by 'rings'; known: pointer, tma, ring, stream"),
        (("[bf16]", "bf16"), "family mine: dtypes is 'bf16'; give a list of fp16, bf16, fp32"),
        (("[bf16]", "[bf17]"), "family mine: dtypes names 'bf17'; known: fp16, bf16, fp32; did you mean bf16?"),
        (("[bf16]", "[bf16, bf16]"), "family mine: dtypes names bf16 2 times; leave one"),
        (("stages]", "stage]"), "family mine: axes names 'stage'; known: cta_m"),
        (("stages]", "5]"), "family mine: axes is ['cta_m', 'cta_n', 'cta_k', 'warps', 5]; give a list of cta_m"),
        ((FAMILY, "- title"), "family mine is no mapping; give title, loads, dtypes, axes"),
        ((FAMILY, ""), "family mine is no mapping; give title, loads, dtypes, axes"),
        (("title: mine", "title: mine\ntitle: yours"), "family mine: 'title' stands twice, on lines 1 and 2; leave one"),
    ],
)
def test_a_bad_family_is_a_sentence(change: tuple[str, str], sentence: str) -> None:
    assert change[0] in FAMILY
    with pytest.raises(UserError) as raised:
        parse_family("mine", FAMILY.replace(*change))
    assert str(raised.value).startswith(sentence)


def test_one_bad_family_file_takes_nothing_from_the_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "families").mkdir()
    (tmp_path / "families" / "bad.yaml").write_text("loads: pointer\n")
    (tmp_path / "families" / "mine.yaml").write_text(FAMILY)
    monkeypatch.setattr(family_files.resources, "files", lambda package: tmp_path)
    family_files._read_all.cache_clear()
    try:
        assert list(families()) == ["mine"]
        assert family_faults() == {"bad": "family bad has no title; give title, loads, dtypes, axes"}
        with pytest.raises(UserError, match="family bad has no title"):
            family("bad")
        with pytest.raises(UserError, match="space s: family bad has no title"):
            parse_space("s", "bad: {cta_m: 64}")
    finally:
        monkeypatch.undo()
        family_files._read_all.cache_clear()


def test_a_family_without_kernels_is_refused_before_anything_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ranking, "family_names", lambda: ("gemv", "tma"))
    sentence = "family pointer has no kernels: there is no tuner/kernels/pointer.py with a function `calls`"
    with pytest.raises(UserError, match=sentence):
        rank(CUBE, load_gpu("h100"), SPACE)
