"""Ranking in pieces, of a part, and of a sample: the same answer as ranking all at once, as far as it goes."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cost_models import hierarchy
from cost_models.calibration_files import load_calibration
from search_spaces.errors import UserError
from search_spaces.gpu_files import load_gpu
from search_spaces.lowering import lower, lower_one
from search_spaces.problem import Problem
from search_spaces.schedule import parse_schedule
from search_spaces.space import Space, load_space, merge, parse_space, prune
from tuner import ranking as module
from tuner.explaining import nearest_rejects, schedule_text
from tuner.ranking import Ranking, rank

H100 = load_gpu("h100")
CUBE = Problem(m=4096, n=4096, k=4096)
FEWER = {"stages": (3, 4, 6), "split_k": (1, 2, 3), "pad": (0,)}  # values of these axes: the default space seven times smaller
MIDDLING = Space(
    "middling",
    {
        name: {axis: (1, 3, 8) if (name, axis) == ("pointer", "group_m") else FEWER.get(axis, values) for axis, values in axes.items()}
        for name, axes in load_space("default").axes.items()
        if name != "gemv"
    },
)
SMALL = parse_space(
    "small", "tma: {cta_m: [64, 96, 128, 256], cta_n: [64, 128, 256], cta_k: 64, warps: [4, 8], stages: [2, 3, 4], group_m: [1, 8]}"
)

cut = st.lists(st.integers(1, 4), min_size=10, max_size=10)
shapes = st.sampled_from([(4096, 4096, 4096), (64, 8192, 1024), (1000, 999, 4100), (1, 256, 512), (300, 257, 100)])


def thinned(counts: list[int]) -> Space:
    """The default space with at most so many values of each axis, and one value of each that no kernel has."""
    odd = {"cta_m": (48,), "warps": (3,), "stages": (0,), "group_m": (5,), "flatten": (2,)}
    axes = load_space("default").axes
    return Space(
        "thinned",
        {
            name: {axis: (*some[-n:], *odd.get(axis, ())) for (axis, some), n in zip(of.items(), counts, strict=False)}
            for name, of in axes.items()
        },
    )


@settings(max_examples=25, deadline=None)
@given(cut, shapes, st.sampled_from(["a100", "h100", "b200", "t4"]), st.integers(300, 20_000))
def test_pruning_in_pieces_is_pruning_at_once(counts: list[int], shape: tuple[int, int, int], gpu: str, most: int) -> None:
    """Counts, nearest misses with their sentences, survivors and lowering; and a grid is its rows."""
    space, hardware, (m, n, k) = thinned(counts), load_gpu(gpu), shape
    problem = Problem(m=m, n=n, k=k, dtype="fp16")
    whole = prune(space.enumerate(), problem, hardware)
    parts = [prune(grid, problem, hardware) for grid in space.grids(most)]
    merged = merge(parts)
    assert (merged.enumerated, merged.survived, merged.fallen) == (whole.enumerated, whole.survived, whole.fallen)
    for axis, column in whole.survivors.columns.items():
        assert np.array_equal(np.concatenate([part.survivors.columns[axis] for part in parts]), column)
    for name, column in vars(whole.lowering).items():
        assert np.array_equal(np.concatenate([getattr(part.lowering, name) for part in parts]), column), name


def in_pieces(monkeypatch: pytest.MonkeyPatch, **sizes: int) -> Ranking:
    for name, size in sizes.items():
        monkeypatch.setattr(module, name, size)
    return rank(CUBE, H100, MIDDLING)


@pytest.mark.parametrize("kept", [100, 5000, 10**9])
def test_what_is_kept_is_the_beginning_of_the_whole(monkeypatch: pytest.MonkeyPatch, kept: int) -> None:
    """Ties included: the pointer family's groups of 3 and the like give many equal estimates."""
    pruned = prune(MIDDLING.enumerate(), CUBE, H100)
    estimates = hierarchy.estimate(pruned.survivors, pruned.lowering, CUBE, H100, load_calibration(H100))
    order = np.argsort(estimates.seconds, kind="stable")[:kept]
    found = in_pieces(monkeypatch, PIECE_ROWS=3000, MOST_KEPT=kept)
    assert len(found.table) == min(kept, pruned.survived)
    assert found.pruning.survived == pruned.survived
    assert found.pruning.fallen == pruned.fallen
    assert len(np.unique(found.estimates.seconds)) < len(found.table)
    assert np.array_equal(found.estimates.seconds, estimates.seconds[order])
    for axis, column in pruned.survivors.take(order).columns.items():
        assert np.array_equal(found.table.columns[axis], column)
    for name, column in vars(lower(found.table, CUBE, H100)).items():
        assert np.array_equal(getattr(found.lowering, name), column)
    for row in (0, 50, 99):
        assert found.row_of(found.table.schedule(row)) == row
        assert found.estimate(row).seconds == found.estimates.seconds[row]


