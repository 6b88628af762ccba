"""What the kernels compile to for a chip that is not here, and that a call is specialised just as Triton's own path would."""

from __future__ import annotations

import math
import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from kernel_cases import Case, cases, operand, output
from triton.backends.nvidia.compiler import get_ptxas
from triton.compiler.compiler import make_backend
from triton.runtime.jit import create_function_from_signature

from search_spaces.problem import Problem
from search_spaces.schedule import parse_schedule
from tuner.binaries import read_binary
from tuner.kernels import family_module
from tuner.kernels.launch import Call, allocate
from tuner.kernels.packing import needs_packing, packed_shape
from tuner.kernels.specialise import compile_call, cuda_target, run_compiled, source_of
from tuner.operands import Outline, outline, outlines, scratch_outline, views

SM_90 = cuda_target(90)


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))


def matrices(m: int, n: int, k: int, *, layout: str = "nt", ldc: int = 0) -> list[torch.Tensor]:
    def matrix(rows: int, columns: int, letter: str) -> torch.Tensor:
        strides = (columns, 1) if letter == "n" else (1, rows)
        return torch.empty_strided((rows, columns), strides, dtype=torch.bfloat16, device="meta")

    c = torch.empty_strided((m, n), (ldc or n, 1), dtype=torch.bfloat16, device="meta")
    return [matrix(m, k, layout[0]), matrix(k, n, layout[1]), c]


def calls(text: str, *operands: Any) -> list[Call]:
    """Scratch is outlined, or as tensors are."""
    schedule, (a, b, c) = parse_schedule(text), operands
    family = family_module(schedule.family)
    needed = family.scratch(a, b, c, schedule, 132)
    scratch = allocate(needed, a.device) if isinstance(a, torch.Tensor) else {name: scratch_outline(part) for name, part in needed.items()}
    found: list[Call] = family.calls(a, b, c, schedule, 132, scratch)
    return found


def described(text: str, m: int, n: int, k: int, **memory: Any) -> list[Call]:
    return calls(text, *matrices(m, n, k, **memory))


# bytes of shared memory, registers, instruction: as Triton 3.6.0 gives them for 4096x4096x4096, nt, bf16
COMPILED = {
    "tma 128x256x64 w8 s3 g8 p1 f1": (213016, 163, "wgmma m64n256k16"),
    "tma 128x256x64 w8 s3 g8 p1 f1 e2": (180248, 163, "wgmma m64n256k16"),
    "tma 128x256x64 w8 s4 g8": (196640, 154, "wgmma m64n256k16"),
    "tma 64x64x128 w4 s5 g8": (163880, 58, "wgmma m64n64k16"),
    "tma 64x64x128 w4 s5 g8 p1": (172072, 59, "wgmma m64n64k16"),
    "tma 64x128x128 w4 s4 g8": (196640, 90, "wgmma m64n128k16"),
    "tma 128x128x64 w4 s6 g8 k2": (196656, 161, "wgmma m64n128k16"),
    "pointer 128x128x64 w4 s6 g8": (196608, 200, "wgmma m64n128k16"),
    "pointer 256x128x32 w8 s6 g8": (147456, 194, "wgmma m64n128k16"),
    "pointer 16x64x128 w4 s6": (102400, 64, "mma.sync m16n8k16"),
}


@pytest.mark.parametrize(("text", "compiled"), COMPILED.items())
def test_known_schedules_on_sm_90(text: str, compiled: tuple[int, int, str]) -> None:
    shared_memory_bytes, registers, instruction = compiled
    binary = read_binary(compile_call(described(text, 4096, 4096, 4096)[0], SM_90))
    assert binary.shared_memory_bytes == shared_memory_bytes
    assert binary.mma_instruction == instruction
    assert binary.registers <= registers + 8  # releases of Triton differ by a few
    assert binary.spill_slots == 0


def test_fewer_than_4_warps_lose_wgmma() -> None:
    binary = read_binary(compile_call(described("pointer 64x64x64 w2 s3", 4096, 4096, 4096)[0], SM_90))
    assert binary.mma_instruction == "mma.sync m16n8k16"


