"""The kernel families give the right product, touch no memory that is not theirs, and say what they cannot run; on Triton's interpreter."""

from __future__ import annotations

import builtins
import subprocess
import sys
import types
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from kernel_cases import Case, cases, interpreted_outcomes

from search_spaces.errors import UserError
from search_spaces.families import families
from search_spaces.schedule import UNORDERED, parse_schedule
from tuner import kernels
from tuner.kernels import family_module, family_names, kernel_hash
from tuner.kernels.launch import Call, allocate
from tuner.kernels.partition import is_unordered
from tuner.kernels.raster import tile_of

ROOT = Path(__file__).parent.parent
BF16 = torch.bfloat16


@pytest.fixture(scope="module")
def interpreted() -> dict[str, Any]:
    return interpreted_outcomes("kernel_cases.py")


@pytest.mark.parametrize("case", cases(), ids=lambda case: case.name)
def test_product_is_right_and_stays_in_its_memory(case: Case, interpreted: dict[str, Any]) -> None:
    outcome = interpreted[case.name]
    assert outcome["failures"] == []
    schedule = parse_schedule(case.schedule)
    added_apart = schedule.split_k > 1 and not schedule.fused_reduction
    copied = schedule.pad * sum(_badly_aligned(case, stored, case.layout[place]) for place, stored in enumerate("ab"))
    assert outcome["kernels"] == 1 + added_apart + copied


def _badly_aligned(case: Case, operand: str, letter: str) -> bool:
    rows_along = {"a": (case.k, case.m), "b": (case.n, case.k)}[operand]
    columns = rows_along[letter == "t"]
    return (columns + getattr(case, f"gap_{operand}")) % 8 != 0 or case.offset % 8 != 0


def test_raster_visits_every_tile_once() -> None:
    """Every grid up to 64x64, groups of 1 to 64 rows; the very function that the kernels run, over numpy columns instead of one index."""
    vectorised = types.FunctionType(tile_of.fn.__code__, {"min": np.minimum})
    groups = np.arange(1, 65, dtype=np.int32)[:, None]
    for tiles_m in range(1, 65):
        for tiles_n in range(1, 65):
            rows, columns = vectorised(np.arange(tiles_m * tiles_n, dtype=np.int32)[None, :], tiles_m, tiles_n, groups[:tiles_m])
            assert ((rows >= 0) & (rows < tiles_m) & (columns >= 0) & (columns < tiles_n)).all()
            seen = np.zeros((tiles_m, tiles_m * tiles_n), dtype=bool)
            np.put_along_axis(seen, rows * tiles_n + columns, True, axis=1)
            assert seen.all(), (tiles_m, tiles_n)


@given(tiles_m=st.integers(1, 64), tiles_n=st.integers(1, 64), group=st.integers(1, 64), data=st.data())
def test_raster_keeps_to_its_group(tiles_m: int, tiles_n: int, group: int, data: st.DataObject) -> None:
    """Tiles of one group of rows follow each other, within it column by column; a group higher than the grid is the grid."""
    index = data.draw(st.integers(0, tiles_m * tiles_n - 1))
    row, column = tile_of.fn(index, tiles_m, tiles_n, group)
    first = index // (group * tiles_n) * group
    height = builtins.min(group, tiles_m - first)
    assert first <= row < first + height
    assert column == (index - first * tiles_n) // height
    assert (row, column) == tile_of.fn(index, tiles_m, tiles_n, builtins.min(group, tiles_m))


def meta(rows: int, columns: int, strides: tuple[int, int] | None = None, dtype: torch.dtype = BF16) -> torch.Tensor:
    return torch.empty_strided((rows, columns), strides or (columns, 1), dtype=dtype, device="meta")


def described(text: str, a: torch.Tensor, b: torch.Tensor, c: torch.Tensor | None = None) -> list[Call]:
    schedule = parse_schedule(text)
    out = meta(a.shape[0], b.shape[1]) if c is None else c
    family = family_module(schedule.family)
    found: list[Call] = family.calls(a, b, out, schedule, 132, allocate(family.scratch(a, b, out, schedule, 132), a.device))
    return found


def obstacle(text: str, a: torch.Tensor, b: torch.Tensor, c: torch.Tensor) -> str | None:
    schedule = parse_schedule(text)
    found: str | None = family_module(schedule.family).supports(a, b, c, schedule)
    return found


TMA, POINTER = "tma 64x64x64 w4 s3", "pointer 64x64x64 w4 s3"
SQUARE = meta(64, 64)