def test_a_schedule_that_was_not_kept_is_said_to_be_that(monkeypatch: pytest.MonkeyPatch) -> None:
    last = rank(CUBE, H100, SMALL).table.schedules()[-1]
    monkeypatch.setattr(module, "MOST_KEPT", 10)
    ranking = rank(CUBE, H100, SMALL)
    said = f"is not among the 10 fastest of the {ranking.pruning.survived} that can run of {SMALL.size} schedules of space small"
    assert said in schedule_text(last, ranking)
    assert f"ranks 1 of {ranking.pruning.survived}" in schedule_text(ranking.table.schedule(0), ranking)
    assert "can run, but is not in space small" in schedule_text(parse_schedule("tma 64x64x64 w4 s5"), ranking)
    assert "a tile edge of 96 is no power of two" in schedule_text(parse_schedule("tma 96x64x64 w4 s2"), ranking)


def test_a_large_space_is_sampled_by_the_seed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MOST_STREAMED", 1000)
    monkeypatch.setattr(module, "SAMPLE_ROWS", 700)
    monkeypatch.setattr(module, "PIECE_ROWS", 64)
    first, again, other = (rank(CUBE, H100, MIDDLING, seed=seed) for seed in (1, 1, 2))
    assert first.sampled
    assert first.pruning.enumerated == 700 == first.pruning.survived + sum(item.count for item in first.pruning.fallen)
    assert first.table.schedules() == again.table.schedules() != other.table.schedules()
    whole = prune(MIDDLING.rows(MIDDLING.sample(700, 1)), CUBE, H100)
    assert set(whole.survivors.schedules()) == set(first.table.schedules())
    assert first.scope == f"a sample of 700 of the {MIDDLING.size} schedules of space middling"
    absent = next(s for s in other.table.schedules() if first.row_of(s) is None)
    assert schedule_text(absent, first) == f"'{absent}' can run, but is not in {first.scope}"


def test_a_space_that_is_gone_through_is_no_sample() -> None:
    ranking = rank(CUBE, H100, SMALL)
    assert not ranking.sampled
    assert ranking.scope == f"{SMALL.size} schedules of space small"


def test_nothing_left_of_many_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "PIECE_ROWS", 1)
    space = parse_space("big", "pointer: {cta_m: 256, cta_n: 128, cta_k: 128, warps: [4, 8], stages: 4}")
    with pytest.raises(UserError, match=r"no schedule of 2 can run .* \(accumulator_registers 1, shared_memory 1\); the nearest miss"):
        rank(Problem(m=4096, n=4096, k=4096, dtype="fp16"), load_gpu("t4"), space)


def test_the_nearest_rejects_of_all_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    """Within 5 % over the limit, nearest first."""
    whole = nearest_rejects(MIDDLING, CUBE, H100, 5)
    assert len(whole) == 5
    monkeypatch.setattr(module, "PIECE_ROWS", 3000)
    assert nearest_rejects(MIDDLING, CUBE, H100, 5) == whole
    need = [int(lower_one(s, CUBE, H100).shared_memory_bytes[0]) for s in whole]
    assert need == sorted(need)
    assert all(232448 < each <= 232448 * 1.05 for each in need)
    assert nearest_rejects(MIDDLING, CUBE, H100, 0) == []


def test_what_the_compiler_gave_corrects_the_estimate() -> None:
    """64x64x64 tiles with 6 buffers leave room for two CTAs an SM; with twice the shared memory there is room for one."""
    ranked = rank(CUBE, H100, MIDDLING)
    row = ranked.row_of(parse_schedule("tma 64x64x64 w4 s6 g8"))
    assert row is not None
    expected = {
        "registers_per_thread": int(ranked.lowering.registers_per_thread[row]),
        "shared_memory_bytes": int(ranked.lowering.shared_memory_bytes[row]),
    }
    assert ranked.seconds_as_compiled(row, **expected) == ranked.estimates.seconds[row]
    larger = {**expected, "shared_memory_bytes": 2 * expected["shared_memory_bytes"]}
    assert ranked.seconds_as_compiled(row, **larger) > ranked.estimates.seconds[row]
