"""Products that every kernel family must get right, and the check of one. Run as a program, it checks them all on Triton's interpreter."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

import torch

from search_spaces.schedule import Schedule, parse_schedule
from tuner.kernels import family_module
from tuner.kernels.launch import Call, allocate, launch
from tuner.kernels.partition import is_unordered

GUARD = 512  # elements before and after each matrix; a multiple of 16 bytes
PATTERN = 7.0  # what lies around C
ROUNDING = {torch.bfloat16: 2.0**-8, torch.float16: 2.0**-11, torch.float32: 2.0**-24}


@dataclass(frozen=True, kw_only=True)
class Case:
    schedule: str
    m: int
    n: int
    k: int
    layout: str = "nt"
    dtype: torch.dtype = torch.float16  # the interpreter multiplies the bits of bfloat16 as integers
    out_dtype: torch.dtype = torch.float16
    gap_a: int = 0  # elements between two stored rows
    gap_b: int = 0
    gap_c: int = 0
    offset: int = 0  # elements that A, B and C start past an aligned address
    step: int = 1  # distance of neighbours in a stored row of A
    sms: int = 2

    @property
    def name(self) -> str:
        unusual = [f"{key}{getattr(self, key)}" for key in ("gap_a", "gap_b", "gap_c", "offset") if getattr(self, key)]
        unusual += [f"step{self.step}"] if self.step != 1 else []
        types = [str(self.dtype).removeprefix("torch."), str(self.out_dtype).removeprefix("torch.")]
        return " ".join([self.schedule, f"{self.m}x{self.n}x{self.k}", self.layout, *types, *unusual, f"sms{self.sms}"])


@dataclass(frozen=True, kw_only=True)
class Guarded:
    """A matrix inside a larger buffer."""

    buffer: torch.Tensor
    matrix: torch.Tensor


@dataclass(frozen=True, kw_only=True)
class Outcome:
    failures: list[str]
    kernels: int


def guarded(rows: int, columns: int, dtype: torch.dtype, filler: float, *, gap: int = 0, offset: int = 0, step: int = 1) -> Guarded:
    stride = columns * step + gap
    buffer = torch.full((2 * GUARD + offset + rows * stride,), filler, dtype=dtype)
    return Guarded(buffer=buffer, matrix=buffer.as_strided((rows, columns), (stride, step), GUARD + offset))


def moved(x: Guarded, device: str) -> Guarded:
    buffer = x.buffer.to(device)
    return Guarded(buffer=buffer, matrix=buffer.as_strided(x.matrix.size(), x.matrix.stride(), x.matrix.storage_offset()))


def transposed(x: Guarded) -> Guarded:
    return Guarded(buffer=x.buffer, matrix=x.matrix.t())


def operand(rows: int, columns: int, layout: str, dtype: torch.dtype, **memory: int) -> Guarded:
    """A logical [rows, columns] matrix of normal numbers with NaN around it and in its gaps."""
    shape = (rows, columns) if layout == "n" else (columns, rows)
    made = guarded(*shape, dtype, float("nan"), **memory)
    made.matrix.copy_(torch.randn(shape))
    return made if layout == "n" else transposed(made)


def output(case: Case) -> Guarded:
    made = guarded(case.m, case.n, case.out_dtype, PATTERN, gap=case.gap_c, offset=case.offset)
    made.matrix.fill_(float("nan"))
    return made


def untouched(before: torch.Tensor, after: Guarded) -> bool:
    """Whether all of the buffer but the matrix still has the bits it had."""
    restored = after.buffer.clone()
    restored.as_strided(after.matrix.size(), after.matrix.stride(), after.matrix.storage_offset()).fill_(0)
    expected = before.clone()
    expected.as_strided(after.matrix.size(), after.matrix.stride(), after.matrix.storage_offset()).fill_(0)
    return torch.equal(restored.view(torch.uint8), expected.view(torch.uint8))


def worst_excess(a: torch.Tensor, b: torch.Tensor, c: torch.Tensor) -> float:
    """The largest error against float64 in units of what is allowed: a rounding to C's type, and fp32 sums that err with sqrt(K)."""
    a64, b64 = a.double(), b.double()
    reference = a64 @ b64
    allowed = ROUNDING[c.dtype] * reference.abs() + 2.0**-22 * max(a.shape[1], 1) ** 0.5 * (a64.abs() @ b64.abs()) + 1e-30
    return float(((c.double() - reference).abs() / allowed).nan_to_num(nan=float("inf")).max())


