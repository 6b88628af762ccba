"""The family `wgmma` compiled for a chip that is not here: what it takes of an SM, that its MMAs overlap, and what it refuses. What it
computes is tested on a GPU, for Triton's interpreter does not know Gluon."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
import torch
from triton.backends.nvidia.compiler import get_ptxas
from triton.compiler.compiler import make_backend
from triton.runtime.jit import create_function_from_signature

from search_spaces.gpu_files import load_gpu
from search_spaces.lowering import lower_one
from search_spaces.problem import Problem
from search_spaces.schedule import parse_schedule
from tuner.binaries import read_binary
from tuner.kernels import family_module
from tuner.kernels.launch import Call
from tuner.kernels.specialise import compile_call, cuda_target, source_of
from tuner.kernels.wgmma import wgmma_supports
from tuner.kernels.wgmma_plan import consumer_registers, launch_registers, part_widths, resident_ctas, store_boxes, wgmma_obstacle
from tuner.operands import Outline, outlines, scratch_outline, view_of

SM_90 = cuda_target(90)


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))


def calls(text: str, problem: Problem, *, as_tensors: bool = False) -> list[Call]:
    def made(x: Outline) -> Any:
        view = view_of(x)
        return torch.empty_strided(view.shape, view.strides, dtype=view.dtype, device="meta") if as_tensors else x

    schedule, family = parse_schedule(text), family_module("wgmma")
    a, b, c = map(made, outlines(problem))
    assert family.supports(a, b, c, schedule) is None
    scratch = {name: made(scratch_outline(part)) for name, part in family.scratch(a, b, c, schedule, 132).items()}
    found: list[Call] = family.calls(a, b, c, schedule, 132, scratch)
    return found


# bytes of shared memory that hold tiles, registers that a thread is launched with and a consumer's has, instruction
COMPILED = {
    # 4 * (128 + 256) * 64 * 2 for the operands, 2 * 128 * 64 * 2 for slices of C
    "128x256x64 w8 s4 g8 p1 e4": (196608 + 32768, 168, 240, "m64n256k16"),
    "128x256x64 w8 s4 g8 p1 e4 f1": (196608 + 32768, 168, 240, "m64n256k16"),
    "256x128x64 w8 s4 g8 p1 e2": (196608 + 32768, 168, 240, "m64n128k16"),
    "128x256x64 w8 s3 i128 g8 e1": (147456 + 65536, 168, 240, "m64n128k16"),
    "64x256x64 w8 n2 s4 g8 e1": (163840 + 32768, 168, 240, "m64n128k16"),
    "128x128x64 w4 s5 g8 p1 e2 f1": (163840 + 16384, 255, 256, "m64n128k16"),
    "128x128x64 w8 c2 s5 g8 p1 e2": (163840 + 2 * 16384, 168, 240, "m64n128k16"),  # a slice for each consumer
    "64x128x64 w4 s4 g8 p2 e2": (98304 + 8192, 128, 232, "m64n128k16"),  # two CTAs share the registers of an SM
    "64x64x128 w4 s3 e1": (98304 + 8192, 128, 232, "m64n64k16"),  # and do so here, for there is shared memory for two
    "64x16x64 w4 s4": (40960 + 2048, 64, 104, "m64n16k16"),  # four
    "128x192x64 w8 s4 g8 p1 e1 f1": (163840 + 32768 + 16384, 168, 240, "m64n128k16"),  # and m64n64k16; slices of 128 and 64 columns
    "128x192x64 w8 s4 g8 p1 e2": (163840 + 16384 + 16384, 168, 240, "m64n128k16"),  # two of 64 after one another, and one of 64
    "64x96x64 w4 s4 g8 e2 x1": (81920 + 4096 + 4096, 128, 232, "m64n64k16"),
    "128x144x64 w4 s5 g8 p1 e4": (174080 + 2 * 8192 + 4096, 255, 256, "m64n128k16"),  # 32 columns twice, and 16
    "128x320x64 w8 s3 e4": (172032 + 2 * 16384 + 16384, 168, 240, "m64n256k16"),  # 256 + 64, each in TMA boxes of its own
    "128x320x32 w8 s6 e4": (172032 + 2 * 16384 + 16384, 168, 240, "m64n256k16"),
    "256x160x64 w8 s3 g8 p1 e4": (159744 + 2 * 16384 + 16384, 168, 240, "m64n128k16"),
}


@pytest.mark.parametrize(("words", "expected"), COMPILED.items())
def test_what_a_cta_takes(words: str, expected: tuple[int, int, int, str]) -> None:
    tile_bytes, launched, given, instruction = expected
    schedule, problem = parse_schedule(f"wgmma {words}"), Problem(m=4096, n=4096, k=4096)
    compiled = compile_call(calls(f"wgmma {words}", problem)[0], SM_90)
    binary, ptx = read_binary(compiled), compiled.asm["ptx"]
    assert binary.mma_instruction == f"wgmma {instruction}"
    assert binary.spill_slots == 0
    assert tile_bytes < binary.shared_memory_bytes <= tile_bytes + 280  # the rest holds barriers and what other warps are told
    assert binary.registers == launched
    assert given in map(int, re.findall(r"setmaxnreg\.inc\S*\s+(\d+)", ptx))
    assert "cp.async.bulk.tensor.2d.global.shared" in ptx
    lowering = lower_one(schedule, problem, load_gpu("h200"))
    assert lowering.shared_memory_bytes[0] == binary.shared_memory_bytes
    assert lowering.registers_per_thread[0] == launched
    assert f"wgmma {instruction}" == f"wgmma m64n{lowering.mma_n[0]}k16"
    assert consumer_registers(schedule, resident_ctas(schedule, 2)) == given


@pytest.mark.parametrize("layout", ["nn", "nt", "tn", "tt"])
@pytest.mark.parametrize(
    "words",
    [
        "128x256x64 w8 s4 g8 p1 e4",
        "256x128x64 w8 s4 g8 p1 e4 f1",
        "128x128x64 w8 c2 s5 g8 p1 e2",
        "256x160x64 w8 s3 g8 p1 e4",
        "128x192x64 w8 s4 g8 p1 e1 f1",
        "128x144x64 w4 s5 g8 e2",
        "128x320x64 w8 s3 g8 e4",
    ],
)
def test_mmas_are_not_run_one_by_one(tmp_path: Path, words: str, layout: str) -> None:
    """ptxas says so in a remark, which Triton drops."""
    file = tmp_path / "kernel.ptx"
    file.write_text(compile_call(calls(f"wgmma {words}", Problem(m=4096, n=4096, k=4096, layout=layout))[0], SM_90).asm["ptx"])
    command = [get_ptxas(90).path, "-v", "--gpu-name=sm_90a", file, "-o", tmp_path / "kernel.cubin"]
    ran = subprocess.run(command, capture_output=True, text=True, check=True)
    assert "serialized" not in ran.stdout + ran.stderr


def test_columns_that_tma_cannot_store_leave_through_pointers() -> None:
    """331 columns are no whole 16-byte chunks."""
    for words in ("128x256x64 w8 s4 g8 p1", "128x256x64 w8 s4 g8 p1 f1", "128x128x64 w8 c2 s5"):
        compiled = compile_call(calls(f"wgmma {words}", Problem(m=201, n=331, k=264))[0], SM_90)
        assert "cp.async.bulk.tensor.2d.global.shared" not in compiled.asm["ptx"]
        assert read_binary(compiled).spill_slots == 0


def test_parts_of_k_are_added_in_a_second_launch() -> None:
    gemm, total = calls("wgmma 64x128x64 w4 s4 k3", Problem(m=200, n=328, k=1000))
    assert gemm.grid == (4 * 3 * 3, 1, 1)
    assert gemm.arguments["c"] is total.arguments["workspace"]
    assert read_binary(compile_call(gemm, SM_90)).spill_slots == 0


CASES = [
    ("128x256x64 w8 s4 g8 p1 e4 f1", Problem(m=4096, n=4096, k=4096)),
    ("128x128x64 w8 c2 s5 g8 p1 e2", Problem(m=33, n=64, k=40, layout="tt", lda=40)),
    ("64x64x64 w4 s3 p1 k2", Problem(m=200, n=331, k=264, out_dtype="fp32")),
]


@pytest.mark.parametrize(("words", "problem"), CASES)
def test_specialised_as_by_tritons_own_path(words: str, problem: Problem) -> None:
    backend = make_backend(SM_90)
    for call in calls(f"wgmma {words}", problem, as_tensors=True):
        bind = create_function_from_signature(call.kernel.signature, call.kernel.params, backend)
        values, specialisation, options = bind(**call.arguments, **call.constants, **call.options)
        _, signature, constants, attributes = call.kernel._pack_args(backend, dict(options), values, specialisation, options)
        own = source_of(call)
        assert own.signature == signature
        assert own.constants == constants
        assert {place: value for place, value in own.attrs.items() if value} == {
            place: value for place, value in attributes.items() if value
        }


@pytest.mark.parametrize(("words", "problem"), CASES)
def test_outlines_compile_to_what_tensors_launch(words: str, problem: Problem) -> None:
    for own, their in zip(calls(f"wgmma {words}", problem), calls(f"wgmma {words}", problem, as_tensors=True), strict=True):
        assert (own.kernel, own.grid, own.constants, own.options) == (their.kernel, their.grid, their.constants, their.options)
        assert source_of(own).hash() == source_of(their).hash()


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        ("128x128x64 w8 c3", "8 warps for 3 consumers of 1 along N: each needs a multiple of 4 along M"),
        ("128x128x64 w4 c2", "4 warps for 2 consumers of 1 along N: each needs a multiple of 4 along M"),
        ("128x128x64 w8 n4 s3", "8 warps for 1 consumers of 4 along N: each needs a multiple of 4 along M"),
        ("64x256x64 w8 s3", "8 warps of 16 rows along M for a tile of 64 rows; it must have as many, and a multiple of 64"),
        ("32x256x64 w4 s3", "4 warps of 16 rows along M for a tile of 32 rows; it must have as many, and a multiple of 64"),
        ("64x64x64 w8 n2 i64 s3", "instruction N 64 for 2 warps along 64 columns"),
        ("128x224x64 w8 s3", "a tile of 224 columns; it must be a power of two, or the sum of two from 16 on"),
        ("128x192x64 w8 c2 s3 e2", "a tile of 192 columns"),
        ("128x192x64 w8 s3 e3", "3 slices of 128 of the tile's 192 columns; each must hold a power of two, 64 at least"),
        ("128x160x64 w8 s3 e8", "8 slices of 128 of the tile's 160 columns; each must hold a power of two, 32 at least"),
        ("64x64x64 w4 i12 s3", "instruction N 12 for 1 warps along 64 columns"),
        ("128x256x64 w8 n2 s3 e2", "a slice of 128 columns; it must hold whole instructions of all 2 warps along N"),
        ("64x16x64 w4 s3 e4", "4 slices of 16 of the tile's 16 columns; each must hold a power of two, 8 at least"),
        ("64x64x64 w4 s1", "1 stages; a step's buffers are given back while the next one runs, which takes 2"),
        ("64x64x512 w4 s2 f1", "flatten with 1 consumers and 1 steps of K; it needs 1 consumer and 2 steps"),
        ("64x64x64 w8 c2 s3 f1", "flatten with 2 consumers and 8 steps of K"),
    ],
)
def test_refusals(words: str, reason: str) -> None:
    schedule = parse_schedule(f"wgmma {words}")
    assert reason in str(wgmma_obstacle(schedule, -(-512 // schedule.cta_k)))


def test_refusals_of_tensors() -> None:
    schedule = parse_schedule("wgmma 64x64x64 w4 s3")
    a, b, c = (torch.empty(shape, dtype=torch.bfloat16, device="meta") for shape in ((64, 0), (0, 64), (64, 64)))
    assert "A is empty" in str(wgmma_supports(a, b, c, schedule))
    a, b, c = (torch.empty(shape, dtype=torch.bfloat16, device="meta") for shape in ((64, 100), (100, 64), (64, 64)))
    assert "row stride of A is 200 bytes" in str(wgmma_supports(a, b, c, schedule))


def test_registers_of_an_sm_are_shared_out() -> None:
    """65536 registers; 4 warps more than the consumers' are launched, of which the producer keeps 24 registers a thread."""
    one, two = parse_schedule("wgmma 128x256x64 w8 s4 p1"), parse_schedule("wgmma 128x128x64 w4 s3 p2")
    assert (launch_registers(one, 1), consumer_registers(one, 1)) == (168, 240)  # 65536 / 384 = 170; (168 * 12 - 4 * 24) / 8 = 240
    assert (launch_registers(two, 2), consumer_registers(two, 2)) == (128, 232)  # 65536 / 512; (128 * 8 - 4 * 24) / 4 = 232


