"""Which problems are one product to whoever looks at tensors? A matrix with an extent of 1 is a vector: how it is stored says nothing but
the step from element to element, and torch leaves the stride along that extent to chance."""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

from search_spaces.problem import POINTER_ALIGNMENT_BYTES, Problem

ROW_ALIGNMENT_BYTES = 16  # what kernels that load by TMA ask of where rows start


class _Stored(NamedTuple):
    layout: str
    leading_dimension: int


def canonical(problem: Problem) -> Problem:
    """What is searched, stored and exported in place of the problem, as the exported modules' `settled` sees its tensors: vectors along
    memory lie in one row, which is as long as whole multiples of 16 bytes, since there is no second; others are one element a row."""
    p = problem
    a = _operand(p, p.m, p.k, _Stored(p.layout[0], p.lda))
    b = _operand(p, p.k, p.n, _Stored(p.layout[1], p.ldb))
    ldc = p.n if p.m == 1 else p.ldc
    return replace(p, layout=a.layout + b.layout, lda=a.leading_dimension, ldb=b.leading_dimension, ldc=ldc)


def _operand(p: Problem, rows: int, columns: int, stored: _Stored) -> _Stored:
    if 1 not in (rows, columns):
        return stored
    step = _step(rows, columns, stored)
    if step > 1:
        return _Stored("t" if rows == 1 else "n", step)
    elements = max(rows, columns) * p.element_bytes
    whole = -(-elements // ROW_ALIGNMENT_BYTES) * ROW_ALIGNMENT_BYTES // p.element_bytes
    return _Stored("n" if rows == 1 else "t", max(whole, 1))


def _step(rows: int, columns: int, stored: _Stored) -> int:
    """From one element of a vector to the next; 1 for a single element, which has none."""
    if rows == columns == 1:
        return 1
    side_by_side = (rows == 1) == (stored.layout == "n")
    return 1 if side_by_side else stored.leading_dimension


def layouts(problem: Problem) -> tuple[str, ...]:
    """All names of the problem's layout: a vector whose elements are side by side is stored by rows as well as by columns."""
    either = (_is_dense_vector(problem, "a"), _is_dense_vector(problem, "b"))
    names = [("n", "t") if both else (letter,) for both, letter in zip(either, problem.layout, strict=True)]
    return tuple(a + b for a in names[0] for b in names[1])


def _is_dense_vector(p: Problem, operand: str) -> bool:
    if operand == "a":
        return 1 in (p.m, p.k) and _step(p.m, p.k, _Stored(p.layout[0], p.lda)) == 1
    return 1 in (p.k, p.n) and _step(p.k, p.n, _Stored(p.layout[1], p.ldb)) == 1


def gaps(problem: Problem) -> tuple[str, ...]:
    """What tells the matrices from dense ones that torch made: `ldb 8256` for each with gaps between rows, and another alignment."""
    p = problem
    dense = {"lda": p.a_columns, "ldb": p.b_columns, "ldc": p.n}
    vector = {"lda": _is_dense_vector(p, "a"), "ldb": _is_dense_vector(p, "b"), "ldc": p.m == 1}
    words = [f"{name} {getattr(p, name)}" for name, least in dense.items() if getattr(p, name) > max(least, 1) and not vector[name]]
    return (*words, *([] if p.alignment_bytes == POINTER_ALIGNMENT_BYTES else [f"alignment {p.alignment_bytes}"]))


def unaligned(problem: Problem) -> str:
    """Which of `a` and `b` have rows that start between multiples of 16 bytes."""
    p = canonical(problem)
    return "".join(operand for operand in "ab" if p.row_alignment_bytes(operand) < ROW_ALIGNMENT_BYTES)