@pytest.mark.parametrize("layout", ["nn", "nt", "tn", "tt"])
@pytest.mark.parametrize("shape", [(4096, 4096, 4096), (4088, 1032, 1000)])
def test_pointer_copies_16_bytes_at_a_time(layout: str, shape: tuple[int, int, int]) -> None:
    """Rows that are multiples of 8 elements and not of 16 as well, and with a last K tile that is cut."""
    ptx = compile_call(described("pointer 64x128x64 w4 s3", *shape, layout=layout)[0], SM_90).asm["ptx"]
    copies = [line for line in ptx.splitlines() if "cp.async." in line and "shared.global" in line]
    assert copies
    assert all("0x10" in line or ", 16," in line for line in copies)
    assert "ld.global" not in ptx


def test_fused_loop_stores_through_pointers_without_spills() -> None:
    """N = 4091 has no whole 16-byte chunks: the accumulator leaves through pointers while the next tile's loads run."""
    for words in ("p1 f1", "p1", ""):
        assert read_binary(compile_call(described(f"tma 128x256x64 w8 s3 {words}", 4091, 4091, 4096)[0], SM_90)).spill_slots == 0


@pytest.mark.parametrize(("words", "fused"), [("p1", False), ("p1 f1", True), ("p1 f1 k2", True), ("p1 f1 e2", True)])
def test_flatten_fuses_the_loops(words: str, fused: bool) -> None:
    """The loop that multiplies then works out the coordinates of the next tile too, so that loads run on across tiles."""
    ttgir = compile_call(described(f"tma 128x128x64 w4 s3 {words}", 4096, 4096, 4096)[0], SM_90).asm["ttgir"]
    innermost = ttgir.split("scf.for")[-1]
    assert "warp_group_dot" in innermost
    assert ("arith.remsi" in innermost) is fused


@pytest.mark.parametrize("layout", ["nt", "nn"])
@pytest.mark.parametrize("text", ["tma 128x256x64 w8 s4", "tma 256x128x64 w8 s4", "tma 128x256x32 w8 s6", "pointer 128x256x64 w8 s4"])
def test_wgmma_are_not_run_one_by_one(tmp_path: Path, text: str, layout: str) -> None:
    """ptxas 12.8 says so in a remark (C7515), which Triton drops; it costs a third of the speed."""
    file = tmp_path / "kernel.ptx"
    file.write_text(compile_call(described(text, 8192, 1024, 8192, layout=layout)[0], SM_90).asm["ptx"], encoding="utf-8")
    ran = subprocess.run(
        [get_ptxas(90).path, "-v", "--gpu-name=sm_90a", file, "-o", tmp_path / "kernel.cubin"], capture_output=True, text=True
    )
    assert ran.returncode == 0, ran.stderr
    assert "serialized" not in ran.stdout + ran.stderr


def test_other_chips() -> None:
    for capability, text, instruction in ((80, "pointer 64x64x64 w4 s3", "mma.sync"), (100, "tma 128x128x64 w4 s3", "tcgen05")):
        compiled = compile_call(described(text, 4096, 4096, 4096)[0], cuda_target(capability))
        assert read_binary(compiled).mma_instruction.startswith(instruction)


def test_reduction_compiles_without_spills() -> None:
    for text in ("pointer 64x64x64 w4 s3 k2", "pointer 64x64x64 w4 s3 k16"):
        assert read_binary(compile_call(described(text, 100, 1000, 4096)[1], SM_90)).spill_slots == 0


CALLS: list[tuple[str, tuple[int, int, int], dict[str, Any]]] = [
    ("pointer 64x64x64 w4 s3", (4096, 4096, 4096), {}),
    ("pointer 64x64x64 w4 s3 k3", (1, 105, 107), {}),
    ("pointer 64x64x64 w4 s3", (64, 1, 1), {"layout": "tn"}),
    ("pointer 64x64x64 w4 s3", (33, 64, 0), {"ldc": 2**31}),
    ("tma 64x64x64 w4 s3", (4096, 4096, 4096), {"layout": "tt"}),
    ("tma 64x64x64 w4 s3 p1 f1 e2 k2", (33, 64, 40), {}),
    ("tma 64x64x64 w4 s3", (33, 61, 40), {"ldc": 1000}),
]