@pytest.mark.parametrize(
    ("a", "b", "words"),
    [
        (meta(64, 64, (65, 1)), SQUARE, "row stride of A is 130 bytes; it must be a multiple of 16"),
        (meta(512, 511), meta(511, 64), "row stride of A is 1022 bytes; it must be a multiple of 16"),
        (meta(64, 20, (1, 64)), meta(20, 64), None),
        (meta(20, 64, (1, 20)), SQUARE, "row stride of A is 40 bytes"),  # x.t() with 20 rows
        (SQUARE, meta(64, 20), "row stride of B is 40 bytes"),
        (meta(65, 64).view(-1)[1:4097].view(64, 64), SQUARE, "A starts 2 bytes past a multiple of 16"),
        (meta(64, 64, (128, 2)), SQUARE, "neither rows nor columns of A are stored side by side (strides 128 and 2)"),
        (meta(64, 64, (0, 1)), SQUARE, "row stride of A is 0 bytes"),
        (meta(1, 64, (1, 1)), SQUARE, "row stride of A is 2 bytes"),
        (meta(64, 0), meta(0, 64), "A is empty"),
        (SQUARE, meta(64, 64, dtype=torch.float16), "both must be float16 or both bfloat16"),
    ],
)
def test_tma_says_why_it_cannot_load(a: torch.Tensor, b: torch.Tensor, words: str | None) -> None:
    found = obstacle(TMA, a, b, meta(a.shape[0], b.shape[1]))
    assert found == words if words is None or found is None else words in found


def test_pointer_takes_every_layout_that_tma_refuses() -> None:
    for a in (meta(64, 64, (65, 1)), meta(20, 64, (1, 20)), meta(64, 64, (128, 2)), meta(64, 64, (0, 1)), meta(1, 64, (1, 1))):
        assert obstacle(POINTER, a, SQUARE, meta(a.shape[0], 64)) is None
    assert obstacle(POINTER, meta(64, 511), meta(511, 64), SQUARE) is None


def test_limits_of_a_schedule_are_named() -> None:
    too_wide = "a box of 64x512 elements of B: an edge takes at most 256 elements, and a row at least 16 bytes"
    assert obstacle("tma 64x512x64 w4 s3", SQUARE, SQUARE, SQUARE) == too_wide
    assert obstacle(f"{TMA} e4", SQUARE, SQUARE, SQUARE) == "epilogue_subtile is 4; it must be 1 or 2"
    too_split = "split_k = 65536 passes 65535, the most CTAs along the second axis of a grid"
    assert obstacle(f"{POINTER} k65536", SQUARE, SQUARE, SQUARE) == too_split
    crowded = meta(2**20, 64), meta(64, 2**20), meta(2**20, 2**20)
    too_many = "4294967296 tiles and 1 splits pass 2**30, the most that are counted"
    assert obstacle("pointer 16x16x64 w4 s3", *crowded) == too_many
    too_far = "rows of C are 67108864 elements apart: a tile of 64 rows passes the 2**31 elements of its 32-bit offsets"
    assert obstacle(TMA, SQUARE, meta(64, 30, (1, 64)), meta(64, 30, (2**26, 1))) == too_far


@pytest.mark.parametrize("text", [TMA, POINTER])
def test_limits_of_tensors_are_named(text: str) -> None:
    columns_apart = meta(64, 64, (1, 64))
    assert obstacle(text, SQUARE, SQUARE, columns_apart) == "neighbours in a row of C are 64 elements apart; they must be side by side"
    half = meta(64, 64, dtype=torch.float16)
    assert obstacle(text, SQUARE, SQUARE, half) == "C is torch.float16; it must be torch.bfloat16 or float32"
    rows = 2**31 - 8
    too_long = "M = 2147483640 in steps of 64 passes 2**31, the end of tile coordinates"
    assert obstacle(text, meta(rows, 64), SQUARE, meta(rows, 64)) == too_long


@pytest.mark.parametrize(
    ("c", "text", "stores"),
    [
        (meta(32, 470, (512, 1)), TMA, False),  # 940 bytes a row: a TMA store would write the 4 bytes after it
        (meta(32, 472, (512, 1)), TMA, True),
        (meta(32, 472, (476, 1)), TMA, False),
        (meta(32, 513).view(-1)[1:16385].view(32, 512), TMA, False),
        (meta(32, 4, dtype=torch.float32), TMA, True),
        (meta(32, 6, dtype=torch.float32), TMA, False),
        (meta(32, 472), f"{TMA} k2", False),
    ],
)
def test_tma_stores_only_whole_chunks_of_16_bytes(c: torch.Tensor, text: str, stores: bool) -> None:
    n = c.shape[1]
    call = described(text, meta(32, 64), meta(64, n, (1, 64)), c)[0]
    assert call.constants["TMA_STORE"] is stores
    assert isinstance(call.arguments["c"], torch.Tensor) is not stores