def check(case: Case, device: str, run: Callable[[Call], None] = launch) -> Outcome:
    torch.manual_seed(0)
    schedule: Schedule = parse_schedule(case.schedule)
    family = family_module(schedule.family)
    a = moved(operand(case.m, case.k, case.layout[0], case.dtype, gap=case.gap_a, offset=case.offset, step=case.step), device)
    b = moved(operand(case.k, case.n, case.layout[1], case.dtype, gap=case.gap_b, offset=case.offset), device)
    c = moved(output(case), device)
    obstacle = family.supports(a.matrix, b.matrix, c.matrix, schedule)
    if obstacle:
        return Outcome(failures=[f"refused: {obstacle}"], kernels=0)
    needed = family.scratch(a.matrix, b.matrix, c.matrix, schedule, case.sms)
    scratch = allocate(needed, torch.device(device))
    for name, part in scratch.items():
        part.fill_(0 if needed[name].zeroed else float("nan"))
    before = [x.buffer.clone() for x in (a, b, c)]
    calls = family.calls(a.matrix, b.matrix, c.matrix, schedule, case.sms, scratch)
    for call in calls:
        run(call)
    failures = []
    if any(bool(part.any()) for name, part in scratch.items() if needed[name].zeroed):
        failures.append("counters or sums were not left at zero")
    if scratch:
        first = c.matrix.clone()
        for call in calls:
            run(call)
        if not is_unordered(schedule) and not torch.equal(first, c.matrix):
            failures.append("a second run gave other bits")
    excess = worst_excess(a.matrix, b.matrix, c.matrix)
    if not excess <= 1:
        failures.append(f"error is {excess:.3g} times what is allowed")
    if not untouched(before[2], c):
        failures.append("wrote outside C")
    for name, old, new in (("A", before[0], a), ("B", before[1], b)):
        if not torch.equal(old.view(torch.uint8), new.buffer.view(torch.uint8)):
            failures.append(f"wrote into {name}")
    return Outcome(failures=failures, kernels=len(calls))


def pointer_cases() -> list[Case]:
    tile = "pointer 16x16x32 w4 s2"
    layouts = ("nn", "nt", "tn", "tt")
    cases = [
        Case(schedule=f"{tile} g2", m=m, n=n, k=k, layout=layout)
        for (m, n, k), layout in product(((33, 64, 40), (1, 105, 107), (17, 31, 65)), layouts)
    ]
    cases += [
        Case(schedule=f"pointer 16x16x{cta_k} w4 s3 k{splits}", m=18, n=24, k=k)
        for k, cta_k, splits in product((34, 96, 100, 127), (32, 64), (1, 3, 4))
    ]
    cases += [Case(schedule=f"{tile} g{group}", m=80, n=48, k=32) for group in (1, 2, 3, 4, 8, 64)]
    cases += [
        Case(schedule=f"pointer 32x64x32 w4 s2 k{splits}", m=40, n=72, k=64, layout=layout) for splits, layout in product((1, 2), layouts)
    ]
    cases += [Case(schedule=tile, m=m, n=16, k=16) for m in (1, 2, 3, 7, 8, 15, 16)]
    cases += [
        Case(schedule=tile, m=64, n=64, k=64, gap_a=1, gap_b=1, gap_c=1),  # strides (65, 1)
        Case(schedule=tile, m=20, n=24, k=40, offset=1),
        Case(schedule=f"{tile} k2", m=20, n=24, k=40, offset=1, gap_c=3),
        Case(schedule=tile, m=20, n=24, k=40, layout="tn", gap_a=12, gap_b=8, gap_c=8),
        Case(schedule=tile, m=20, n=24, k=40, step=2),
        Case(schedule=tile, m=20, n=24, k=40, layout="tt", step=3, gap_a=1),
        Case(schedule=tile, m=24, n=24, k=8, out_dtype=torch.float32),
        Case(schedule=f"{tile} k8", m=24, n=24, k=80),  # the last splits are empty
        Case(schedule=f"{tile} k3", m=5, n=1, k=70, out_dtype=torch.float32),
        Case(schedule=tile, m=8, n=1, k=256),
        Case(schedule=tile, m=9, n=10, k=0),
        Case(schedule=f"{tile} k2", m=9, n=10, k=0),
        Case(schedule=f"{tile} p1 e2 f1", m=33, n=40, k=48),  # axes that it does not have; it reads none, and pruning drops them
        Case(schedule=f"{tile} k2 r1", m=9, n=10, k=0),
        Case(schedule=f"{tile} k8 r1", m=24, n=24, k=80),
        Case(schedule=f"{tile} k8 r2", m=24, n=24, k=80),
        Case(schedule=f"{tile} x1", m=20, n=24, k=40, offset=1, gap_c=3),
    ]
    cases += [
        Case(schedule=f"pointer 32x16x32 w4 s2 {how}", m=m, n=n, k=k, layout=layout, out_dtype=out)
        for how, (m, n, k), layout, out in product(
            ("k3 r1", "k3 r1 x1", "k3 r2 x1", "x1 g2"), ((33, 40, 112), (1, 105, 107)), ("nt", "tn"), (torch.float16, torch.float32)
        )
    ]
    return cases