@pytest.mark.parametrize(("text", "shape", "memory"), CALLS)
def test_specialised_as_by_tritons_own_path(text: str, shape: tuple[int, int, int], memory: dict[str, Any]) -> None:
    backend = make_backend(SM_90)
    for call in described(text, *shape, **memory):
        kernel = call.kernel
        bind = create_function_from_signature(kernel.signature, kernel.params, backend)
        values, specialisation, options = bind(**call.arguments, **call.constants, **call.options)
        _, signature, constants, attributes = kernel._pack_args(backend, dict(options), values, specialisation, options)
        own = source_of(call)
        assert own.signature == signature
        assert own.constants == constants
        assert {place: value for place, value in own.attrs.items() if value} == {
            place: value for place, value in attributes.items() if value
        }


OUR_NAMES = {torch.float16: "fp16", torch.bfloat16: "bf16", torch.float32: "fp32"}


def compiled_as_for_tensors(text: str, tensors: list[torch.Tensor], alignment_bytes: int = 16) -> None:
    """Outlines lead to the launches, and to the binaries, that tensors do."""
    a, b, c = (outline(OUR_NAMES[x.dtype], tuple(x.shape), x.stride(), x.data_ptr() % 16) for x in tensors)
    theirs, ours = calls(text, *tensors), calls(text, a, b, c)
    assert len(theirs) == len(ours)
    for their, own in zip(theirs, ours, strict=True):
        assert (own.kernel, own.grid, own.constants, own.options) == (their.kernel, their.grid, their.constants, their.options)
        expected, found = source_of(their, alignment_bytes=alignment_bytes), source_of(own, alignment_bytes=alignment_bytes)
        assert (found.signature, found.constants, found.attrs) == (expected.signature, expected.constants, expected.attrs)
        assert found.hash() == expected.hash()


@pytest.mark.parametrize("case", cases(), ids=lambda case: case.name)
def test_outlines_compile_to_what_tensors_launch(case: Case) -> None:
    a = operand(case.m, case.k, case.layout[0], case.dtype, gap=case.gap_a, offset=case.offset, step=case.step)
    b = operand(case.k, case.n, case.layout[1], case.dtype, gap=case.gap_b, offset=case.offset)
    alignment_bytes = math.gcd(case.offset * case.dtype.itemsize, 16)  # gcd(0, 16) is 16
    compiled_as_for_tensors(case.schedule, [a.matrix, b.matrix, output(case).matrix], alignment_bytes)


@pytest.mark.parametrize(("text", "shape", "memory"), CALLS)
def test_outlines_of_extreme_shapes_compile_to_what_tensors_launch(text: str, shape: tuple[int, int, int], memory: dict[str, Any]) -> None:
    compiled_as_for_tensors(text, matrices(*shape, **memory))


@pytest.mark.parametrize("layout", ["nn", "nt", "tn", "tt"])
@pytest.mark.parametrize(("dtype", "out_dtype"), [("bf16", "bf16"), ("fp16", "fp32")])
def test_an_outline_answers_as_the_tensor_would(layout: str, dtype: str, out_dtype: str) -> None:
    def answers(x: torch.Tensor | Outline) -> list[Any]:
        turned = x.t()
        address = x.data_ptr() % 16
        return [str(x.dtype), x.dtype.itemsize, x.element_size(), address, tuple(x.shape), x.stride(), x.stride(-2), turned.stride()]

    problem = Problem(m=24, n=40, k=56, layout=layout, dtype=dtype, out_dtype=out_dtype, lda=64, ldb=72, ldc=48)
    tensors = [torch.empty_strided(v.shape, v.strides, dtype=v.dtype, device="meta") for v in views(problem)]
    assert [answers(x) for x in outlines(problem)] == [answers(x) for x in tensors]


