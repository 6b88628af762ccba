"""Each constraint by a schedule that passes and one that does not, with both numbers; and public bug reports as cases."""

from __future__ import annotations

import dataclasses

import pytest
from hypothesis import given
from hypothesis import strategies as st

from search_spaces.constraints import CONSTRAINTS
from search_spaces.errors import UserError
from search_spaces.gpu_files import load_gpu
from search_spaces.problem import Problem
from search_spaces.schedule import Schedule, parse_schedule
from search_spaces.space import load_space, parse_space, prune, why_not
from search_spaces.table import ScheduleTable
from tuner.ranking import check_problem, rank

CUBE = Problem(m=4096, n=4096, k=4096, dtype="fp16")


def reason(text: str, gpu: str = "h100", problem: Problem = CUBE) -> str | None:
    return why_not(parse_schedule(text), problem, load_gpu(gpu))


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("pointer 96x128x64 w4 s3", "a tile edge of 96 is no power of two; the nearest is 128"),
        ("pointer 128x192x64 w4 s3", "a tile edge of 192 is no power of two; the nearest is 256"),
        ("pointer 128x128x8 w4 s3", "cta_k=8 is below the 16 that tl.dot takes of 16-bit types"),
        ("pointer 1024x2048x16 w32 s2", "a tile of 2097152 elements is over Triton's limit of 1048576"),
        ("pointer 512x512x8192 w16 s1", "a tile of 4194304 elements is over Triton's limit of 1048576"),
        ("pointer 256x256x64 w64 s2", "64 warps are 2048 threads, a CTA has at most 1024"),
        ("pointer 256x256x64 w128 s2", "128 warps are 4096 threads, a CTA has at most 1024"),
        ("pointer 128x128x64 w3 s2", "3 warps are no power of two; give 4 or another one"),
        ("pointer 128x128x64 w6 s2", "6 warps are no power of two; give 4 or another one"),
        ("pointer 128x128x64 w0 s2", "0 warps are no power of two; give 4 or another one"),
        ("pointer 128x128x64 w4 s2 g0", "an axis that counts from 1 is 0"),
        ("pointer 128x256x64 w4 s3", "the accumulator alone takes 256 registers a thread, a thread has at most 255"),
        ("tma 128x256x64 w8 s5", "needs 245800 B of shared memory, h100-sxm-80gb gives a CTA 232448 B"),
        ("tma 256x256x64 w16 s2", "a CTA needs at least 77824 registers, an SM of h100-sxm-80gb has 65536"),
        ("tma 512x64x32 w8 s2", "a TMA box edge of 512 elements is over the limit of 256"),
        ("wgmma 64x512x32 w8 n2 s3", "a TMA box edge of 512 elements is over the limit of 256"),
        ("pointer 128x128x64 w4 s5 k16", "split_k=16 leaves 4 K steps to a CTA, 5 are needed to fill 5 stages"),
        ("tma 128x128x64 w4 s3 f1", "1024 tiles for 0 persistent CTAs: the plain grid without flatten is the same"),
        ("tma 256x128x64 w8 s3 p2", "2 persistent CTAs per SM, of which h100-sxm-80gb holds 1"),
        ("wgmma 128x192x64 w8 s4 e4", "4 slices of the widest power of two in 192 columns; each must hold a power of two, 64 at least"),
        ("wgmma 64x32x64 w4 s4 e3", "3 slices of the widest power of two in 32 columns; each must hold a power of two, 8 at least"),
        ("tma 128x128x64 w4 s3 k2 e2", "epilogue_subtile=2 does nothing where tiles are worked on in parts: 1 stands for it"),
    ],
)
def test_sentences_give_both_numbers(text: str, sentence: str) -> None:
    assert reason(text) == sentence


@pytest.mark.parametrize(
    "text",
    [
        "tma 128x256x64 w8 s4 g8 e2",
        "pointer 128x128x64 w4 s3 g8",
        "pointer 128x64x64 w2 s2",
        "tma 128x128x64 w4 s3 k2",
        "pointer 16x64x64 w4 s3",
        "wgmma 128x192x64 w8 s4 p1 e2",
        "wgmma 128x144x64 w4 s4 e8",
        "wgmma 128x320x64 w8 s3 e4",
    ],
)
def test_schedules_that_run(text: str) -> None:
    assert reason(text) is None


@pytest.mark.parametrize(("gpu", "survives"), [("rtx5090", False), ("h100", True), ("b200", True), ("a100", True)])
def test_a_ring_of_131072_bytes(gpu: str, survives: bool) -> None:
    """128x128x64, 4 buffers of 32 KiB: more than the 101376 B of consumer Blackwell. mma.sync needs one buffer fewer than stages."""
    stages = 5 if gpu in ("a100", "rtx5090") else 4
    found = reason(f"pointer 128x128x64 w4 s{stages}", gpu)
    assert (found is None) == survives
    assert survives or found == "needs 131072 B of shared memory, rtx-5090 gives a CTA 101376 B"