def parted_tma_cases() -> list[Case]:
    """Parts of tiles, added by the last CTA to arrive, and exchanged operands."""
    layouts = ("nn", "nt", "tn", "tt")
    cases = [
        Case(schedule=f"tma 32x16x32 w4 s2 {how}", m=m, n=n, k=k, layout=layout)
        for how, ((m, n, k), layout) in product(
            ("k3 r1", "k3 r2", "k2 r1 x1 p1", "k2 r2 x1 p1", "x1 g2", "x1 e2", "p1 q1", "p1 q1 x1"),
            (((40, 72, 136), "nn"), ((8, 104, 72), "tt")),
        )
    ]
    # stream-K: fewer tiles than CTAs, more, a multiple, less than a step for each, and K = 1 step
    cases += [
        Case(schedule=f"tma 16x16x32 w4 s2 g2 p{per_sm} q1", m=m, n=n, k=k, sms=sms)
        for (m, n, k), (per_sm, sms) in product(
            ((16, 16, 256), (48, 48, 96), (32, 64, 64), (16, 32, 64), (40, 32, 8)), ((1, 3), (2, 4), (1, 1))
        )
    ]
    cases += [
        Case(schedule="tma 16x32x32 w4 s2 p1 q1", m=40, n=80, k=96, gap_c=3, sms=3),
        Case(schedule="tma 16x32x32 w4 s2 p1 q1 x1", m=40, n=80, k=96, out_dtype=torch.float32, sms=4),
        Case(schedule="tma 16x32x32 w4 s2 k4 r1", m=40, n=80, k=40, out_dtype=torch.float32),  # the last splits are empty
        Case(schedule="tma 16x32x32 w4 s2 x1", m=17, n=35, k=40, gap_c=5),  # rows of C are no whole chunks
    ]
    # copies with aligned rows: of both operands, of one, of none
    cases += [
        Case(schedule=f"tma 16x32x32 w4 s2 {how}", m=21, n=43, k=37, layout=layout)
        for how, layout in product(("d1", "d1 x1", "d1 k2 r1"), layouts)
    ]
    cases += [
        Case(schedule="tma 16x32x32 w4 s2 d1", m=21, n=43, k=40, gap_a=8, gap_b=3),
        Case(schedule="tma 16x32x32 w4 s2 d1", m=21, n=48, k=40, layout="nn", offset=3),
        Case(schedule="tma 16x32x32 w4 s2 d1", m=24, n=48, k=40),
        Case(schedule="tma 16x16x32 w4 s2 d1", m=9, n=5, k=1100),
    ]
    return cases