def test_partial_sums_are_outlined_as_they_are_made() -> None:
    """Row by row in fp32, without the gaps that C has."""
    operands = outlines(Problem(m=3, n=5, k=64, dtype="fp16", ldc=9))
    family, schedule = family_module("pointer"), parse_schedule("pointer 16x16x32 w4 s2 k4")
    sums = scratch_outline(family.scratch(*operands, schedule, 132)["split_sums"])
    assert (str(sums.dtype), sums.shape, sums.strides) == ("torch.float32", (4, 3, 5), (15, 5, 1))
    assert family.scratch(*operands, replace(schedule, split_k=1), 132) == {}


@pytest.mark.parametrize("ld", [4096, 4098, 4100, 4104, 4127])
@pytest.mark.parametrize("alignment", [2, 8, 16])
def test_pruning_and_kernels_agree_on_what_is_padded_and_to_what(ld: int, alignment: int) -> None:
    """Kernels go into modules of their own, so that the rule stands on both sides."""
    problem = Problem(m=64, n=32, k=4096, lda=ld, ldb=ld, alignment_bytes=alignment)
    a, b, _ = outlines(problem)
    assert (needs_packing(a), needs_packing(b)) == (problem.row_alignment_bytes("a") < 16, problem.row_alignment_bytes("b") < 16)
    exact = Problem(m=64, n=32, k=ld)
    if exact.packed_bytes:
        repacked = exact.prepacked("ab")
        assert (repacked.lda, repacked.ldb) == tuple(packed_shape(x)[1] for x in outlines(exact)[:2])


def test_alignment_is_assumed_only_where_it_holds() -> None:
    call = described("pointer 64x64x64 w4 s3", 64, 64, 64)[0]
    pointers = [(call.kernel.arg_names.index(name),) for name in ("a", "b", "c")]
    assert all(place in source_of(call).attrs for place in pointers)
    assert not any(place in source_of(call, alignment_bytes=8).attrs for place in pointers)
    shifted = call._replace(arguments=call.arguments | {"a": torch.empty(65 * 64, dtype=torch.bfloat16)[1:]})
    assert [place in source_of(shifted).attrs for place in pointers] == [False, True, True]


def test_one_binary_for_what_does_not_change_it() -> None:
    """Shapes that differ only in values that Triton does not look at share a binary; so do raster groups as high as the grid."""

    def key(text: str, m: int) -> str:
        return str(compile_call(described(text, m, 4096, 4096)[0], SM_90).hash)

    assert key("tma 64x64x64 w4 s3 g4", 4096) == key("tma 64x64x64 w4 s3 g4", 2048)
    assert key("tma 64x64x64 w4 s3 g8", 128) == key("tma 64x64x64 w4 s3 g2", 128)
    assert key("tma 64x64x64 w4 s3 g4", 4096) != key("tma 64x64x64 w4 s3 g4", 4095)


class Recorded:
    """Stands for a loaded binary: keeps what it is launched with."""

    def __getitem__(self, grid: tuple[int, int, int]) -> Any:
        self.grid = grid
        return self.launched

    def launched(self, *values: Any) -> None:
        self.values = values


def test_a_binary_is_given_every_parameter_in_order() -> None:
    """Triton's launcher skips constants by their place, so they have to be there."""
    call = described("tma 64x64x64 w4 s3 p1", 4096, 4096, 4096)[0]
    binary: Any = Recorded()
    run_compiled(binary, call)
    assert binary.grid == call.grid
    assert len(binary.values) == len(call.kernel.arg_names)
    for name, value in zip(call.kernel.arg_names, binary.values, strict=True):
        assert value is (call.constants | call.arguments)[name]


def test_a_call_names_every_parameter_of_its_kernel() -> None:
    for text, shape, memory in CALLS:
        for call in described(text, *shape, **memory):
            assert set(call.arguments) | set(call.constants) == set(call.kernel.arg_names)
            assert {call.kernel.arg_names[place] for place in call.kernel.constexprs} == set(call.constants)
