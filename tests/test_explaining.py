"""What is said of one schedule, as text and as plain data."""

from __future__ import annotations

import dataclasses
import json

import pytest
from click.testing import CliRunner

from search_spaces.gpu_files import load_gpu
from search_spaces.problem import Problem
from search_spaces.schedule import parse_schedule
from search_spaces.space import parse_space
from tuner.cli import app
from tuner.explaining import schedule_json, schedule_text
from tuner.ranking import Ranking, rank

CUBE = Problem(m=4096, n=4096, k=4096)
SMALL = "tma: {cta_m: [64, 128], cta_n: 128, cta_k: 64, warps: 4, stages: [3, 6]}"
DEEP = "tma 128x128x64 w4 s6"  # 6 buffers of 32 KiB and as many barriers


def ranking(shared_memory_bytes: int) -> Ranking:
    hardware = dataclasses.replace(load_gpu("h200"), shared_memory_per_cta_bytes=shared_memory_bytes)
    return rank(CUBE, hardware, parse_space("small", SMALL))


def test_an_exact_fit_of_shared_memory_is_marked() -> None:
    need = 6 * 32768 + 6 * 8
    assert f"{need} B of shared memory, all that a CTA can have, 64 K steps" in schedule_text(parse_schedule(DEEP), ranking(need))
    assert f"{need} B of shared memory, 64 K steps" in schedule_text(parse_schedule(DEEP), ranking(need + 1))
    falls = schedule_text(parse_schedule(DEEP), ranking(need - 1))
    assert falls == f"'{DEEP}' falls: needs {need} B of shared memory, h200-sxm-141gb gives a CTA {need - 1} B"


def test_a_schedule_as_plain_data_is_what_the_text_says() -> None:
    found = ranking(232448)
    told = schedule_json(parse_schedule(DEEP), found)
    row = found.row_of(parse_schedule(DEEP))
    assert row is not None
    assert told["rank"] == row + 1
    assert told["survivors"] == found.pruning.survived
    assert (told["shared_memory_bytes"], told["shared_memory_limit_bytes"]) == (196656, 232448)
    assert (told["cta_tile"], told["mma_tile"], told["instruction"]) == ("128x128x64", "64x128x16", "wgmma 64x128x16")
    assert told["k_steps"] == 64
    estimate = found.estimate(row)
    assert (told["seconds"], told["limiter"], told["terms"]) == (estimate.seconds, estimate.limiter, dict(estimate.terms))


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("tma 128x256x64 w8 s5", "falls: needs 245800 B of shared memory, h200-sxm-141gb gives a CTA 232448 B"),
        ("tma 64x64x64 w4 s3", "can run, but is not in space small"),
        ("wgmma 128x128x64 w4 s4 k2 r1", "falls: family wgmma has no axis fused_reduction; it stands at 1, unused is 0"),
    ],
)
def test_a_schedule_without_a_rank_has_a_reason(text: str, reason: str) -> None:
    assert schedule_json(parse_schedule(text), ranking(232448)) == {"schedule": text, "survivors": 4, "rank": None, "reason": reason}


def test_explain_prints_json_for_one_schedule() -> None:
    narrow = [option for axis in ("cta_m=128", "cta_n=128", "cta_k=64", "warps=4", "split_k=1") for option in ("--axis", axis)]
    asked = ["explain", "--shape", "4096x4096x4096", "--gpu", "h200", "--families", "tma", *narrow, "--json", "--schedule", DEEP]
    ran = CliRunner().invoke(app, asked)
    assert ran.exit_code == 0
    assert json.loads(ran.stdout)["schedule"] == DEEP
