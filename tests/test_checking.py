"""Right answers pass, wrong ones do not: on the CPU, where the arithmetic of the check is the same."""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np
import pytest
import torch

from search_spaces.problem import Problem
from tuner.checking import Reference, block_shape, error_bound, fingerprints
from tuner.memory_plan import GUARD_ELEMENTS
from tuner.operand_sets import make_operands

SHAPES = [(64, 96, 512), (1, 40, 100), (33, 17, 1), (16, 64, 16384)]


@pytest.fixture(scope="module", autouse=True)
def one_thread() -> Iterator[None]:
    """The matrices are small: waking threads takes longer than they do."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


class Case:
    """Operands and an output of one problem on the CPU. scale_a, scale_b: powers of two that all elements are multiplied by."""

    def __init__(self, problem: Problem, *, scale_a: int = 0, scale_b: int = 0, keep: bool = True, budget_bytes: int = 2**30) -> None:
        (self.a,), (self.b,), (self.c,) = (stack.copies for stack in make_operands(problem, 1, "cpu"))
        for operand, scale in ((self.a, scale_a), (self.b, scale_b)):
            operand.matrix.copy_(torch.ldexp(operand.matrix.double(), torch.tensor(scale)))
        self.c.poison()
        self.reference = Reference(self.a.matrix, self.b.matrix, self.c.matrix.dtype, keep=keep, budget_bytes=budget_bytes)

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


def test_the_bound_grows_with_k_and_follows_the_output_type() -> None:
    assert error_bound(16384, torch.bfloat16) > error_bound(512, torch.bfloat16) > 2**-8
    assert error_bound(512, torch.float32) == pytest.approx(16 * 2**-24 * math.sqrt(512), rel=0.01)


def rounded(exact: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """Once, to nearest: by numpy for fp16, since torch goes there from float64 by way of float32."""
    with np.errstate(over="ignore"):
        return torch.from_numpy(exact.numpy().astype(np.float16)) if dtype == torch.float16 else exact.to(dtype)


SCALES = [(0, 0), (-8, -9), (5, 6), (-40, -80), (-60, -70), (30, 31)]


@pytest.mark.parametrize(("dtype", "out_dtype"), [("fp16", "fp16"), ("bf16", "bf16"), ("bf16", "fp32"), ("fp16", "fp32")])
@pytest.mark.parametrize("k", [1, 3, 64])
@pytest.mark.parametrize("scales", SCALES)
def test_a_product_rounded_once_is_right_at_any_magnitude_and_ulps_beyond_the_bound_are_not(
    dtype: str, out_dtype: str, k: int, scales: tuple[int, int]
) -> None:
    """Down to subnormals and zero, up to infinity."""
    if dtype == "fp16" and not -12 <= min(scales) <= max(scales) <= 8:
        scales = (scales[0] // 8, scales[1] // 8)
    case = Case(Problem(m=40, n=48, k=k, dtype=dtype, out_dtype=out_dtype), scale_a=scales[0], scale_b=scales[1])
    right = rounded(case.a.matrix.double() @ case.b.matrix.double(), case.c.matrix.dtype)
    case.c.matrix.copy_(right)
    assert case.message() == ""
    row, column = 7, 9
    spread = float(case.a.matrix[row].double().norm() * case.b.matrix[:, column].double().norm()) * 16 * 2.0**-24
    bits = case.c.matrix.view(torch.int32 if out_dtype == "fp32" else torch.int16)
    ulp = float(torch.finfo(right.dtype).smallest_normal * torch.finfo(right.dtype).eps)
    ulp = max(ulp, abs(float(right[row, column])) * torch.finfo(right.dtype).eps / 2)
    bits[row, column] += math.ceil((spread + (k + 1) * 2.0**-149) / ulp) + 3
    assert case.message() != ""


def test_one_element_of_an_outer_product_in_fp16_subnormals() -> None:
    """2^-13 times 1.5 * 2^-12 is 1.5 * 2^-25, halfway past the smallest subnormal of 2^-24, which is right; 2^-23 and 0 are not."""
    case = Case(Problem(m=64, n=64, k=1, dtype="fp16"))
    case.a.matrix.fill_(2.0**-13)
    case.b.matrix.fill_(1.5 * 2.0**-12)
    for answer, is_right in ((2.0**-24, True), (2.0**-23, False), (0.0, False)):
        case.c.matrix.fill_(answer)
        assert (case.message() == "") is is_right


@pytest.mark.parametrize(("size", "answer", "is_right"), [(1e6, math.inf, True), (1e6, 65504.0, False), (1e4, math.inf, False)])
def test_infinity_is_right_where_the_sum_rounds_to_it(size: float, answer: float, is_right: bool) -> None:
    case = Case(Problem(m=16, n=16, k=1, dtype="fp16"))
    case.a.matrix.fill_(math.sqrt(size))
    case.b.matrix.fill_(math.sqrt(size))
    case.c.matrix.fill_(answer)
    assert (case.message() == "") is is_right


@pytest.mark.parametrize("budget", [6000, 100_000])
def test_a_product_in_many_blocks_is_judged_as_in_one(budget: int) -> None:
    problem = Problem(m=70, n=90, k=33)
    whole, parts = Case(problem), Case(problem, keep=False, budget_bytes=budget)
    for case in (whole, parts):
        case.c.matrix.copy_(case.exact)
        case.c.matrix[69, 88] += 1.0
    one, other = whole.reference.check(whole.c), parts.reference.check(parts.c)
    assert (one.message, one.worst) == (other.message, pytest.approx(other.worst))
    assert one.relative_error == pytest.approx(other.relative_error)


def test_sampled_rows_hold_the_first_and_the_last() -> None:
    case = Case(Problem(m=2000, n=16, k=8), keep=False)
    case.c.matrix.copy_(case.exact)
    assert case.reference.check(case.c, sampled=True).right
    for row in (0, 1999):
        case.c.matrix.copy_(case.exact)
        case.c.matrix[row] += 1.0
        assert not case.reference.check(case.c, sampled=True).right


@pytest.mark.parametrize(("shape", "budget"), [((40960, 128256, 512), 2**27), ((16, 10**6, 10**5), 2**28), ((8192, 8192, 8192), 2**31)])
def test_blocks_keep_to_their_budget(shape: tuple[int, int, int], budget: int) -> None:
    """fp32 of A's rows and B's columns, and 40 bytes for each element of C."""
    m, n, k = shape
    rows, columns = block_shape(m, n, k, budget)
    assert 1 <= rows <= m
    assert 1 <= columns <= n
    assert 4 * k * (rows + columns) + 40 * rows * columns <= budget
    assert rows * columns > 2**14 or rows == m


def test_fingerprints_tell_bits_apart() -> None:
    """Another bit, two elements that change places, two rows that do: another number; equal bits: the same."""
    first = torch.randn(30, 50).bfloat16()
    flipped, exchanged = first.clone(), first.clone()
    flipped.view(torch.int16)[29, 49] ^= 1
    exchanged[0, :2] = first[0, [1, 0]]
    prints = fingerprints(torch.stack([first, flipped, exchanged, first.roll(1, 0), first]))
    assert len(set(prints)) == 4
    assert prints[0] == prints[4]
