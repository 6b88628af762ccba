"""The family `skinny` compiled for a chip that is not here: that B goes from memory into the MMA's registers and nothing else moves in the
loop, and what it refuses. What it computes is tested on a GPU, for Triton's interpreter does not know Gluon."""

from __future__ import annotations

import re
import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import triton
from triton.compiler import CompiledKernel

from search_spaces.problem import Problem
from search_spaces.schedule import parse_schedule
from tuner.binaries import read_binary
from tuner.kernels.launch import Call
from tuner.kernels.skinny import skinny_calls, skinny_scratch, skinny_supports
from tuner.kernels.specialise import compile_call, cuda_target
from tuner.operands import outline, outlines, scratch_outline

DECODE = Problem(m=8, n=28672, k=4096, layout="nt")


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))


def call_of(words: str, problem: Problem) -> Call:
    schedule = parse_schedule(f"skinny {words}")
    tensors: tuple[Any, Any, Any] = outlines(problem)
    assert skinny_supports(*tensors, schedule) is None
    scratch: dict[str, Any] = {name: scratch_outline(part) for name, part in skinny_scratch(*tensors, schedule, 132).items()}
    (call,) = skinny_calls(*tensors, schedule, 132, scratch)
    return call


def sass_of(compiled: CompiledKernel, folder: Path) -> str:
    file = folder / "kernel.cubin"
    file.write_bytes(compiled.asm["cubin"])
    program = Path(triton.__path__[0]) / "backends/nvidia/bin/nvdisasm"
    return subprocess.run([program, "-c", file], capture_output=True, text=True, check=True).stdout


def loop_of(sass: str) -> str:
    """From the target of the first branch back to that branch."""
    for branch in re.finditer(r"BRA `\((\.L_x_\d+)\)", sass):
        start = sass.find(f"{branch[1]}:")
        if 0 <= start < branch.start():
            return sass[start : branch.end()]
    raise AssertionError("no loop")


@pytest.mark.parametrize(
    ("words", "loads", "mmas"),
    [
        # of B: 16 columns of 256 elements are 8 KiB, 16 loads of 512 B; of A: 16 rows as many; 2 instructions along N, 16 along K
        ("16x16x256 w1 s1", 16 + 16, 2 * 16),
        ("16x32x512 w4 s1", 16 + 8, 4 * 8),  # each of 4 warps along K has 128 elements
        ("16x64x128 w4 n2 s2", 2 * (8 + 4), 2 * 4 * 4),  # 2 along K have 64 elements, 2 along N have 32 columns; 2 steps
        ("16x32x512 w4 s1 k4 r1", 16 + 8, 4 * 8),
        ("32x32x512 w4 s1", 16 + 16, 2 * 4 * 8),
    ],
)
@pytest.mark.parametrize("dtype", ["fp16", "bf16"])
def test_the_loop_loads_16_bytes_a_thread_and_multiplies(tmp_path: Path, words: str, loads: int, mmas: int, dtype: str) -> None:
    problem = replace(DECODE, dtype=dtype, out_dtype=dtype, m=32 if words.startswith("32") else 8)
    compiled = compile_call(call_of(words, problem), cuda_target(90))
    loop = loop_of(sass_of(compiled, tmp_path))
    assert loop.count("LDG.") == len(re.findall(r"LDG\.E\S*\.128", loop)) == loads
    assert loop.count("HMMA.16816") == mmas
    assert not re.search(r"\b(LDS|STS|BAR|SHFL|PRMT|LDL|STL)\b", loop)
    assert read_binary(compiled).spill_slots == 0


@pytest.mark.parametrize("k", [4096, 4104, 136, 8, 0])
def test_nothing_spills_where_k_ends_within_a_step(k: int) -> None:
    for words in ("16x16x256 w1 s1", "16x64x128 w4 n4 s2", "16x32x512 w4 s1 k2 r1"):
        binary = read_binary(compile_call(call_of(words, Problem(m=5, n=4103, k=k, layout="nt")), cuda_target(90)))
        assert binary.spill_slots == 0
        assert "mma.sync" in str(binary.mma_instruction)


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        ("8x16x256 w1", "cta_m = 8; skinny multiplies 16 or 32 rows of A at a time"),
        ("16x16x256 w4 n8", "4 warps, 8 of them along N; they must go round"),
        ("16x16x256 w4 n4", "cta_n = 16 for 4 warps along N; each takes a multiple of 8 columns"),
        ("16x32x128 w4", "cta_k = 128 for 4 warps along K; each takes a multiple of 64 elements"),
        ("16x32x256 w4 k2", "split_k = 2 with fused_reduction = 0; skinny adds its splits in the same launch: fused_reduction = 1"),
        ("16x32x256 w4 k65536 r1", "split_k = 65536 passes 65535, the most CTAs along the second axis of a grid"),
    ],
)
def test_what_cannot_run_is_said(words: str, reason: str) -> None:
    tensors: tuple[Any, Any, Any] = outlines(DECODE)
    assert skinny_supports(*tensors, parse_schedule(f"skinny {words}")) == reason


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"m": 33}, "M = 33 is over the 32 rows that skinny takes; use another family"),
        ({"layout": "nn"}, "neighbours along K are 1 elements apart in A, 28672 in B; skinny needs them side by side in both"),
        ({"layout": "tt"}, "neighbours along K are 8 elements apart in A, 1 in B; skinny needs them side by side in both"),
        ({"lda": 4100}, "A starts at 0, its rows along K 8200 B apart; skinny needs multiples of 16 B"),
        ({"ldb": 4100}, "B starts at 0, its rows along K 8200 B apart; skinny needs multiples of 16 B"),
        ({"alignment_bytes": 2}, "A starts at 2, its rows along K 8192 B apart; skinny needs multiples of 16 B"),
        ({"k": 4092, "lda": 4096, "ldb": 4096}, "K = 4092 is no multiple of the 8 elements that skinny loads at once"),
    ],
)
def test_operands_that_it_cannot_load_are_refused(changes: dict[str, Any], reason: str) -> None:
    shape: dict[str, Any] = {"m": 8, "n": 28672, "k": 4096, "layout": "nt"} | changes
    tensors: tuple[Any, Any, Any] = outlines(Problem(**shape))
    assert skinny_supports(*tensors, parse_schedule("skinny 16x32x512 w4")) == reason


def test_empty_products_launch_nothing() -> None:
    for m, n in ((0, 64), (4, 0)):
        operands: tuple[Any, Any, Any] = (
            outline("bf16", (m, 64), (64, 1)),
            outline("bf16", (64, n), (1, 64)),
            outline("bf16", (m, n), (max(n, 1), 1)),
        )
        assert skinny_calls(*operands, parse_schedule("skinny 16x16x64 w1"), 132, {}) == []
