"""What Triton makes of a schedule: predicted against numbers that its compiler gave, and against the rules worked out by hand."""

from __future__ import annotations

import csv
import importlib.metadata
from collections.abc import Iterator
from pathlib import Path

import pytest

from search_spaces.gpu_files import load_gpu
from search_spaces.lowering import MMA_NAMES, lower_one, narrowest_grouped_n
from search_spaces.problem import Problem
from search_spaces.schedule import parse_schedule

CUBE = Problem(m=4096, n=4096, k=4096)

# shared memory as compiled for sm_90; Triton 3.6.0 and 3.9.0 agree
COMPILED_SM90 = {
    "tma 128x256x64 w8 s3 g16 p1 f1": 213016,
    "tma 128x256x64 w8 s3 g1 p1 e2 f1": 180248,
    "tma 64x64x128 w4 s5": 163880,
    "tma 64x128x128 w4 s4": 196640,
    "tma 128x128x64 w4 s6 g8": 196656,
    "tma 128x128x64 w4 s6 k2 g8": 196656,
    "tma 128x256x64 w8 s4 g4 e2": 196640,
    "tma 64x128x64 w8 s5 p1 e2 f1": 147496,  # halving the tile moves it between the warps that share N
    "tma 128x128x64 w8 s3 k2 p1 f1": 163864,  # a fused loop keeps its operands while the partial sums leave
    "tma 128x256x64 w8 s3 k2 p1 f1": 278552,
    "tma 64x16x64 w8 s2 g4": 20496,
    "tma 16x64x32 w8 s4 k3 g8 p1 f1": 19480,
    "tma 32x64x64 w4 s5 k3 g16 p2 f1": 53280,
    "tma 128x128x32 w4 s6 k3 g8 p2 f1": 131120,
    "pointer 128x128x64 w4 s6 g16": 196608,
    "pointer 256x128x32 w8 s6": 147456,
    "pointer 16x64x128 w4 s6": 102400,
    "pointer 64x128x32 w2 s4 k16 g16": 36864,
}


@pytest.mark.parametrize(("text", "compiled"), COMPILED_SM90.items())
def test_shared_memory_on_sm90(text: str, compiled: int) -> None:
    assert lower_one(parse_schedule(text), CUBE, load_gpu("h200")).shared_memory_bytes[0] == compiled


@pytest.mark.parametrize(
    ("gpu", "text", "compiled"),
    [
        ("a100", "pointer 16x128x128 w8 s2 k4 g8", 36864),
        ("a100", "pointer 256x64x128 w4 s3", 163840),
        ("a100", "pointer 256x32x32 w8 s2 k12", 32768),
        ("rtx-5090", "pointer 64x64x128 w4 s3 k8 g8", 65536),
        ("rtx-5090", "tma 64x128x32 w8 s5 k6 p1 f1", 65568),
        ("rtx-5090", "tma 16x128x32 w8 s2", 9224),
        ("b200", "pointer 128x16x32 w4 s5 k2 g16", 46096),
        ("b200", "tma 128x128x64 w4 s6 k10 g16", 196672),
    ],
)
def test_shared_memory_elsewhere(gpu: str, text: str, compiled: int) -> None:
    """As compiled by Triton 3.9.0 for that chip."""
    assert lower_one(parse_schedule(text), CUBE, load_gpu(gpu)).shared_memory_bytes[0] == compiled


@pytest.mark.parametrize(
    ("tile", "warps", "instruction", "grid"),
    [
        ("64x256x64", 8, "wgmma 64x128x16", (4, 2)),  # M is spent, so the second group goes along N
        ("128x256x64", 8, "wgmma 64x256x16", (8, 1)),
        ("128x128x64", 4, "wgmma 64x128x16", (4, 1)),
        ("128x128x64", 2, "mma.sync 16x8x16", (1, 2)),  # half a warp group: no wgmma
        ("32x128x64", 4, "mma.sync 16x8x16", (1, 4)),
    ],
)
def test_instruction_and_warp_grid_on_hopper(tile: str, warps: int, instruction: str, grid: tuple[int, int]) -> None:
    low = lower_one(parse_schedule(f"tma {tile} w{warps} s3"), CUBE, load_gpu("h100"))
    assert low.instruction(0) == instruction
    assert (low.warps_m[0], low.warps_n[0]) == grid


def test_mma_sync_balances_the_warp_grid() -> None:
    """128x128 is 8 x 16 repetitions of 16x8: N first, then M."""
    low = lower_one(parse_schedule("pointer 128x128x32 w4 s3"), CUBE, load_gpu("a100"))
    assert (low.warps_m[0], low.warps_n[0]) == (2, 2)
    assert str(low.warp_tile(0, parse_schedule("pointer 128x128x32 w4 s3").cta)) == "64x64x32"


def test_128x128_on_256_threads_keeps_64_accumulators() -> None:
    assert lower_one(parse_schedule("tma 128x128x64 w8 s3"), CUBE, load_gpu("h100")).accumulators_per_thread[0] == 64