def tma_cases() -> list[Case]:
    tile = "tma 16x16x32 w4 s2"
    layouts = ("nn", "nt", "tn", "tt")
    cases = [
        Case(schedule=f"{tile} g2", m=m, n=n, k=k, layout=layout)
        for (m, n, k), layout in product(((40, 64, 40), (8, 104, 136), (24, 32, 72)), layouts)
    ]
    cases += [
        Case(schedule=f"tma 16x16x{cta_k} w4 s3 k{splits}", m=24, n=24, k=k, layout="tn")
        for k, cta_k, splits in product((34, 96, 100, 127), (32, 64), (1, 3, 4))
    ]
    cases += [Case(schedule=f"{tile} g{group}", m=80, n=48, k=32) for group in (1, 2, 3, 8, 64)]
    cases += [
        Case(schedule=f"{tile} g2 p{ctas} {words}", m=70, n=48, k=72, sms=sms)
        for (ctas, sms), words in product(((1, 1), (1, 4), (2, 3), (1, 100)), ("", "f1", "f1 e2", "f1 k2", "k3"))
    ]
    cases += [Case(schedule=f"tma 16x32x32 w4 s2 e2 {words}", m=40, n=n, k=40) for n, words in product((64, 37, 20), ("", "p1 f1", "k2"))]
    cases += [Case(schedule=tile, m=m, n=16, k=16) for m in (1, 2, 7, 15)]
    cases += [
        Case(schedule=tile, m=33, n=30, k=40),  # N takes no whole 16-byte chunks
        Case(schedule=f"{tile} p1 f1", m=33, n=31, k=40),
        Case(schedule=tile, m=33, n=64, k=40, gap_c=1),
        Case(schedule=tile, m=33, n=22, k=40, gap_c=2),  # rows start at whole chunks and do not end at one
        Case(schedule=tile, m=33, n=64, k=40, gap_a=8, gap_b=24, gap_c=8),
        Case(schedule=tile, m=24, n=64, k=40, layout="tn", gap_a=8, gap_b=8),
        Case(schedule=tile, m=33, n=64, k=40, offset=8),
        Case(schedule=tile, m=24, n=36, k=40, out_dtype=torch.float32),
        Case(schedule=f"{tile} k8", m=24, n=24, k=80),
        Case(schedule=f"{tile} k3 p1 f1", m=24, n=21, k=80),
        Case(schedule=tile, m=24, n=24, k=8),
        Case(schedule=tile, m=8, n=1, k=256),
    ]
    return cases


def cases() -> list[Case]:
    return [*pointer_cases(), *tma_cases(), *parted_tma_cases()]


class Watch:
    """Reports lanes of the interpreter that touch memory outside the matrices of a call."""

    def __init__(self) -> None:
        from triton.runtime import interpreter

        self.native: Any = interpreter._interpreter
        self.strays: list[str] = []
        self.allowed: set[int] = set()
        interpreter._interpreter = self

    def __getattr__(self, name: str) -> Any:
        return getattr(self.native, name)

    def run(self, call: Call) -> None:
        self.allowed = set()
        for value in call.arguments.values():
            tensor = getattr(value, "base", value) if not isinstance(value, torch.Tensor) else value
            if isinstance(tensor, torch.Tensor):
                places = torch.zeros(tensor.shape, dtype=torch.int64)
                for axis, stride in enumerate(tensor.stride()):
                    shape = [-1 if other == axis else 1 for other in range(tensor.dim())]
                    places += (torch.arange(tensor.shape[axis]) * stride).view(shape)
                self.allowed.update((places * tensor.element_size() + tensor.data_ptr()).flatten().tolist())
        launch(call)

    def look(self, kind: str, pointers: Any, mask: Any) -> None:
        strays = set(pointers[mask].flatten().tolist()) - self.allowed
        if strays:
            self.strays.append(f"{kind} of {len(strays)} places outside the matrices")

    def load(self, pointers: Any, mask: Any, other: Any, dtype: Any) -> Any:
        self.look("load", pointers, mask)
        return self.native.load(pointers, mask, other, dtype)

    def store(self, pointers: Any, value: Any, mask: Any) -> Any:
        self.look("store", pointers, mask)
        return self.native.store(pointers, value, mask)


def interpret(cases: list[Case]) -> None:
    """Prints what becomes of each case, as JSON."""
    watch = Watch()
    outcomes = {}
    for case in cases:
        watch.strays.clear()
        outcome = check(case, "cpu", watch.run)
        outcomes[case.name] = {"failures": [*outcome.failures, *sorted(set(watch.strays))], "kernels": outcome.kernels}
    json.dump(outcomes, sys.stdout)


def interpreted_outcomes(program: str) -> dict[str, Any]:
    """Of a program of this folder that interprets its cases: the interpreter has to be chosen before triton is imported."""
    root = Path(__file__).parent.parent
    environment = os.environ | {"TRITON_INTERPRET": "1", "PYTHONPATH": os.pathsep.join([str(root), os.environ.get("PYTHONPATH", "")])}
    command = [sys.executable, str(root / "tests" / program)]
    ran = subprocess.run(command, env=environment, capture_output=True, text=True, check=False, timeout=250)
    assert ran.returncode == 0, ran.stderr[-2000:]
    found: dict[str, Any] = json.loads(ran.stdout)
    return found


if __name__ == "__main__":
    interpret(cases())
