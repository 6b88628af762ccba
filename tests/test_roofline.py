"""The hand calculations of a tiled product, with the numbers worked out on paper."""

from __future__ import annotations

from dataclasses import replace

import pytest

from cost_models.roofline import Roofline, fastest_flops, on_chip_bytes, read_elements, roofline, shortest_seconds
from search_spaces.gpu_files import load_gpu
from search_spaces.hardware import Hardware
from search_spaces.problem import Problem
from search_spaces.schedule import Tile, parse_schedule
from search_spaces.space import why_not
from tuner.plausible import beyond_peak

CUBE = Problem(m=4096, n=4096, k=4096, dtype="fp32")


def test_four_cubed_by_hand() -> None:
    small = Problem(m=4, n=4, k=4, dtype="fp32")
    assert small.flops == 128
    assert read_elements(small, Tile(1, 1, 1)) == 128
    assert read_elements(small, Tile(2, 2, 2)) == 64
    assert read_elements(small, None) == 32


@pytest.mark.parametrize(("tile", "total_bytes", "intensity"), [(Tile(1, 1, 1), 576, 2 / 9), (Tile(2, 2, 2), 320, 0.4)])
def test_four_cubed_bytes_with_c(made_up_gpu: Hardware, tile: Tile, total_bytes: int, intensity: float) -> None:
    roof = roofline(Problem(m=4, n=4, k=4, dtype="fp32"), made_up_gpu, tile)
    assert roof.dram_bytes == total_bytes
    assert roof.intensity == pytest.approx(intensity)


@pytest.mark.parametrize(
    ("tile", "gigabytes", "intensity", "milliseconds", "limiter"),
    [
        (Tile(1, 1, 1), 550, 0.25, 550, "memory"),
        (Tile(32, 32, 32), 17.2, 7.97, 17.2, "memory"),
        (Tile(64, 64, 64), 8.66, 15.9, 8.66, "memory"),
        (Tile(128, 128, 128), 4.36, 31.5, 6.87, "compute"),
        (None, 0.20, 683, 6.87, "compute"),
    ],
)
def test_4096_cubed(
    made_up_gpu: Hardware, tile: Tile | None, gigabytes: float, intensity: float, milliseconds: float, limiter: str
) -> None:
    roof = roofline(CUBE, made_up_gpu, tile)
    assert roof.ridge == pytest.approx(20)
    assert roof.dram_bytes / 1e9 == pytest.approx(gigabytes, rel=0.01)
    assert roof.intensity == pytest.approx(intensity, rel=0.005)
    assert roof.lower_bound_seconds * 1e3 == pytest.approx(milliseconds, rel=0.005)
    assert roof.limiter == limiter


def test_depth_of_the_tile_changes_neither_work_nor_traffic(made_up_gpu: Hardware) -> None:
    shallow, deep = (roofline(CUBE, made_up_gpu, Tile(128, 128, k)) for k in (32, 128))
    assert (shallow.flops, shallow.dram_bytes) == (deep.flops, deep.dram_bytes)
    assert shallow.intensity == pytest.approx(31.5, rel=0.002)


@pytest.mark.parametrize(
    ("tile", "stages", "operands_kib", "accumulator_kib"),
    [
        (Tile(32, 32, 32), 1, 8, 4),
        (Tile(64, 64, 64), 1, 32, 16),
        (Tile(128, 128, 128), 1, 128, 64),
        (Tile(128, 128, 128), 2, 256, 64),
        (Tile(128, 128, 32), 1, 32, 64),
    ],
)
def test_on_chip_bytes(tile: Tile, stages: int, operands_kib: int, accumulator_kib: int) -> None:
    assert on_chip_bytes(tile, 4, stages=stages) == (operands_kib * 1024, accumulator_kib * 1024)


def test_two_stages_of_128_cubed_are_more_than_an_h100_cta_can_have(h100: Hardware) -> None:
    operands, _ = on_chip_bytes(Tile(128, 128, 128), 4, stages=2)
    assert operands == 262144 > h100.shared_memory_per_cta_bytes == 232448


def test_two_buffers_of_262144_bytes_are_pruned_with_both_numbers(h100: Hardware) -> None:
    """2 x 256 x (128 + 128) x 2 B of bf16: as many bytes as two stages of 128 cubed in fp32."""
    reason = why_not(parse_schedule("pointer 128x128x256 w8 s2"), Problem(m=4096, n=4096, k=4096), h100)
    assert reason is not None
    assert "262144 B" in reason
    assert "232448 B" in reason


