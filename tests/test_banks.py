"""Bank conflicts: values worked out by hand and known from documents, and what Triton compiles of the tiles of schedules."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner
from compiled_shared import accesses_of, compiled, tiles_of
from hypothesis import given
from hypothesis import strategies as st

from search_spaces.banks import Access, SharedTile, access, along_rows, down_columns, fragment, least_padding
from search_spaces.errors import UserError
from search_spaces.gpu_files import load_gpu
from search_spaces.lowering import lower
from search_spaces.problem import Problem
from search_spaces.schedule import parse_schedule
from search_spaces.shared_layouts import PlacedTile, conflict_wavefronts, placed_tiles
from search_spaces.table import ScheduleTable
from tuner.bank_report import placed_facts, placed_text
from tuner.cli import app

KERNELS = [json.loads(line) for line in (Path(__file__).parent / "data" / "compiled_shared.jsonl").read_text().splitlines()]
CAPABILITY = {"h200": 90, "a100": 80, "b200": 100, "rtx-5090": 120, "t4": 75}


def floats(row: int, rows: int = 0, **others: int) -> SharedTile:
    return SharedTile(rows=rows or row, row_elements=row, element_bytes=4, **others)


def halves(row: int, rows: int = 64, **others: int) -> SharedTile:
    return SharedTile(rows=rows, row_elements=row, element_bytes=2, **others)


@pytest.mark.parametrize(("row", "ways"), [(16, 8), (17, 1), (32, 32), (33, 1), (8, 2), (24, 6), (31, 1), (64, 32), (1, 1)])
def test_floats_down_a_column_of_a_square_tile(row: int, ways: int) -> None:
    """16: rows 16 words apart hit 2 banks, 8 rows each. 24: rows 24 apart hit banks 0, 24, 16, 8, so 24 rows are 6 to a bank."""
    assert access(floats(row), "column").ways == ways
    assert access(floats(row - 1, row, padding_elements=1) if row > 1 else floats(row), "column").ways == ways


def test_banks_of_the_16_wide_tile_row_by_row() -> None:
    """Without padding banks 0, 16, 0, 16; with one element banks 0, 17, 2."""
    assert [address // 4 % 32 for address in access(floats(16), "column").addresses[:4]] == [0, 16, 0, 16]
    assert [address // 4 % 32 for address in access(floats(16, padding_elements=1), "column").addresses[:3]] == [0, 17, 2]


def test_a_whole_warp_down_two_columns_of_16() -> None:
    """Row 15 of a 17-wide tile begins at word 255, so that its second element lies in bank 0 beside the first row's first."""
    assert down_columns(floats(16), 4).ways == 8
    assert down_columns(floats(17, 16), 4).ways == 2
    assert access(floats(16, 32), "column").ways == 16


