"""Right answers pass, wrong ones do not: on the CPU, where the arithmetic of the check is the same."""

from __future__ import annotations

import math

import pytest
import torch

from search_spaces.problem import Problem
from tuner.checking import GUARD_ELEMENTS, Guarded, Reference, error_bound, guarded, guarded_random
from tuner.operands import views

SHAPES = [(64, 96, 512), (1, 40, 100), (33, 17, 1), (16, 64, 16384)]


class Case:
    """Operands and an output of one problem on the CPU."""

    def __init__(self, problem: Problem) -> None:
        generator = torch.Generator().manual_seed(1)
        a, b, c = views(problem)
        self.a, self.b = (guarded_random(view, "cpu", generator) for view in (a, b))
        self.c = guarded(c, "cpu")
        self.c.poison()
        self.reference = Reference(self.a.matrix, self.b.matrix, self.c.matrix.dtype)

    @property
    def exact(self) -> torch.Tensor:
        return (self.a.matrix.double() @ self.b.matrix.double()).float()

    def message(self) -> str:
        return self.reference.check(self.c).message


@pytest.mark.parametrize(("m", "n", "k"), SHAPES)
@pytest.mark.parametrize("dtype", ["bf16", "fp16"])
@pytest.mark.parametrize("layout", ["nn", "nt", "tn", "tt"])
def test_a_rounded_product_is_right(m: int, n: int, k: int, dtype: str, layout: str) -> None:
    case = Case(Problem(m=m, n=n, k=k, dtype=dtype, layout=layout))
    case.c.matrix.copy_(case.exact)
    verdict = case.reference.check(case.c)
    assert verdict.right, verdict.message
    assert verdict.relative_error <= verdict.error_bound


def test_an_output_nobody_wrote() -> None:
    assert Case(Problem(m=64, n=64, k=64)).message().startswith("C holds NaN")


def test_an_output_half_written() -> None:
    """Even tiles only, after a right answer: poison must have wiped that away."""
    case = Case(Problem(m=64, n=64, k=64))
    case.c.matrix.copy_(case.exact)
    case.c.poison()
    case.c.matrix[:32].copy_(case.exact[:32])
    assert case.message().startswith("C holds NaN")


def test_one_wrong_element() -> None:
    case = Case(Problem(m=256, n=256, k=256))
    case.c.matrix.copy_(case.exact)
    case.c.matrix[200, 7] += 1.0
    assert "an element is off by" in case.message()


def test_partial_sums_rounded_to_bf16_are_refused() -> None:
    """Their Frobenius error is no worse than one rounding's, but small elements keep the error of large partials."""
    case = Case(Problem(m=64, n=256, k=14336))
    parts = zip(case.a.matrix.split(14336 // 4, dim=1), case.b.matrix.split(14336 // 4, dim=0), strict=True)
    case.c.matrix.copy_(sum((a.float() @ b.float()).bfloat16().float() for a, b in parts))
    verdict = case.reference.check(case.c)
    assert verdict.relative_error < verdict.error_bound
    assert "an element is off by" in verdict.message


def test_partial_sums_in_fp32_are_right() -> None:
    case = Case(Problem(m=64, n=256, k=14336))
    parts = zip(case.a.matrix.split(14336 // 4, dim=1), case.b.matrix.split(14336 // 4, dim=0), strict=True)
    case.c.matrix.copy_(sum(a.float() @ b.float() for a, b in parts))
    assert case.message() == ""


@pytest.mark.parametrize("where", [0, GUARD_ELEMENTS - 1, -1, -GUARD_ELEMENTS])
def test_a_write_outside_is_seen(where: int) -> None:
    case = Case(Problem(m=32, n=48, k=16))
    case.c.matrix.copy_(case.exact)
    case.c.buffer[where] = 1.0
    assert case.message() == "1 elements outside C were overwritten"


def test_a_write_between_the_rows_is_seen() -> None:
    case = Case(Problem(m=32, n=470, k=16, ldc=512))
    case.c.matrix.copy_(case.exact)
    case.c.buffer[GUARD_ELEMENTS + 470 : GUARD_ELEMENTS + 472] = 0.0  # a store of whole 16-byte chunks would
    assert case.message() == "2 elements outside C were overwritten"


def test_what_lies_outside_the_operands_is_nan() -> None:
    case = Case(Problem(m=16, n=16, k=30, lda=40))
    assert not case.a.matrix.isnan().any()
    assert case.a.buffer[:GUARD_ELEMENTS].isnan().all()
    assert case.a.buffer[GUARD_ELEMENTS + 30 : GUARD_ELEMENTS + 40].isnan().all()


@pytest.mark.parametrize("alignment", [2, 4, 8])
def test_a_shifted_base_is_aligned_to_that_and_no_more(alignment: int) -> None:
    _, _, c = views(Problem(m=8, n=8, k=8))
    placed = guarded(c, "cpu", shift_elements=alignment // 2)
    assert isinstance(placed, Guarded)
    assert placed.matrix.data_ptr() % (2 * alignment) == alignment


def test_the_bound_grows_with_k_and_follows_the_output_type() -> None:
    assert error_bound(16384, torch.bfloat16) > error_bound(512, torch.bfloat16) > 2**-8
    assert error_bound(512, torch.float32) == pytest.approx(16 * 2**-24 * math.sqrt(512), rel=0.01)
