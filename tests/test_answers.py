"""What `tuner best` says: advice that works when it is pasted, and all that tells one product from another."""

from __future__ import annotations

import shlex
from dataclasses import replace
from pathlib import Path
from typing import Any

import click
import pytest
from click.testing import CliRunner
from store_samples import ENVIRONMENT, PROBLEM, finals, record, timed

from db.store import open_store
from search_spaces.gpu_files import load_gpu
from search_spaces.problem import Problem
from tuner.answers import best_answer, best_json, best_text, options, search_command, stats, stats_text
from tuner.cli_options import problem_options
from tuner.scope import scope_of

H200 = load_gpu("h200")
PROBLEMS = [
    (PROBLEM, "4096x4096x4096 bf16 nt", "--shape 4096x4096x4096"),
    (Problem(m=8, n=512, k=100, dtype="fp16", layout="nn"), "8x512x100 fp16 nn", "--shape 8x512x100 --dtype fp16 --layout nn"),
    (Problem(m=8, n=512, k=100, out_dtype="fp32"), "8x512x100 bf16 -> fp32 nt", "--shape 8x512x100 --out-dtype fp32"),
    (
        Problem(m=8, n=512, k=100, layout="tt", lda=16, ldc=520, alignment_bytes=32),
        "8x512x100 bf16 tt, lda 16, ldc 520, aligned to 32 B",
        "--shape 8x512x100 --layout tt --ld 16,0,520 --alignment 32",
    ),
]


def parsed(text: str) -> Problem:
    found: list[Problem] = []

    @click.command()
    @problem_options
    def command(problem: Problem) -> None:
        found.append(problem)

    CliRunner().invoke(command, shlex.split(text), catch_exceptions=False)
    return found[0]


@pytest.mark.parametrize(("problem", "text", "given"), PROBLEMS)
def test_a_problem_is_named_in_full_and_its_options_give_it_again(problem: Problem, text: str, given: str) -> None:
    assert problem.text == text
    assert options(problem) == given
    assert parsed(options(problem)) == problem


@pytest.mark.parametrize("problem", [problem for problem, _, _ in PROBLEMS])
def test_the_advice_names_the_product_and_the_database_it_was_looked_for_in(tmp_path: Path, problem: Problem) -> None:
    database = str(tmp_path / "my times.db")
    open_store(database).close()
    answer, near = best_answer(problem, database, scope_of(H200))
    text = best_text(problem, H200, answer, near, database)
    assert text.endswith(f"find out with: {search_command(problem, H200, database)}")
    words = shlex.split(search_command(problem, H200, database))
    assert parsed(shlex.join(words[2:-4])) == problem
    assert words[-4:] == ["--gpu", "h200-sxm-141gb", "--db", database]


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"alignment_bytes": 32}, "4096x4096x4096 bf16 nt, aligned to 32 B"),
        ({"dtype": "fp16", "out_dtype": "fp16", "layout": "nn"}, "4096x4096x4096 fp16 nn"),
        ({"ldb": 4104}, "4096x4096x4096 bf16 nt, ldb 4104"),
    ],
)
def test_what_one_might_have_meant_is_named(tmp_path: Path, change: dict[str, Any], said: str) -> None:
    database = tmp_path / "t.db"
    with open_store(database) as store:
        finals(store, record(timed(190.0), problem=replace(PROBLEM, **change)))
    answer, near = best_answer(PROBLEM, str(database), scope_of(H200))
    assert answer is None
    assert f"nothing is known; tuned are {said}; find out" in best_text(PROBLEM, H200, answer, near, str(database))
    assert best_json(answer, near)["nearest"][0]["text"] == said
    assert parsed(best_json(answer, near)["nearest"][0]["options"]) == replace(PROBLEM, **change)
    assert f"  h200-sxm-141gb {said}: 1" in stats_text(*stats(str(database)))


def test_what_was_measured_with_other_libraries_is_marked(tmp_path: Path) -> None:
    database = tmp_path / "t.db"
    with open_store(database) as store:
        finals(store, record(timed(190.0)))
    scope = replace(scope_of(H200), here=replace(ENVIRONMENT, triton="3.7.0", torch="2.12.0"))
    answer, near = best_answer(PROBLEM, str(database), scope)
    text = best_text(PROBLEM, H200, answer, near, None)
    assert "measured elsewhere (triton 3.6.0, here 3.7.0; torch 2.11.0, here 2.12.0)" in text
    assert "`tuner search --shape 4096x4096x4096 --gpu h200-sxm-141gb` measures it here" in text


@pytest.mark.parametrize(
    ("asked", "tuned"),
    [
        ("--shape 1x512x1024 --layout tn", "--shape 1x512x1024 --layout nn"),
        ("--shape 64x1x1024 --layout nn", "--shape 64x1x1024"),
        ("--shape 1x512x1023", "--shape 1x512x1023 --ld 1024,0,0"),
        ("--shape 1x4096x4096", "--shape 1x4096x4096"),
        ("--shape 2x512x1023", "--shape 2x512x1023"),
    ],
)
def test_a_vector_is_one_product_however_it_is_said_to_be_stored(asked: str, tuned: str) -> None:
    """One row of 1,023 elements starts where its matrix does: A is not unaligned, whatever its leading dimension."""
    assert options(parsed(asked)) == tuned
    assert parsed(tuned) == parsed(asked)
