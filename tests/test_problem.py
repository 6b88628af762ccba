"""Problems: what is computed from them, and what is refused in one sentence."""

from __future__ import annotations

import pytest

from search_spaces.errors import UserError
from search_spaces.problem import Problem, parse_shape


def test_figures_of_a_linear_layer() -> None:
    p = Problem(m=16, n=6144, k=4096)
    assert p.flops == 2 * 16 * 6144 * 4096
    assert p.least_bytes == 2 * (16 * 4096 + 6144 * 4096 + 16 * 6144)
    assert p.arithmetic_intensity == pytest.approx(15.89, abs=0.01)
    assert (p.lda, p.ldb, p.ldc) == (4096, 4096, 6144)


@pytest.mark.parametrize(("layout", "lda", "ldb"), [("nn", 30, 20), ("nt", 30, 30), ("tn", 10, 20), ("tt", 10, 30)])
def test_densest_leading_dimensions_follow_the_layout(layout: str, lda: int, ldb: int) -> None:
    p = Problem(m=10, n=20, k=30, layout=layout)
    assert (p.lda, p.ldb, p.ldc) == (lda, ldb, 20)


@pytest.mark.parametrize(("k", "alignment"), [(4096, 16), (4100, 8), (4098, 4), (4097, 2)])
def test_row_alignment(k: int, alignment: int) -> None:
    assert Problem(m=8, n=8, k=k).row_alignment_bytes("a") == alignment


def test_base_alignment_limits_row_alignment() -> None:
    assert Problem(m=8, n=8, k=4096, alignment_bytes=2).row_alignment_bytes("b") == 2


@pytest.mark.parametrize("text", ["4096", "4096x4096", "1x2x3x4", "", "4096*4096*4096"])
def test_malformed_shapes(text: str) -> None:
    with pytest.raises(UserError, match="is not MxNxK"):
        parse_shape(text)


@pytest.mark.parametrize("m", [-1, 2**31])
def test_an_extent_outside_gives_both_numbers(m: int) -> None:
    with pytest.raises(UserError, match=rf"M of shape '{m}x4096x4096' is {m}; it is a whole number from 0 to 2147483647"):
        parse_shape(f"{m}x4096x4096")
    with pytest.raises(UserError, match=rf"M = {m} is outside 0\.\.2147483647"):
        Problem(m=m, n=4096, k=4096)


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"dtype": "fp7"}, "unknown dtype 'fp7'"),
        ({"layout": "nx"}, "unknown layout 'nx'"),
        ({"lda": 99}, "lda = 99 is less than the 128 elements"),
        ({"ldc": 63}, "ldc = 63 is less than the 64 elements"),
        ({"alignment_bytes": 12}, "alignment of 12 bytes"),
    ],
)
def test_wrong_fields(fields: dict[str, object], words: str) -> None:
    with pytest.raises(UserError, match=words):
        Problem(m=32, n=64, k=128, **fields)  # type: ignore[arg-type]


@pytest.mark.parametrize("shape", [(0, 4, 4), (4, 0, 4), (4, 4, 0)])
def test_empty_products(shape: tuple[int, int, int]) -> None:
    p = Problem(m=shape[0], n=shape[1], k=shape[2])
    assert p.is_empty
    assert p.flops == 0
    assert p.arithmetic_intensity == 0


def test_prepacked_rows_are_whole_lines() -> None:
    """Of 4100 elements of 2 bytes, rows are 8200 bytes; the next multiple of 128 is 8320, 4160 elements."""
    asked = Problem(m=64, n=4096, k=4100)
    weights = asked.prepacked("b")
    assert (weights.lda, weights.ldb, weights.row_alignment_bytes("a"), weights.row_alignment_bytes("b")) == (4100, 4160, 8, 16)
    assert asked.prepacked("ab").packed_bytes == 0
    assert asked.packed_bytes == 2 * 4100 * (64 + 4096)
    assert weights.packed_bytes == 2 * 4100 * 64


def test_aligned_rows_are_not_repacked() -> None:
    asked = Problem(m=64, n=4096, k=4096, ldb=4104)
    assert asked.prepacked("ab") == asked