@pytest.mark.parametrize(
    ("gpu", "stages", "warps", "survives"),
    [("a100", 5, 8, False), ("a100", 3, 8, True), ("a100", 3, 4, False), ("h100", 4, 8, True), ("h100", 4, 4, False)],
)
def test_128x256x64_by_generation(gpu: str, stages: int, warps: int, survives: bool) -> None:
    """196608 B are over an A100's 166912 and under an H100's 232448; 4 warps would keep 256 accumulators a thread."""
    assert (reason(f"pointer 128x256x64 w{warps} s{stages}", gpu) is None) == survives


@pytest.mark.parametrize(("k", "cta_k", "split_k"), [(640, 64, 8), (64, 64, 2), (320, 64, 4)])
def test_a_split_without_work_is_dropped(k: int, cta_k: int, split_k: int) -> None:
    found = reason(f"pointer 64x64x{cta_k} w4 s2 k{split_k}", problem=Problem(m=64, n=512, k=k))
    assert found is not None
    assert found.startswith(f"split_k={split_k} leaves")


@pytest.mark.parametrize(("k", "row_bytes"), [(511, 1022), (4100, 8200), (4127, 8254)])
def test_tma_needs_rows_of_16_bytes_and_pointer_does_not(k: int, row_bytes: int) -> None:
    p = Problem(m=512, n=512, k=k)
    assert reason("tma 128x128x64 w4 s2", problem=p) == f"row stride {row_bytes} B is not a multiple of the 16 B that TMA needs"
    assert reason("pointer 64x64x64 w4 s2", problem=p) is None


def test_an_unaligned_base_excludes_tma() -> None:
    p = Problem(m=512, n=512, k=512, alignment_bytes=2)
    assert reason("tma 64x64x64 w4 s2", problem=p) == "base pointers are multiples of 2 B, TMA needs 16 B"


def test_tma_came_with_hopper() -> None:
    assert reason("tma 128x128x64 w8 s2", "a100") == "TMA needs compute capability 9.0, a100-sxm-80gb has 8.0"


@pytest.mark.parametrize(("m", "n", "k"), [(1471, 256, 512), (1, 105, 107), (257, 257, 257), (33, 64, 40)])
def test_odd_shapes_have_schedules(m: int, n: int, k: int) -> None:
    assert len(rank(Problem(m=m, n=n, k=k), load_gpu("h100"), load_space("default")).table)


def test_more_tiles_than_are_counted() -> None:
    p = Problem(m=2**30, n=2**21, k=16)
    h100 = dataclasses.replace(load_gpu("h100"), memory_bytes=10**17)
    found = why_not(parse_schedule("pointer 16x128x16 w4 s2"), p, h100)
    assert found == f"{2**26 * 2**14} tiles and splits are over the {2**30} that are counted"


def test_workspace_counts_against_device_memory() -> None:
    p = Problem(m=8192, n=8192, k=8192)
    small = dataclasses.replace(load_gpu("h100"), memory_bytes=500_000_000)
    found = why_not(parse_schedule("pointer 128x128x64 w4 s3 k4"), p, small)
    assert found == f"needs {3 * 2 * 8192**2 + 4 * 4 * 8192**2} B of device memory, h100-sxm-80gb has 500000000 B"


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("pointer 16x8x64 w1 s3", None),
        ("pointer 8x16x64 w2 s3", None),  # one row of two MMA tiles, of 16 rows each
        ("pointer 1x16x64 w1 s3", None),
        ("pointer 64x8x64 w4 s3", None),
        ("pointer 1x1x16 w1 s2", None),
        ("tma 16x8x64 w1 s3", None),
        ("tma 4x64x64 w4 s3", None),
        ("tma 64x2x64 w4 s3", None),  # C leaves through pointers: 2 columns are no 16 bytes
        ("pointer 16x8x64 w2 s3", "2 warps for a 16x8 tile, which has MMA tiles for 1"),
        ("pointer 8x16x64 w4 s3", "4 warps for a 8x16 tile, which has MMA tiles for 2"),
        ("pointer 64x64x8 w4 s3", "cta_k=8 is below the 16 that tl.dot takes of 16-bit types"),
        ("pointer 24x8x64 w1 s3", "a tile edge of 24 is no power of two; the nearest is 32"),
    ],
)
@pytest.mark.parametrize("gpu", ["a100", "h100", "b200", "rtx5090"])
def test_tiles_shorter_than_the_instruction(text: str, sentence: str | None, gpu: str) -> None:
    """tl.dot fills a short M or N up to the instruction, and takes no K below 16 (tests/test_small_tiles.py compiles them)."""
    if gpu == "a100" and text.startswith("tma"):
        sentence = "TMA needs compute capability 9.0, a100-sxm-80gb has 8.0"
    assert reason(text, gpu) == sentence


