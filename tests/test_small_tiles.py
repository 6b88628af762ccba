"""Tiles with an edge under 16, compiled for four chips: what tl.dot takes, and that what pruning lets through is what it predicts."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest
from triton.backends.nvidia.compiler import min_dot_size

from search_spaces.constraints import LEAST_DOT_K
from search_spaces.gpu_files import load_gpu
from search_spaces.lowering import MMA_NAMES, lower_one
from search_spaces.problem import Problem
from search_spaces.schedule import parse_schedule
from search_spaces.space import why_not
from tuner.binaries import read_binary
from tuner.kernels import family_module
from tuner.kernels.specialise import compile_call, cuda_target
from tuner.operands import outlines

GPUS = {80: "a100", 90: "h200", 100: "b200", 120: "rtx-5090"}
CUBE = Problem(m=4096, n=4096, k=4096)


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))


@pytest.mark.parametrize("capability", GPUS)
def test_the_installed_triton_takes_any_m_and_n_and_the_k_that_pruning_asks_for(capability: int) -> None:
    half = SimpleNamespace(scalar=SimpleNamespace(primitive_bitwidth=16))
    assert min_dot_size(cuda_target(capability))(half, half) == (1, 1, LEAST_DOT_K)


@pytest.mark.parametrize(
    ("capability", "text"),
    [
        (80, "pointer 16x8x64 w1 s3"),
        (90, "pointer 64x8x64 w4 s3"),
        (100, "pointer 64x8x64 w4 s3"),
        (100, "pointer 8x16x64 w2 s3"),
        (120, "pointer 1x16x64 w1 s3"),
        (90, "tma 64x2x64 w4 s3"),
        (120, "tma 4x64x64 w4 s3"),
    ],
)
def test_short_tiles_compile_as_predicted(capability: int, text: str) -> None:
    schedule, gpu = parse_schedule(text), load_gpu(GPUS[capability])
    assert why_not(schedule, CUBE, gpu) is None
    operands, family = outlines(CUBE), family_module(schedule.family)
    assert family.supports(*operands, schedule) is None
    (call,) = family.calls(*operands, schedule, 132, {})
    binary, low = read_binary(compile_call(call, cuda_target(capability))), lower_one(schedule, CUBE, gpu)
    assert binary.shared_memory_bytes == low.shared_memory_bytes[0]
    assert binary.mma_instruction.startswith(MMA_NAMES[int(low.mma_version[0])])
    assert binary.spill_slots == 0


def test_a_k_of_8_does_not_compile() -> None:
    schedule = parse_schedule("pointer 64x64x8 w4 s3")
    (call,) = family_module("pointer").calls(*outlines(CUBE), schedule, 132, {})
    with pytest.raises(Exception, match="K >= 16"):
        compile_call(call, cuda_target(90))
    assert why_not(schedule, CUBE, load_gpu("h200")) == "cta_k=8 is below the 16 that tl.dot takes of 16-bit types"