def test_ctas_that_share_an_sm_without_a_persistent_grid() -> None:
    def ctas(words: str, out_bytes: int = 2) -> int:
        return resident_ctas(parse_schedule(f"wgmma {words}"), out_bytes)

    assert ctas("128x128x64 w4 s3 e2") == 2  # 2 * (98304 + 16384 + 1536) bytes of 233472
    assert ctas("128x128x64 w4 s3 e1") == 1  # 2 * (98304 + 32768 + 1536)
    assert ctas("128x128x64 w4 s3 e1", out_bytes=0) == 2
    assert ctas("64x256x64 w4 s2 e4") == 1  # 128 registers are too few to begin with for an instruction of 256 columns
    assert ctas("64x16x64 w4 s4") == 4
    assert ctas("64x144x64 w4 s3 e1") == 2  # 2 * (79872 + 18432 + 1536): 128 and 16 columns of C


def test_parts_of_a_tile() -> None:
    assert [part_widths(columns) for columns in (256, 192, 96, 160, 48)] == [(256,), (128, 64), (64, 32), (128, 32), (32, 16)]


def test_slices_share_out_the_first_part() -> None:
    def boxes(words: str) -> list[tuple[int, int]]:
        return store_boxes(parse_schedule(f"wgmma {words}"))

    assert boxes("128x256x64 w8 s3 e4") == [(128, 64)]
    assert boxes("128x144x64 w8 s3 e4") == [(128, 32), (128, 16)]
    assert boxes("128x192x64 w8 s3 e1 x1") == [(128, 128), (64, 128)]
