"""The family `gemv` gives the right product, touches no memory that is not its own, adds across threads once a tile, and says what it
cannot run; on Triton's interpreter and by compiling, without a GPU."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from gemv_cases import gemv_cases
from kernel_cases import Case, interpreted_outcomes

from search_spaces.schedule import parse_schedule
from tuner.kernels.gemv import gemv_calls, gemv_scratch, gemv_supports, shares
from tuner.kernels.specialise import compile_call, cuda_target
from tuner.operands import outline, scratch_outline

ROOT = Path(__file__).parent.parent


@pytest.fixture(scope="module")
def interpreted() -> dict[str, Any]:
    return interpreted_outcomes("gemv_cases.py")


@pytest.mark.parametrize("case", gemv_cases(), ids=lambda case: case.name)
def test_product_is_right_and_stays_in_its_memory(case: Case, interpreted: dict[str, Any]) -> None:
    assert interpreted[case.name] == {"failures": [], "kernels": 1}


def operands(m: int, n: int, k: int, strides_b: tuple[int, int]) -> tuple[Any, Any, Any]:
    return outline("bf16", (m, k), (k, 1)), outline("bf16", (k, n), strides_b), outline("bf16", (m, n), (n, 1))


def obstacle(text: str, m: int = 1, n: int = 64, k: int = 4096) -> str | None:
    return gemv_supports(*operands(m, n, k, (1, k)), parse_schedule(text))


@pytest.mark.parametrize(
    ("text", "m", "words"),
    [
        ("gemv 16x4x1024 w4", 17, "M = 17 is over the 16 rows that gemv takes; use another family"),
        ("gemv 32x4x1024 w4", 1, "cta_m = 32 is over the 16 rows that gemv takes"),
        (
            "gemv 1x4x1024 w4 k2",
            1,
            "split_k = 2 with fused_reduction = 0; gemv adds its splits in the same launch: fused_reduction = 1",
        ),
        ("gemv 1x4x1024 w4 k65536 r1", 1, "split_k = 65536 passes 65535, the most CTAs along the second axis of a grid"),
        (
            "gemv 1x4x1536 w4",
            1,
            "cta_k = 1536 is no multiple of 1024: 128 threads of 4 warps share a column, and each loads 8 elements of it at once",
        ),
        (
            "gemv 1x4x512 w4",
            1,
            "cta_k = 512 is no multiple of 1024: 128 threads of 4 warps share a column, and each loads 8 elements of it at once",
        ),
        ("gemv 8x4x2048 w4 k4 r1", 16, None),
    ],
)
def test_what_cannot_run_is_said(text: str, m: int, words: str | None) -> None:
    assert obstacle(text, m) == words


@pytest.mark.parametrize(
    ("strides_b", "text", "expected"),
    [
        ((1, 4096), "gemv 1x4x1024 w4", (128, 8)),  # all threads along K
        ((1, 4100), "gemv 1x4x1024 w4", (128, 4)),  # columns start at multiples of 8 bytes
        ((1, 4097), "gemv 1x4x1024 w4", (128, 1)),
        ((64, 1), "gemv 1x64x32 w4", (16, 1)),  # 8 threads along N, 16 along K
        ((65, 1), "gemv 1x64x32 w4", (2, 1)),
        ((65, 1), "gemv 1x256x32 w4", (1, 1)),  # more columns than threads
        ((128, 2), "gemv 1x4x1024 w4", (128, 1)),
    ],
)
def test_how_threads_share_a_column(strides_b: tuple[int, int], text: str, expected: tuple[int, int]) -> None:
    b: Any = outline("bf16", (4096, 64), strides_b)
    assert shares(b, parse_schedule(text)) == expected


def loop_of(ttgir: str) -> str:
    """The body of the only loop."""
    return ttgir.split("scf.for", 1)[1].split("scf.yield", 1)[0]


@pytest.mark.parametrize(
    ("text", "strides_b", "load"),
    [
        ("gemv 2x4x1024 w4 s1", (1, 4096), "ld.global.L1::evict_first.L2::cache_hint.v4.b32"),
        ("gemv 2x4x1024 w4 s3", (1, 4096), "cp.async.cg.shared.global"),
        ("gemv 2x64x32 w4 s1 k2 r1", (64, 1), "ld.global.L1::evict_first.L2::cache_hint.v4.b32"),
    ],
)
def test_steps_load_16_bytes_a_thread_and_move_nothing_between_threads(text: str, strides_b: tuple[int, int], load: str) -> None:
    a, b, c = operands(2, 64, 4096, strides_b)
    schedule = parse_schedule(text)
    scratch: dict[str, Any] = {name: scratch_outline(part) for name, part in gemv_scratch(a, b, c, schedule, 132).items()}
    (call,) = gemv_calls(a, b, c, schedule, 132, scratch)
    compiled = compile_call(call, cuda_target(90))
    loop = loop_of(compiled.asm["ttgir"])
    assert "tt.reduce" not in loop
    assert "convert_layout" not in loop
    assert load in compiled.asm["ptx"]


def test_empty_products_launch_nothing() -> None:
    for m, n in ((0, 64), (4, 0)):
        assert gemv_calls(*operands(m, n, 64, (1, 64)), parse_schedule("gemv 1x4x256 w1"), 132, {}) == []