@pytest.mark.parametrize(
    ("gpu", "instruction"),
    [
        *[("t4", "fma 16x8x1"), ("a100", "mma.sync 16x8x16"), ("b200", "tcgen05 128x128x16"), ("rtx-5090", "mma.sync 16x8x16")],
        # as Triton 3.9 compiles tl.dot for 8.7, 10.3, 11.0 and 12.1
        *[("orin", "mma.sync 16x8x16"), ("b300", "tcgen05 128x128x16"), ("thor", "tcgen05 128x128x16"), ("gb10", "mma.sync 16x8x16")],
    ],
)
def test_instruction_by_architecture(gpu: str, instruction: str) -> None:
    p = Problem(m=4096, n=4096, k=4096, dtype="fp16")
    assert lower_one(parse_schedule("pointer 128x128x64 w4 s3"), p, load_gpu(gpu)).instruction(0) == instruction


@pytest.mark.parametrize(("k", "buffers"), [(4096, 6), (4100, 6), (4098, 6), (4097, 1)])
def test_rows_that_start_at_odd_elements_are_not_copied_asynchronously(k: int, buffers: int) -> None:
    """cp.async moves at least 4 bytes, so two elements must be known to start at a multiple of them."""
    p = Problem(m=4096, n=4096, k=k)
    assert lower_one(parse_schedule("pointer 128x128x64 w4 s6"), p, load_gpu("h100")).buffers[0] == buffers


def compiled_by_triton_39() -> list[dict[str, str]]:
    with (Path(__file__).parent / "data" / "compiled_shared_memory.csv").open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


@pytest.fixture
def triton_of(monkeypatch: pytest.MonkeyPatch) -> Iterator[pytest.MonkeyPatch]:
    narrowest_grouped_n.cache_clear()
    yield monkeypatch
    narrowest_grouped_n.cache_clear()


def test_every_schedule_that_was_compiled_through_pointers_or_in_short_tiles(triton_of: pytest.MonkeyPatch) -> None:
    """As Triton 3.9.0 compiled them: odd extents and rows, each layout, unaligned bases, C in fp32, edges from 1 to 256."""
    triton_of.setattr(importlib.metadata, "version", lambda package: "3.9.0")
    gpus = {name: load_gpu(name) for name in ("a100", "h200", "b200", "rtx-5090")}
    wrong = []
    for row in compiled_by_triton_39():
        numbers = {name: int(row[name]) for name in ("m", "n", "k", "lda", "ldb", "ldc", "alignment_bytes")}
        problem = Problem(**numbers, layout=row["layout"], out_dtype=row["out_dtype"])
        low = lower_one(parse_schedule(row["schedule"]), problem, gpus[row["gpu"]])
        found = (int(low.shared_memory_bytes[0]), MMA_NAMES[int(low.mma_version[0])])
        if found != (int(row["shared_memory_bytes"]), row["instruction"]):
            wrong.append((row, found))
    assert not wrong


ODD = Problem(m=4096, n=4096, k=4097)


@pytest.mark.parametrize(
    ("text", "problem", "compiled"),
    [
        ("pointer 256x256x128 w8 s2", ODD, 262160),  # two buffers of 128 KiB, though no load is asynchronous, and two barriers
        ("pointer 256x256x128 w8 s3", ODD, 262160),  # a third stage adds none
        ("pointer 128x128x64 w4 s3", Problem(m=4096, n=4096, k=4097, layout="nn"), 81936),  # A twice, B three times
        ("pointer 128x128x64 w4 s3", Problem(m=4096, n=4096, k=4097, lda=4104), 65552),  # rows are aligned, their ends are not
        ("pointer 128x256x64 w8 s1", Problem(m=4096, n=4096, k=4096, alignment_bytes=2), 65536),  # C in rows, once the loop is over
    ],
)
def test_tcgen05_through_pointers(text: str, problem: Problem, compiled: int) -> None:
    assert lower_one(parse_schedule(text), problem, load_gpu("b200")).shared_memory_bytes[0] == compiled


@pytest.mark.parametrize(
    ("version", "gpu", "instruction", "compiled"),
    [
        ("3.6.0", "h200", "mma.sync 16x8x16", 18432),
        ("3.7.1", "b200", "mma.sync 16x8x16", 18432),
        ("3.8.0", "h200", "wgmma 64x8x16", 27648),
        ("3.9.0+git1234", "b200", "tcgen05 64x8x16", 27664),
        ("4.0.0", "h200", "wgmma 64x8x16", 27648),
        ("", "h200", "wgmma 64x8x16", 27648),
    ],
)
def test_eight_columns_are_wgmma_from_triton_38_on(
    triton_of: pytest.MonkeyPatch, version: str, gpu: str, instruction: str, compiled: int
) -> None:
    """Each as that version compiled it; as the newest where none is installed."""

    def installed(package: str) -> str:
        if not version:
            raise importlib.metadata.PackageNotFoundError(package)
        return version

    triton_of.setattr(importlib.metadata, "version", installed)
    low = lower_one(parse_schedule("pointer 64x8x64 w4 s3"), CUBE, load_gpu(gpu))
    assert (low.instruction(0), low.shared_memory_bytes[0]) == (instruction, compiled)


def test_short_tiles_are_filled_up_to_the_instruction() -> None:
    """A 1x16 tile is two MMA tiles of 16x8, of which one warp keeps 8 values a thread."""
    low = lower_one(parse_schedule("pointer 1x16x64 w1 s3"), CUBE, load_gpu("a100"))
    assert (low.instruction(0), low.accumulators_per_thread[0]) == ("mma.sync 16x8x16", 8)
    assert (low.warps_m[0], low.warps_n[0]) == (1, 1)
