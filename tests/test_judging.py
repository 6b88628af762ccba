"""A schedule that is right once is not right yet: stand-ins for kernels, on the CPU, that go wrong later, elsewhere, or now and then."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import pairwise

import pytest
import torch

from search_spaces.problem import Problem
from tuner.checking import GUARD_ELEMENTS, Reference, guarded
from tuner.judging import Judge, Judgement, Room
from tuner.operand_sets import SEEDS, how_drawn, make_operands
from tuner.operands import View

PROBLEM = Problem(m=24, n=40, k=64)
SETS = 7


@pytest.fixture(scope="module", autouse=True)
def one_thread() -> Iterator[None]:
    """The matrices are small: waking threads takes longer than they do."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


class Stand:
    """Launches on the CPU. spoil(launch, set, C) changes a right answer; launches count from 1."""

    def __init__(self, spoil: Callable[[int, int, torch.Tensor], None], *, sets: int = SETS, keep: bool = True) -> None:
        self.a, self.b, self.c = make_operands(PROBLEM, sets, "cpu")
        kinds = range(min(len(SEEDS), sets))
        self.judge = Judge(self.c, [Reference(self.a.matrices[i], self.b.matrices[i], torch.bfloat16, keep=keep) for i in kinds])
        self.launches, self.spoil, self.sets = 0, spoil, sets

    def run(self, index: int) -> None:
        self.launches += 1
        self.c.matrices[index] = (self.a.matrices[index].float() @ self.b.matrices[index].float()).bfloat16()
        self.spoil(self.launches, index, self.c.matrices[index])

    def replay(self) -> None:
        for index in range(self.sets):
            self.run(index)

    def judged(self, *, unordered: bool = False, scratch: dict[str, Room] | None = None, visited: int | None = None) -> Judgement:
        alone = self.judge.alone(self.run, scratch or {}, unordered)
        if alone.status:
            return alone
        return self.judge.back_to_back(self.run, self.replay, visited or self.sets, scratch or {}, alone.prints, unordered)


def nothing_wrong(launch: int, index: int, c: torch.Tensor) -> None:
    pass


def one_ulp(c: torch.Tensor) -> None:
    """Of a large element, so that it is no further off than rounding explains, or hardly."""
    c.view(torch.int16)[0, 0] += 1


@pytest.mark.parametrize("sets", [1, 2, 3, SETS])
@pytest.mark.parametrize("keep", [True, False])
@pytest.mark.parametrize("unordered", [True, False])
def test_what_is_right_every_time_is_right(sets: int, keep: bool, unordered: bool) -> None:
    stand = Stand(nothing_wrong, sets=sets, keep=keep)
    judged = stand.judge.alone(stand.run, {}, unordered)
    assert judged.status == ""
    assert 0 < judged.facts["relative_error"] <= judged.facts["error_bound"]
    assert stand.launches == 4
    assert stand.judged(unordered=unordered).status == ""


@pytest.mark.parametrize("unordered", [True, False])
@pytest.mark.parametrize("wrong_from", [1, 2, 3, 4, 5, 7])
def test_right_at_first_and_wrong_later(wrong_from: int, unordered: bool) -> None:
    def spoil(launch: int, index: int, c: torch.Tensor) -> None:
        if launch >= wrong_from:
            c[3, 5] += 0.25

    judged = Stand(spoil).judged(unordered=unordered)
    assert judged.status == "wrong_answer"
    assert "an element is off by" in judged.message
    assert ("after 2 right ones" in judged.message) is (wrong_from == 3)


@pytest.mark.parametrize("launch_of", range(1, 5 + SETS))
def test_one_wrong_answer_of_eleven_is_found(launch_of: int) -> None:
    """Four alone and seven back to back; most of the sets have no reference of their own, but another set's data."""

    def spoil(launch: int, index: int, c: torch.Tensor) -> None:
        if launch == launch_of:
            c[23, 39] = -c[23, 39] + 1.0

    assert Stand(spoil).judged().status == "wrong_answer"


def test_a_launch_that_writes_nothing_does_not_live_on_the_one_before() -> None:
    def spoil(launch: int, index: int, c: torch.Tensor) -> None:
        if launch == 4:  # the second one on the first data
            c.fill_(float("nan"))

    assert "C holds NaN" in Stand(spoil).judged().message


def test_right_on_one_data_alone() -> None:
    """As a kernel that keeps what it read before."""
    first = Stand(nothing_wrong)
    first.run(0)
    kept = first.c.matrices[0].clone()
    assert Stand(lambda launch, index, c: c.copy_(kept)).judged().status == "wrong_answer"