def test_grids() -> None:
    a, b = meta(300, 256), meta(256, 500, (1, 256))
    assert [call.grid for call in described(POINTER, a, b)] == [(5 * 8, 1, 1)]
    assert [call.grid for call in described(f"{POINTER} k3", a, b)] == [(5 * 8, 3, 1), (300, 1, 1)]  # a row of 500 takes one block of 512
    assert described(TMA, a, b)[0].grid == (40, 1, 1)
    assert described(f"{TMA} k4", a, b)[0].grid == (160, 1, 1)
    assert described(f"{TMA} k4 p1", a, b)[0].grid == (132, 1, 1)
    assert described(f"{TMA} k4 p2", a, b)[0].grid == (160, 1, 1)


def test_steps_are_whole_where_each_split_has_some_and_none_is_cut() -> None:
    def whole(k: int, text: str) -> bool:
        return bool(described(text, meta(64, k), meta(k, 64))[0].constants["WHOLE_STEPS"])

    assert whole(96, "pointer 16x16x32 w4 s3")
    assert whole(96, "pointer 16x16x32 w4 s3 k3")
    assert not whole(96, "pointer 16x16x32 w4 s3 k4")  # the fourth split has none
    assert not whole(96, "pointer 16x16x64 w4 s3")
    assert not whole(34, "pointer 16x16x32 w4 s3")
    assert not whole(0, "pointer 16x16x32 w4 s3")


def test_nothing_is_launched_for_an_empty_output() -> None:
    assert described(POINTER, meta(0, 64), SQUARE) == []
    assert described(f"{POINTER} k2", SQUARE, meta(64, 0)) == []


def test_partial_sums_are_fp32_and_summed_into_c() -> None:
    gemm, total = described(f"{TMA} k3", SQUARE, SQUARE)
    sums = gemm.arguments["c"]
    assert (sums.dtype, tuple(sums.shape)) == (torch.float32, (3, 64, 64))
    assert total.arguments["workspace"] is sums
    assert total.arguments["c"].dtype is BF16


def test_every_family_of_the_arithmetic_has_kernels() -> None:
    assert set(family_names()) == set(families())
    with pytest.raises(UserError, match="no kernel family named 'cublas'; known: gemv, pointer, tma, wgmma"):
        family_module("cublas")


def test_names_are_found_without_torch() -> None:
    code = "import sys, tuner.kernels as k; k.family_names(); k.kernel_hash('tma'); sys.exit(bool({'torch', 'triton'} & set(sys.modules)))"
    assert subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=False).returncode == 0


def test_hash_follows_a_family_and_its_helpers_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def hashes(changed: str) -> list[str]:
        for file in kernels.FOLDER.glob("*.py"):
            text = file.read_text(encoding="utf-8")
            (tmp_path / file.name).write_text(text + ("# changed\n" if file.stem == changed else ""), encoding="utf-8")
        with monkeypatch.context() as patch:
            patch.setattr(kernels, "FOLDER", tmp_path)
            return [kernel_hash.__wrapped__(name) for name in ("pointer", "tma")]

    plain = hashes("")
    assert plain == [kernel_hash("pointer"), kernel_hash("tma")]
    assert plain[0] != plain[1]
    assert [old != new for old, new in zip(plain, hashes("tma"), strict=True)] == [False, True]
    assert [old != new for old, new in zip(plain, hashes("specialise"), strict=True)] == [False, False]
    for helper in ("raster", "launch", "reduction"):
        assert [old != new for old, new in zip(plain, hashes(helper), strict=True)] == [True, True]


def test_kernels_and_the_database_mean_the_same_by_unordered() -> None:
    """Kernels are copied into exported modules, so that they cannot ask the constant."""
    texts = ("tma 64x64x64 w4 s3", "tma 64x64x64 w4 s3 k4", "tma 64x64x64 w4 s3 k4 r1", f"tma 64x64x64 w4 s3 k4 r{UNORDERED}")
    assert [is_unordered(parse_schedule(text)) for text in texts] == [False, False, False, True]
