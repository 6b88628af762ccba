"""Pruning and the kernels' own `supports` state the same rules: what survives the one is taken by the other, for any problem."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from search_spaces.errors import UserError
from search_spaces.families import families
from search_spaces.gpu_files import load_gpu
from search_spaces.problem import MAX_EXTENT, Problem
from search_spaces.schedule import AXES, parse_schedule
from search_spaces.space import load_space, prune, why_not
from search_spaces.table import ScheduleTable
from tuner.kernels import family_module
from tuner.operands import Outline, outlines

ENDLESS = dataclasses.replace(load_gpu("h200"), memory_bytes=2**57)  # the memory that a problem takes hides nothing

VALUES = {
    "cta_m": (1, 2, 4, 8, 16, 32, 64, 128, 256),
    "cta_n": (1, 2, 4, 8, 16, 32, 64, 96, 128, 144, 192, 256, 320),
    "cta_k": (16, 32, 64, 128, 256, 512, 1024, 4096),
    "warps": (1, 2, 4, 8, 16),
    "stages": (1, 2, 3, 4, 6),
    "split_k": (1, 2, 3, 8, 70000),
    "group_m": (1, 4, 8),
    "persistent_ctas_per_sm": (0, 1, 2),
    "epilogue_subtile": (1, 2, 4),
    "flatten": (0, 1),
    "stream_k": (0, 1),
    "fused_reduction": (0, 1, 2),
    "swap_ab": (0, 1),
    "pad": (0, 1),
    "warps_n": (0, 1, 2),
    "instruction_n": (0, 8, 64, 128),
    "consumers": (1, 2),
    "producer_registers": (0, 40),
    "swizzle_bytes": (0, 64),
}
extents = st.sampled_from([1, 2, 7, 8, 15, 16, 60, 64, 256, 1000, 4096, 4097, 2**20, 2**28, 2**31 - 300, MAX_EXTENT]) | st.integers(1, 300)
gaps = st.sampled_from([0, 0, 0, 1, 4, 8, 34_000_001, 2**31])


@st.composite
def problems(draw: st.DrawFn) -> Problem:
    m, n, k = (draw(extents) for _ in range(3))
    given = {"m": m, "n": n, "k": k, "layout": draw(st.sampled_from(["nn", "nt", "tn", "tt"]))}
    given |= {"out_dtype": draw(st.sampled_from(["bf16", "fp32"])), "alignment_bytes": draw(st.sampled_from([2, 8, 16, 16, 64]))}
    if draw(st.booleans()):
        given["alignment_bytes"] = 16
    dense, to = Problem(**given), 8 if given["alignment_bytes"] == 16 and draw(st.booleans()) else 1
    return dataclasses.replace(dense, **{name: -(-(getattr(dense, name) + draw(gaps)) // to) * to for name in ("lda", "ldb", "ldc")})


def drawn(family: str, seed: int) -> ScheduleTable:
    """4000 schedules: half of the values are those of the default space, so that some survive."""
    draw, columns, usual = np.random.default_rng(seed), {}, load_space("default").axes[family]
    for axis, (_, unused) in AXES.items():
        column = draw.choice(usual.get(axis, (unused,)), 4000)
        if axis in families()[family].axes:
            other = draw.random(4000) < 0.2
            column[other] = draw.choice(VALUES[axis], np.count_nonzero(other))
        columns[axis] = column
    return ScheduleTable((family,), np.zeros(4000, dtype=np.int64), columns)


def operands(problem: Problem) -> list[Outline]:
    """With torch's own dtypes: a kernel that pads makes the copy's shape of one."""
    kinds = {"bf16": torch.bfloat16, "fp32": torch.float32}
    return [dataclasses.replace(x, dtype=kinds[x.dtype.name]) for x in outlines(problem)]  # type: ignore[arg-type]


@settings(max_examples=25, deadline=None)
@given(problems(), st.sampled_from(sorted(families())), st.integers(0, 2**32))
def test_what_survives_pruning_is_supported(problem: Problem, family: str, seed: int) -> None:
    a, b, c = operands(problem)
    for schedule in prune(drawn(family, seed), problem, ENDLESS).survivors.schedules()[:100]:
        assert family_module(family).supports(a, b, c, schedule) is None, schedule


SAID_TWICE = {
    *("tile_coordinates", "counted_tiles", "grid", "tma_row_offsets", "tma_row_stride", "tma_base", "tma_box", "tma_box_bytes"),
    *(
        "stream_k_counted",
        "swapped_parts",
        "stream_splits",
        "stream_step",
        "ring_warps",
        "ring_instruction",
        "ring_slices",
        "kernel_variants",
    ),
}


@settings(max_examples=25, deadline=None)
@given(problems(), st.sampled_from(sorted(families())), st.integers(0, 2**32))
def test_what_falls_to_a_rule_of_the_kernels_is_refused_by_them(problem: Problem, family: str, seed: int) -> None:
    a, b, c = operands(problem)
    for fallen in prune(drawn(family, seed), problem, ENDLESS).fallen:
        if fallen.constraint in SAID_TWICE:
            assert family_module(family).supports(a, b, c, fallen.example), fallen


@pytest.mark.parametrize(
    ("text", "problem", "sentence"),
    [
        # C of 60 columns leaves through pointers: its rows are no whole chunks of 16 bytes
        (
            "tma 64x64x32 w4 s2",
            Problem(m=256, n=60, k=64, ldc=34_000_001),
            f"span {34_000_001 * 64 + 60} elements, 32-bit offsets reach {2**31}",
        ),
        ("tma 16x64x32 w4 s2 x1", Problem(m=60, n=60, k=64, ldc=34_000_001), f"span {34_000_001 * 64 + 60} elements, 32-bit offsets"),
        ("wgmma 64x64x64 w4 s3", Problem(m=256, n=60, k=4096, ldc=2**26), f"span {2**32 + 60} elements, 32-bit offsets reach {2**31}"),
        ("tma 16x64x32 w4 s2", Problem(m=256, n=60, k=64, ldc=34_000_001), None),  # 16 rows reach 544,000,076
        ("tma 64x64x32 w4 s2", Problem(m=256, n=64, k=64, ldc=34_000_000), None),  # TMA stores these
        ("pointer 64x64x32 w4 s2", Problem(m=256, n=60, k=64, ldc=34_000_001), None),
        ("pointer 64x64x32 w4 s2", Problem(m=2**31 - 1, n=8, k=64), f"the last tile may end at {2**31 + 63}, coordinates reach {2**31}"),
        ("pointer 16x16x64 w1 s2 k3", Problem(m=16, n=16, k=2**31 - 100), f"the last tile may end at {2**31 + 92}, coordinates"),
        ("pointer 16x16x64 w1 s2", Problem(m=2**23, n=2**16, k=64), f"{2**31} tiles and splits are over the {2**30} that are counted"),
        ("pointer 16x16x64 w1 s2 k2", Problem(m=2**17, n=2**21, k=2**10), f"{2**31} tiles and splits are over the {2**30}"),
        ("tma 64x64x32 w4 s2 p1 q1", Problem(m=64 * 2**13, n=64 * 2**13 + 64, k=2**10), "K steps of all tiles are over the 1073741824"),
    ],
)
def test_limits_of_the_kernels(text: str, problem: Problem, sentence: str | None) -> None:
    found = why_not(parse_schedule(text), problem, ENDLESS)
    assert (found is None) if sentence is None else sentence in str(found), found
    a, b, c = operands(problem)
    schedule = parse_schedule(text)
    assert (family_module(schedule.family).supports(a, b, c, schedule) is None) == (sentence is None)


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("wgmma 128x128x64 w4 s4 k2 r1", "family wgmma has no axis fused_reduction; it stands at 1, unused is 0"),
        ("tma 128x128x64 w4 s3 h24", "family tma has no axis producer_registers; it stands at 24, unused is 0"),
        ("pointer 128x128x64 w4 s3 p1 e2 f1", "family pointer has no axis persistent_ctas_per_sm; it stands at 1, unused is 0"),
        ("pointer 128x128x64 w4 s3 e0", "family pointer has no axis epilogue_subtile; it stands at 0, unused is 1"),
        ("gemv 1x4x1024 w4 g8", "family gemv has no axis group_m; it stands at 8, unused is 1"),
    ],
)
def test_an_axis_that_the_family_does_not_have(text: str, sentence: str) -> None:
    assert why_not(parse_schedule(text), Problem(m=4096, n=4096, k=4096), load_gpu("h200")) == sentence


def test_families_in_one_table_are_told_apart_by_their_axes() -> None:
    texts = ["tma 128x128x64 w4 s3 p1", "pointer 128x128x64 w4 s3 p1", "pointer 128x128x64 w4 s3"]
    table = ScheduleTable.of([parse_schedule(text) for text in texts])
    found = prune(table, Problem(m=4096, n=4096, k=4096), load_gpu("h200"))
    assert [str(schedule) for schedule in found.survivors.schedules()] == [texts[0], texts[2]]
    assert [(item.constraint, item.count) for item in found.fallen] == [("family_axes", 1)]


def test_an_unknown_family() -> None:
    with pytest.raises(UserError, match="no family named 'foo'; known: gemv, pointer, tma, wgmma"):
        why_not(parse_schedule("foo 64x64x64 w4 s2"), Problem(m=64, n=64, k=64), load_gpu("h200"))