def test_variants_that_no_kernel_has() -> None:
    h100 = load_gpu("h100")
    assert "2 is over the 1 that the kernels have" in (why_not(parse_schedule("tma 128x128x64 w4 s3 p1 f2"), CUBE, h100) or "")
    assert "3 is over the 2 that the kernels have" in (why_not(parse_schedule("tma 128x128x64 w4 s3 k2 r3"), CUBE, h100) or "")
    assert "4 is over the 2 that the kernels have" in (why_not(parse_schedule("tma 128x128x64 w4 s3 e4"), CUBE, h100) or "")
    assert why_not(parse_schedule("tma 128x128x64 w4 s3 p1 e2 f1"), CUBE, h100) is None


def test_equal_rasters_are_kept_once() -> None:
    """4 rows of tiles: groups of 4, 8 and 16 walk them alike."""
    p = Problem(m=512, n=4096, k=4096)
    texts = [f"pointer 128x128x64 w4 s3 g{g}" for g in (2, 4, 8, 16)]
    kept = prune(ScheduleTable.of([parse_schedule(t) for t in texts]), p, load_gpu("h100")).survivors.schedules()
    assert [s.group_m for s in kept] == [2, 4]


def test_three_splits_are_generated_and_lead_where_they_fill_the_chip() -> None:
    """1152x1024x24576 in tiles of 256x128 is 40 tiles; 3 splits are 120 CTAs on 132 SMs, 4 are a second wave."""
    space = parse_space("one-tile", "pointer: {cta_m: 256, cta_n: 128, cta_k: 64, warps: 8, stages: 3, split_k: [1, 2, 3, 4, 6, 8]}")
    ranking = rank(Problem(m=1152, n=1024, k=24576), load_gpu("h100"), space)
    assert ranking.table.schedule(0).split_k == 3


def test_a_space_with_nothing_left_says_why() -> None:
    space = parse_space("big", "pointer: {cta_m: 256, cta_n: 128, cta_k: 128, warps: [4, 8], stages: 4}")
    with pytest.raises(
        UserError, match=r"no schedule of 2 can run .* \(accumulator_registers 1, shared_memory 1\); the nearest miss is '.*': needs \d+ B"
    ):
        rank(CUBE, load_gpu("t4"), space)


def test_a_dtype_that_the_chip_lacks() -> None:
    with pytest.raises(UserError, match=r"gpu t4 has no bf16; it has fp16, fp32"):
        check_problem(Problem(m=64, n=64, k=64), load_gpu("t4"), load_space("default"))


def test_matrices_that_exceed_the_memory() -> None:
    p = Problem(m=400_000, n=400_000, k=64)
    with pytest.raises(UserError, match=rf"take {p.buffer_bytes} B, h100-sxm-80gb has \d+ B"):
        check_problem(p, load_gpu("h100"), load_space("default"))


schedules = st.builds(
    Schedule,
    family=st.sampled_from(["pointer", "tma"]),
    cta_m=st.sampled_from([8, 16, 48, 64, 128, 256]),
    cta_n=st.sampled_from([16, 32, 64, 128, 256]),
    cta_k=st.sampled_from([16, 32, 64, 128]),
    warps=st.sampled_from([1, 2, 3, 4, 8, 16]),
    stages=st.integers(1, 7),
    split_k=st.integers(1, 9),
    group_m=st.sampled_from([1, 2, 4, 8, 16]),
    persistent_ctas_per_sm=st.integers(0, 2),
    epilogue_subtile=st.sampled_from([1, 2]),
    flatten=st.sampled_from([0, 1]),
)


@given(st.lists(schedules, min_size=1, max_size=20), st.sampled_from(["a100", "h100", "b200", "rtx5090"]))
def test_pruning_a_table_is_pruning_its_rows(rows: list[Schedule], gpu: str) -> None:
    """Counts add up, and no row's fate depends on its neighbours."""
    hardware = load_gpu(gpu)
    pruning = prune(ScheduleTable.of(rows), CUBE, hardware)
    assert pruning.survivors.schedules() == [s for s in rows if why_not(s, CUBE, hardware) is None]
    assert sum(f.count for f in pruning.fallen) + len(pruning.survivors) == pruning.enumerated == len(rows)


def test_every_constraint_has_a_reason_and_a_name_of_its_own() -> None:
    assert len({c.name for c in CONSTRAINTS}) == len(CONSTRAINTS)
    assert all(c.reason.endswith(".") for c in CONSTRAINTS)