@pytest.mark.parametrize("launch_of", [4, 6])
def test_other_bits_on_the_same_data_are_unstable_though_right(launch_of: int) -> None:
    """Every term is one, so that the sum of 64 is exact, and 16 times 2^-24 times 64 is far less than its last place; only a column of
    zeros may be 2^-24 as well."""
    stand = Stand(lambda launch, index, c: c[:, 0].fill_(2.0**-30 * (launch == launch_of)))
    for operand, value in ((stand.a, 1.0), (stand.b, 1.0)):
        operand.matrices.fill_(value)
    stand.b.matrices[:, :, 0] = torch.tensor([2.0**-3, -(2.0**-3)]).repeat(32)
    judged = stand.judged()
    assert judged.status == "unstable"
    assert "other bits" in judged.message or "different bits" in judged.message
    assert stand.judge.alone(stand.run, {}, unordered=True).status == ""


@pytest.mark.parametrize("launch_of", [1, 2, 4, 5])
def test_a_write_outside_is_seen_whenever_it_comes(launch_of: int) -> None:
    def spoil(launch: int, index: int, c: torch.Tensor) -> None:
        if launch == launch_of:
            stand.c.copies[index].buffer[GUARD_ELEMENTS - 1] = 7.0

    stand = Stand(spoil)
    judged = stand.judged()
    assert judged.status == "wrong_answer"
    assert "1 elements outside C were overwritten" in judged.message


@pytest.mark.parametrize("launch_of", [1, 3, 8])
def test_a_counter_that_is_not_left_at_zero(launch_of: int) -> None:
    room = Room(guarded(View(torch.int32, (5,), (1,)), "cpu"), zeroed=True)

    def spoil(launch: int, index: int, c: torch.Tensor) -> None:
        if launch == launch_of:
            room.memory.matrix[2] = 1

    judged = Stand(spoil).judged(scratch={"arrivals": room})
    assert judged.status == "wrong_answer"
    assert "1 elements of the scratch 'arrivals' were not left at zero" in judged.message


def test_data_that_a_graph_of_one_call_does_not_come_to_are_launched_on() -> None:
    def spoil(launch: int, index: int, c: torch.Tensor) -> None:
        if launch > 5 and index == 2:
            c.zero_()

    stand = Stand(spoil)
    alone = stand.judge.alone(stand.run, {}, unordered=False)
    judged = stand.judge.back_to_back(stand.run, lambda: stand.run(0), 1, {}, alone.prints, unordered=False)
    assert judged.status == "wrong_answer"


@pytest.fixture(scope="module")
def stacks() -> tuple[torch.Tensor, ...]:
    return tuple(stack.matrices for stack in make_operands(PROBLEM, SETS, "cpu"))


def test_sets_hold_the_values_of_three_seeds_in_turn(stacks: tuple[torch.Tensor, ...]) -> None:
    for matrices in stacks[:2]:
        assert len({float(matrix.float().sum()) for matrix in matrices[:3]}) == 3
        for index in range(SETS):
            assert torch.equal(matrices[index], matrices[index % 3])
            assert matrices[index].float().std() == pytest.approx(1.0, abs=0.1)
    assert how_drawn(flushed=False) == "normal, seeds 0 1 2"
    assert how_drawn(flushed=True) == "normal, seeds 0 1 2, L2 flushed before each replay"


@pytest.mark.parametrize(
    "problem",
    [PROBLEM, Problem(m=16, n=16, k=30, lda=40), Problem(m=9, n=7, k=5, layout="tn", ldc=11), Problem(m=8, n=8, k=8, out_dtype="fp32")],
    ids=lambda p: f"{p.shape}-{p.layout}-{p.lda}",
)
@pytest.mark.parametrize("alignment", [2, 4, 8, 16])
def test_each_copy_is_aligned_as_asked_and_lies_between_nan(problem: Problem, alignment: int) -> None:
    a, b, c = make_operands(replace(problem, alignment_bytes=alignment), 3, "cpu")
    for stack in (a, b, c):
        places = sorted((copy.buffer.data_ptr(), copy.buffer.nbytes) for copy in stack.copies)
        assert all(start + size <= after for (start, size), (after, _) in pairwise(places))
        for index, copy in enumerate(stack.copies):
            size = copy.matrix.element_size()
            off = alignment // size * size
            assert copy.matrix.data_ptr() % 16 == off % 16
            assert copy.matrix.data_ptr() == stack.matrices[index].data_ptr()
            assert copy.buffer[:GUARD_ELEMENTS].isnan().all()
            assert copy.buffer[GUARD_ELEMENTS + copy.view.elements :].isnan().sum() >= GUARD_ELEMENTS
    assert not a.matrices.isnan().any()
    assert c.matrices.isnan().all()
    c.poison()
    assert [copy.overwritten() for copy in c.copies] == [0, 0, 0]