@pytest.mark.parametrize(
    ("element_bytes", "lane_bytes", "wavefronts"),
    [(4, 4, 1), (2, 2, 1), (1, 1, 1), (8, 8, 2), (4, 8, 2), (4, 16, 4), (2, 16, 4), (16, 16, 4)],
)
def test_lanes_beside_each_other_never_conflict(element_bytes: int, lane_bytes: int, wavefronts: int) -> None:
    """32 lanes of 16 bytes are 512 bytes: 4 clocks of 128."""
    found = along_rows(SharedTile(rows=4, row_elements=512 // element_bytes, element_bytes=element_bytes), lane_bytes)
    assert (found.ways, found.wavefronts) == (1, wavefronts)


@pytest.mark.parametrize(
    ("words_apart", "ways"),
    [(1, 1), (2, 2), (3, 1), (4, 4), (6, 2), (8, 8), (16, 16), (32, 32), (0, 1)],
)
def test_strided_words_as_the_cuda_guide_has_them(words_apart: int, ways: int) -> None:
    """Odd strides are free, a stride of 2 is two-way, one word for all lanes is a broadcast."""
    assert Access(4, tuple(4 * words_apart * lane for lane in range(32))).ways == ways


def test_halves_of_one_word_are_no_conflict() -> None:
    assert Access(2, tuple(2 * lane for lane in range(32))).ways == 1
    assert Access(2, tuple(64 * lane for lane in range(32))).ways == 16  # words 16 apart: 2 banks
    assert Access(8, tuple(16 * lane for lane in range(32))).phases == (2, 2)  # 16 lanes over 64 words
    assert Access(8, tuple(8 * (lane % 2) for lane in range(32))).phases == (1, 1)


@pytest.mark.parametrize(
    ("row", "plain", "swizzle"),
    [(16, 2, 32), (32, 4, 64), (64, 8, 128), (128, 8, 128), (256, 8, 128), (128, 8, 64), (64, 8, 32)],
)
def test_fragments_of_16_bit_tiles(row: int, plain: int, swizzle: int) -> None:
    """8 rows of 16 bytes: rows of 32 bytes leave 4 to a line, so two lines share banks; each swizzle is free for its own width."""
    assert fragment(halves(row)).phases == (plain,) * 4
    assert fragment(halves(row, swizzle_bytes=swizzle)).phases == (1, 1, 1, 1)
    assert fragment(halves(row, padding_elements=8)).ways == 1  # 16 bytes more: rows begin 4 banks on


@pytest.mark.parametrize(
    ("swizzle", "row", "chunks"),
    [
        (128, 64, [0, 1, 2, 3, 4, 5, 6, 7]),  # Swizzle<3, 4, 3>: chunk ^ row
        (64, 32, [0, 0, 1, 1, 2, 2, 3, 3]),  # Swizzle<2, 4, 3>: chunk ^ row / 2
        (32, 16, [0, 0, 0, 0, 1, 1, 1, 1]),  # Swizzle<1, 4, 3>: chunk ^ row / 4
    ],
)
def test_where_swizzles_put_the_first_chunk_of_a_row(swizzle: int, row: int, chunks: list[int]) -> None:
    tile = halves(row, swizzle_bytes=swizzle)
    assert [(tile.address(r, 0) - r * tile.row_bytes) // 16 for r in range(8)] == chunks
    assert tile.address(8 * 128 // tile.row_bytes, 0) == 1024  # and so on every 1024 bytes


def test_a_long_row_lies_in_blocks_as_wide_as_the_swizzle() -> None:
    """Elements 64 to 127 of 64 rows come after all rows of the first 64: 64 x 128 bytes."""
    assert halves(128, swizzle_bytes=128).address(0, 128) == 64 * 128
    assert halves(128, swizzle_bytes=128).address(1, 128) == 64 * 128 + 128 + 16


@given(st.sampled_from([32, 64, 128]), st.sampled_from([16, 32, 64, 128]), st.integers(1, 40))
def test_a_swizzle_loses_no_byte(swizzle: int, row: int, rows: int) -> None:
    tile = halves(row, rows, swizzle_bytes=swizzle)
    places = {tile.address(r, byte) for r in range(rows) for byte in range(0, tile.row_bytes, 2)}
    assert len(places) == rows * row


@pytest.mark.parametrize(("row", "how", "padding"), [(16, "column", 1), (17, "column", 0), (32, "column", 1), (64, "fragment", 4)])
def test_least_padding(row: int, how: str, padding: int) -> None:
    assert least_padding(floats(row), how) == padding


def test_columns_of_bytes_that_no_whole_word_of_padding_parts() -> None:
    """128 bytes a row, a byte a lane: 32 ways; 4 bytes more move each row by a bank."""
    tile = SharedTile(rows=128, row_elements=128, element_bytes=1)
    assert access(tile, "column").ways == 32
    assert access(SharedTile(rows=128, row_elements=128, element_bytes=1, padding_elements=4), "column").ways == 1


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        ("--row 17 --swizzle 128", "a row of 68 B does not lie in chunks .* rows of 20 elements"),
        ("--row 24 --swizzle 64", "a row of 96 B .* rows of 32 elements"),
        ("--row 16 --swizzle 48", "a swizzle of 48 B: give 32, 64 or 128"),
        ("--row 16 --padding 1 --swizzle 32", "a padding of 1 with a swizzle of 32 B: give one of them"),
        ("--row 17 --lane-bytes 16", "a row has 68 B, no multiple of the 16 B"),
        ("--row 16 --padding 1 --lane-bytes 8", "rows start every 68 B, no multiple of the 8 B"),
        ("--row 16 --lane-bytes 3", "3 B a lane of elements of 4 B: give one of 4, 8, 16"),
        ("--row 16 --element-bytes 3", "an element of 3 B: give one of 1, 2, 4, 8, 16"),
        ("--row 16 --access diagonal", "no access named 'diagonal'; known: row, column, fragment"),
        ("--row 16 --rows 4 --access fragment", "4 rows of 64 B holds no fragment; give at least 8 rows"),
        ("--row 99999999999999999999", "elements a row: 99999999999999999999 is outside 1..65536"),
        ("--row 16 --access fragment --lane-bytes 16", "16 B a lane of a fragment"),
    ],
)
def test_what_is_refused(words: str, sentence: str) -> None:
    with pytest.raises(UserError, match=sentence):
        CliRunner().invoke(app, ["banks", *words.split()], catch_exceptions=False, standalone_mode=False)


def test_the_command() -> None:
    text = CliRunner().invoke(app, ["banks", "--row", "16"]).output
    assert "16 x 16 elements of 4 B: a warp takes it down a column" in text
    assert "begin in banks 0, 16, 0, 16, 0, 16, 0, 16 ..." in text
    assert "8 clocks in place of 1: a padding of 1 leaves none" in text
    facts = json.loads(CliRunner().invoke(app, ["banks", "--row", "64", "--element-bytes", "2", "--access", "fragment", "--json"]).output)
    assert {name: facts[name] for name in ("ways", "phases", "wavefronts", "conflicts", "least_padding_elements")} == {
        "ways": 8,
        "phases": 4,
        "wavefronts": 32,
        "conflicts": 28,
        "least_padding_elements": 8,
    }


def problem_of(kernel: Mapping[str, Any]) -> Problem:
    return Problem(m=4096, n=4096, k=4096, **kernel["problem"])


def predicted(kernel: Mapping[str, Any]) -> list[PlacedTile]:
    return placed_tiles(parse_schedule(kernel["schedule"]), problem_of(kernel), load_gpu(kernel["gpu"]))


def as_triton_has_it(placed: PlacedTile) -> tuple[int, int, str]:
    shape = (placed.tile.rows, placed.tile.row_elements)
    turned = "transposed = true" in placed.name or "order = [0, 1]" in placed.name
    return (*(shape[::-1] if turned else shape), placed.name)  # type: ignore[return-value]


def worst(kernel: Mapping[str, Any]) -> int:
    """Of what the compiled kernel does in shared memory; on chips without tensor cores for Triton, of what it reads there."""
    kinds = ("ld.",) if kernel["gpu"] == "t4" else ("ld", "st", "cp")
    return max(max(phases) for opcode, phases, _ in kernel["accesses"] if opcode.startswith(kinds))


@pytest.mark.parametrize("kernel", KERNELS, ids=lambda kernel: f"{kernel['gpu']} {kernel['schedule']}")
def test_tiles_lie_as_triton_compiled_them(kernel: Mapping[str, Any]) -> None:
    """Layouts of its IR, and the worst conflict of the addresses in its PTX."""
    placed = predicted(kernel)
    assert {as_triton_has_it(one) for one in placed} == {tuple(tile) for tile in kernel["tiles"]}
    assert max(one.ways for one in placed) == worst(kernel)


@pytest.mark.parametrize("index", [0, 7, 12, 18])
def test_the_installed_triton_compiles_them_so(index: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    kernel = KERNELS[index]
    asm = compiled(kernel["schedule"], CAPABILITY[kernel["gpu"]], problem_of(kernel))
    assert tiles_of(asm["ttgir"]) == {tuple(tile) for tile in kernel["tiles"]}
    now = {"gpu": kernel["gpu"], "accesses": [(opcode, found.phases, 1) for opcode, found in accesses_of(asm["ptx"]) if "b8" not in opcode]}
    assert worst(now) == worst(kernel)


def test_nothing_is_placed_for_streams() -> None:
    assert placed_tiles(parse_schedule("gemv 1x4x1024 w4"), Problem(m=1, n=4096, k=4096), load_gpu("h200")) == []


@pytest.mark.parametrize("text", ["pointer 1x16x32 w4 s2", "pointer 16x8x16 w2 s2", "pointer 8x16x64 w4 s3"])
def test_tiles_thinner_than_a_matrix(text: str) -> None:
    assert {one.ways for one in placed_tiles(parse_schedule(text), Problem(m=64, n=64, k=64), load_gpu("h200"))} == {1}


def conflicts(text: str, gpu: str, **kind: str) -> tuple[float, float]:
    problem, hardware, table = Problem(m=4096, n=4096, k=4096, **kind), load_gpu(gpu), ScheduleTable.of([parse_schedule(text)])  # type: ignore[arg-type]
    steps, tiles = conflict_wavefronts(table, lower(table, problem, hardware), problem)
    return float(steps[0]), float(tiles[0])


@pytest.mark.parametrize(
    ("text", "gpu", "kind", "of_step", "of_tile"),
    [
        ("tma 64x64x64 w4 s3", "h200", {}, 0, 0),
        ("wgmma 128x128x64 w4 s4 z32", "h200", {}, 0, 0),
        ("pointer 64x64x64 w4 s3", "h200", {"out_dtype": "fp32"}, 0, 0),
        ("tma 64x64x64 w4 s3", "h200", {"out_dtype": "fp32"}, 0, 64 * 64 * 4 / 128),  # twice as long: as much again
        ("tma 128x256x64 w8 s3 e2", "h200", {"out_dtype": "fp32"}, 0, 128 * 256 * 4 / 128),
        ("tma 64x64x64 w4 s3 k2", "h200", {"out_dtype": "fp32"}, 0, 0),  # leaves through pointers
        ("tma 64x64x64 w4 s3 x1", "h200", {"out_dtype": "fp32"}, 0, 0),
        ("tma 16x32x64 w4 s4 x1", "h200", {"out_dtype": "fp32"}, 0, 16 * 32 * 4 / 128),
        ("wgmma 64x32x64 w4 s4 e4", "h200", {"out_dtype": "fp32"}, 0, 0),  # 8 columns of 32 bytes: rows follow each other
        ("wgmma 128x192x64 w8 s3 e1", "h200", {"out_dtype": "fp32"}, 0, 128 * 192 * 4 / 128),
        ("tma 128x128x64 w4 s3", "b200", {"out_dtype": "fp32"}, 0, 0),
        # a thread has 4 rows and 2 columns: 32 times 4 reads of A at 2 ways and 2 of B at 16, by 4 warps
        ("pointer 32x32x32 w4 s3", "t4", {"dtype": "fp16"}, 4 * 32 * (4 * 1 + 2 * 15), 0),
        ("pointer 32x32x32 w4 s3", "t4", {"dtype": "fp16", "layout": "tn"}, 0, 0),
        ("gemv 1x4x1024 w4", "t4", {"dtype": "fp16"}, 0, 0),
    ],
)
def test_clocks_that_conflicts_add(text: str, gpu: str, kind: dict[str, str], of_step: float, of_tile: float) -> None:
    assert conflicts(text, gpu, **kind) == (of_step, of_tile)


@pytest.mark.parametrize("layout", ["nn", "nt", "tn", "tt"])
@pytest.mark.parametrize("out_dtype", ["bf16", "fp32"])
def test_the_model_and_the_explanation_agree(layout: str, out_dtype: str) -> None:
    """What a table of many schedules is charged is what each of them shows: some conflict, or none."""
    problem = Problem(m=4096, n=4096, k=4096, layout=layout, dtype="fp16", out_dtype=out_dtype)
    tma = ["tma 16x16x64 w4 s3", "tma 64x32x32 w4 s3 x1", "tma 64x16x64 w4 s3 e2", "tma 16x32x32 w4 s3 x1", "tma 64x64x64 w4 s3 k2"]
    wgmma = ["wgmma 64x16x64 w4 s4 e2", "wgmma 64x96x64 w4 s4", "wgmma 64x144x64 w4 s4 x1", "wgmma 64x64x64 w4 s4 z32"]
    pointer = ["pointer 16x16x16 w2 s2", "pointer 64x64x16 w4 s2", "pointer 32x128x32 w8 s2 x1", "pointer 128x32x64 w4 s2"]
    for gpu, texts in (("h200", [*tma, *wgmma, *pointer]), ("t4", pointer), ("b200", tma)):
        hardware, schedules = load_gpu(gpu), [parse_schedule(text) for text in texts]
        table = ScheduleTable.of(schedules)
        charged = np.add(*conflict_wavefronts(table, lower(table, problem, hardware), problem)) > 0
        assert list(charged) == [any(one.ways > 1 for one in placed_tiles(s, problem, hardware)) for s in schedules]


def test_explain_shows_where_the_tiles_of_a_schedule_lie() -> None:
    """8 rows of 64 fp32 values fill two blocks of the widest swizzle; half a warp stores 4 rows of 32 bytes over half the banks."""
    schedule, problem, h200 = parse_schedule("tma 64x64x64 w4 s3"), Problem(m=4096, n=4096, k=4096, out_dtype="fp32"), load_gpu("h200")
    lines = [line.split() for line in placed_text(schedule, problem, h200).splitlines()[2:]]
    assert lines == [
        ["A", "64", "of", "64", "x", "2", "B", "nvmma_shared", "128", "read", "by", "wgmma", "1"],
        ["B", "64", "of", "64", "x", "2", "B", "nvmma_shared", "128", "read", "by", "wgmma", "1"],
        ["C", "64", "of", "64", "x", "4", "B", "nvmma_shared", "128", "written", "by", "lanes,", "8", "B", "each", "2"],
    ]
    facts = placed_facts(parse_schedule("pointer 64x64x32 w4 s2 x1"), Problem(m=64, n=64, k=64, dtype="fp16"), load_gpu("a100"))
    assert [(fact["operand"], fact["layout"], fact["swizzle_bytes"], fact["ways"]) for fact in facts] == [
        ("B", "swizzled_shared<{vec = 8, perPhase = 2, maxPhase = 4, order = [1, 0]}>", 64, 1),
        ("A", "swizzled_shared<{vec = 8, perPhase = 2, maxPhase = 4, order = [0, 1]}>", 64, 1),
    ]
    assert "registers" in placed_text(parse_schedule("gemv 1x4x1024 w4"), Problem(m=1, n=64, k=4096), h200)