@pytest.mark.parametrize("edge", [16, 32, 64, 128])
def test_a_square_tile_divides_global_reads_by_its_edge(edge: int) -> None:
    """2 N^3 elements untiled, 2 N^3 / T tiled; whatever the depth of the tile."""
    assert read_elements(CUBE, Tile(1, 1, 1)) == 2 * 4096**3
    assert read_elements(CUBE, Tile(edge, edge, 8)) == 2 * 4096**3 // edge


def test_untiled_reads_give_a_quarter_of_a_flop_a_byte() -> None:
    assert CUBE.flops / (4 * read_elements(CUBE, Tile(1, 1, 1))) == 0.25


def test_vector_add() -> None:
    add = Roofline(flops=1e8, dram_bytes=3 * 4e8, peak_flops=20e12, bytes_per_second=1e12)
    assert add.compute_seconds == pytest.approx(5e-6)
    assert add.memory_seconds == pytest.approx(1.2e-3)
    assert add.limiter == "memory"
    assert add.lower_bound_seconds == add.memory_seconds
    assert add.upper_bound_seconds == pytest.approx(1.205e-3)


def test_edges_read_what_there_is(made_up_gpu: Hardware) -> None:
    """100 rows in tiles of 64: two rows of tiles, 100 rows of A for each of them, not 128."""
    problem = Problem(m=100, n=64, k=10, dtype="fp32")
    assert read_elements(problem, Tile(64, 64, 8)) == 10 * (100 * 1 + 64 * 2)


@pytest.mark.parametrize(
    ("gpu", "dtype", "tflops"),
    [
        ("h200", "bf16", 989.5 * 1980 / 1830),
        ("h200", "fp32", 67 * 1980 / 1830),
        ("rtx-4090", "bf16", 165.2 * 1.25),  # its file names no highest clock, as boards differ
    ],
)
def test_no_product_beats_the_peak_at_the_highest_clock(gpu: str, dtype: str, tflops: float) -> None:
    hardware = load_gpu(gpu)
    assert fastest_flops(dtype, hardware) == pytest.approx(tflops * 1e12)
    cube = Problem(m=1024, n=1024, k=512, dtype=dtype)
    assert shortest_seconds(cube, hardware) == pytest.approx(2 * 1024 * 1024 * 512 / (tflops * 1e12))


def test_what_l2_cannot_hold_is_read_at_the_bandwidth_of_dram(h200: Hardware) -> None:
    """1x16384x16384 in bf16 reads 512 MiB of B and 32 KiB of A, of which 1.25 x 50 MiB may be in L2; DRAM has 1.1 x 4.8 TB/s."""
    vector = Problem(m=1, n=16384, k=16384)
    beyond = 512 * 2**20 + 32 * 2**10 - 62.5 * 2**20
    assert shortest_seconds(vector, h200) == pytest.approx(beyond / 5.28e12)
    assert beyond_peak(80.0, vector, h200) == "80.00 us is 5.89 TB/s of what L2 cannot hold, h200-sxm-141gb's DRAM has 4.8"
    assert beyond_peak(90.0, vector, h200) == ""


def test_a_warm_product_that_l2_holds_is_not_judged_by_dram(h200: Hardware) -> None:
    assert beyond_peak(1.0, Problem(m=1, n=4096, k=4096), h200) == ""  # 32 MiB


@pytest.mark.parametrize(
    ("us", "words"),
    [
        (1.0, "1.00 us is 1074 TFLOP/s, h200-sxm-141gb's peak is 990 (1071 at its highest clock)"),
        (0.195, "0.195 us is 5506 TFLOP/s, h200-sxm-141gb's peak is 990 (1071 at its highest clock)"),
        (0.002, "0.002 us is 536871 TFLOP/s, h200-sxm-141gb's peak is 990 (1071 at its highest clock)"),
        (1.01, ""),
    ],
)
def test_a_time_beyond_the_peak_is_named_with_both_numbers(h200: Hardware, us: float, words: str) -> None:
    assert beyond_peak(us, Problem(m=1024, n=1024, k=512), h200) == words


def test_without_a_peak_there_is_no_judgement(h200: Hardware) -> None:
    unknown = replace(h200, peak_flops={})
    assert shortest_seconds(CUBE, unknown) is None
    assert beyond_peak(1e-3, CUBE, unknown) == beyond_peak(1e-3, CUBE, None) == ""
