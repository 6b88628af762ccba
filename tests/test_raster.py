"""What consecutive CTAs share, against counts made by hand and by walking the raster."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cost_models.raster import dram_bytes, footprint, l2_step_elements
from search_spaces.gpu_files import load_gpu
from search_spaces.hardware import Hardware
from search_spaces.lowering import Lowering, lower
from search_spaces.problem import Problem
from search_spaces.schedule import parse_schedule
from search_spaces.table import ScheduleTable


def lowered(text: str, problem: Problem, hardware: Hardware) -> tuple[ScheduleTable, Lowering]:
    table = ScheduleTable.of([parse_schedule(text)])
    return table, lower(table, problem, hardware)


@pytest.mark.parametrize(("ctas", "rows", "columns"), [(1, 1, 1), (2, 2, 1), (6, 2, 3), (8, 2, 4), (12, 3, 4), (16, 4, 4), (99, 4, 4)])
def test_footprint_of_a_grid_of_four_by_four_in_groups_of_two(h100: Hardware, ctas: int, rows: float, columns: float) -> None:
    table, low = lowered("tma 128x128x64 w4 s4 g2", Problem(m=512, n=512, k=512), h100)
    assert [float(side[0]) for side in footprint(np.array([float(ctas)]), table, low)] == [rows, columns]


@given(st.integers(1, 9), st.integers(1, 9), st.sampled_from([1, 2, 4, 8]), st.integers(1, 81))
def test_a_footprint_is_what_a_walk_from_a_group_s_start_covers(tiles_m: int, tiles_n: int, group: int, ctas: int) -> None:
    """The walk counts whole rows and columns, the footprint an average: less than one row or column apart."""
    table, low = lowered(f"tma 128x128x64 w4 s4 g{group}", Problem(m=128 * tiles_m, n=128 * tiles_n, k=512), load_gpu("h100"))
    walked = [walk(place, min(group, tiles_m), tiles_m, tiles_n) for place in range(min(ctas, tiles_m * tiles_n))]
    rows, columns = (float(side[0]) for side in footprint(np.array([float(ctas)]), table, low))
    if ctas > min(group, tiles_m) * tiles_n:
        assert columns == tiles_n
        assert abs(rows - len({row for row, _ in walked})) < min(group, tiles_m) + 1
    else:
        assert rows == len({row for row, _ in walked})
        assert abs(columns - len({column for _, column in walked})) < 1


def walk(place: int, group: int, tiles_m: int, tiles_n: int) -> tuple[int, int]:
    """(row, column) of the tile of the CTA at this place of the grouped order."""
    first = place // (group * tiles_n) * group
    height = min(group, tiles_m - first)
    inside = place - first * tiles_n
    return first + inside % height, inside // height


@pytest.mark.parametrize(("group", "elements"), [(1, (128 + 16 * 64) / 16), (4, (4 * 128 + 4 * 64) / 16), (16, (16 * 128 + 64) / 16)])
def test_neighbours_ask_l2_once_for_what_they_share(h100: Hardware, group: int, elements: float) -> None:
    problem = Problem(m=4096, n=4096, k=4096)
    table, low = lowered(f"tma 128x64x64 w4 s4 g{group}", problem, h100)
    found = l2_step_elements(16.0, np.array([2048.0]), (np.array([128.0]), np.array([64.0])), table, low)
    assert found[0] == pytest.approx(elements)


def test_dram_traffic_of_a_grouped_raster(h100: Hardware) -> None:
    """4096^3 in 1024 tiles of 128x128, 132 at a time, 8 rows of tiles high: 8 rows and 16.5 columns a wave, 1024/132 waves."""
    problem = Problem(m=4096, n=4096, k=4096)
    table, low = lowered("tma 128x128x64 w4 s4 g8", problem, h100)
    read = dram_bytes(np.array([1024.0]), np.array([132.0]), 0.0, table, low, problem)
    assert read[0] == pytest.approx(1024 / 132 * (8 + 16.5) * 128 * 4096 * 2)
    kept = dram_bytes(np.array([1024.0]), np.array([132.0]), 2.0**25, table, low, problem)
    assert kept[0] == 2 * 4096 * 4096 * 2


def test_dram_traffic_of_splits_is_no_less_than_each_operand_once(h100: Hardware) -> None:
    """128x7168x18432 in 56 tiles and 4 splits: 132 CTAs work on more than two parts of K at once."""
    problem = Problem(m=128, n=7168, k=18432)
    table, low = lowered("tma 128x128x64 w4 s4 k4", problem, h100)
    read = dram_bytes(np.array([224.0]), np.array([132.0]), 0.0, table, low, problem)
    assert read[0] == pytest.approx((128 + 7168) * 18432 * 2, rel=0.01)
