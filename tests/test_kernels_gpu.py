"""The kernel families on a real GPU: right, within their memory, the same bits every time, past 2^31 elements, and inside a CUDA graph."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from itertools import product
from typing import Any

import pytest
import torch
from gemv_cases import gemv_cases
from kernel_cases import Case, cases, check

from search_spaces.schedule import parse_schedule
from tuner.kernels import family_module
from tuner.kernels.launch import Call, allocate, launch
from tuner.kernels.specialise import compile_call, cuda_target, run_compiled

pytestmark = pytest.mark.gpu
DEVICE = "cuda"


def capability() -> int:
    major, minor = torch.cuda.get_device_capability()
    return major * 10 + minor


def compile_and_run(call: Call) -> None:
    run_compiled(compile_call(call, cuda_target(capability())), call)


RUNS: dict[str, Callable[[Call], None]] = {"launch": launch, "compiled": compile_and_run}


def large_cases() -> list[Case]:
    """Tiles, warps and pipelines as they win, on shapes that they do not divide."""
    schedules = (
        "tma 128x256x64 w8 s3 g8 p1 f1",
        "tma 128x256x64 w8 s3 g8 p1 f1 e2",
        "tma 128x256x64 w8 s4 g8 e2",
        "tma 64x64x128 w4 s5 g8 p1",
        "tma 64x128x128 w4 s4 g8 k3",
        "tma 128x128x64 w4 s4 g8 k2 p1 f1",
        "pointer 128x128x64 w4 s6 g8",
        "pointer 256x128x32 w8 s6 g3",
        "pointer 16x64x128 w4 s6 k4",
        "pointer 64x64x64 w2 s3 g2",
        "tma 128x256x64 w8 s3 k2 r1",
        "tma 64x64x64 w4 s4 k5 p2 r1",
        "tma 128x64x64 w4 s4 k5 r2",
        "pointer 64x32x64 w4 s4 k6 r2 x1",
        "tma 128x256x64 w8 s3 p1 q1",
        "tma 64x64x128 w4 s4 p2 q1",
        "tma 64x16x128 w4 s5 x1",
        "tma 128x64x64 w8 s4 k3 r1 x1",
        "pointer 64x16x128 w4 s5 k2 r1 x1",
        "pointer 128x128x64 w8 s3 k4 r1",
        "wgmma 128x256x64 w8 s4 g8 p1 e4",
        "wgmma 128x256x64 w8 s4 g8 p1 e4 f1",
        "wgmma 64x256x64 w4 s4 p1 e4",
        "wgmma 128x128x64 w8 n2 s4 p1 e1",
        "wgmma 128x128x64 w8 c2 s5 g4 p1 e2",
        "wgmma 64x256x64 w8 c2 s4 p1 e4",
        "wgmma 128x192x64 w8 s4 p1 e2",
        "wgmma 128x192x64 w8 s4 p1 e1 f1",
        "wgmma 64x96x64 w4 s4 x1 e2",
        "wgmma 64x160x64 w4 s4 x1 p1 e4 f1",
        "wgmma 128x144x64 w4 s4 e1",
        "wgmma 128x320x64 w8 s3 e4",
        "wgmma 128x320x32 w8 s6 e4",
        "wgmma 128x144x64 w4 s5 p1 e4",
        "wgmma 128x128x64 w8 s4 k3 p1",
    )
    made = [
        Case(schedule=schedule, m=m, n=n, k=k, layout=layout, sms=132)
        for schedule, (m, n, k), layout in product(schedules, ((1000, 1000, 1000), (512, 1544, 4136)), ("nn", "nt", "tn", "tt"))
        if not (schedule.startswith(("tma", "wgmma")) and layout[0] == "t" and m % 8)
    ]
    pointer = [s for s in schedules if s.startswith("pointer")]
    made += [
        Case(schedule=s, m=m, n=n, k=k, sms=132) for s, (m, n, k) in product(pointer, ((1000, 999, 1001), (511, 511, 511), (1, 4096, 4127)))
    ]
    made += [
        Case(schedule=f"tma 128x128x64 w8 s3 {how}", m=m, n=n, k=k, layout=layout, sms=132)
        for how, (m, n, k), layout in product(("d1", "d1 x1", "d1 p1 q1"), ((1000, 999, 1001), (511, 511, 511)), ("nn", "nt", "tn", "tt"))
    ]
    made += [
        Case(schedule=s, m=m, n=n, k=k, layout="nt", sms=132)
        for s, (m, n, k) in product(
            ("gemv 1x1x2048 w4 s1", "gemv 8x4x512 w1 s1", "gemv 4x4x1024 w2 s1 k3 r1", "gemv 4x4x1024 w2 s1 k4 r2"),
            ((5, 4096, 4096), (16, 999, 1001)),
        )
    ]
    made += [Case(schedule=s, m=m, n=470, k=1000, gap_c=42, sms=132) for s, m in product(schedules, (1, 15, 300))]
    # a CTA has many tiles of one or two steps: the stores of one may not be over when the next has been multiplied
    short = (
        ("128x192x64 w8 s4 p1 e2", 64),
        ("128x192x64 w8 s2 p1 e1", 64),
        ("128x144x64 w4 s4 p1 e4", 64),
        ("64x96x64 w4 s4 p1 x1 e2", 64),
        ("64x96x64 w4 s4 p1 e1 f1", 128),
    )
    made += [
        Case(schedule=f"wgmma {how}", m=1000, n=1544, k=k, out_dtype=out, sms=4)
        for (how, k), out in product(short, (torch.float16, torch.float32))
    ]
    made += [
        Case(schedule=f"tma 128x128x64 w4 s3 g{group}", m=extent, n=extent, k=256, sms=132)
        for group, extent in product((1, 2, 4, 8, 16, 64), (1152, 1280, 1664))
    ]
    return made


def bf16(case: Case) -> Case:
    out = torch.bfloat16 if case.out_dtype is torch.float16 else case.out_dtype
    return dataclasses.replace(case, dtype=torch.bfloat16, out_dtype=out)


@pytest.fixture(scope="module", params=RUNS)
def run(request: pytest.FixtureRequest) -> Callable[[Call], None]:
    return RUNS[request.param]


@pytest.mark.parametrize("case", [*cases(), *gemv_cases(), *map(bf16, large_cases())], ids=lambda case: case.name)
def test_product_is_right_and_stays_in_its_memory(case: Case, run: Callable[[Call], None]) -> None:
    outcome = check(case, DEVICE, run)
    torch.cuda.synchronize()
    assert outcome.failures == []


def matrices(m: int, n: int, k: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """x and w.t() of a linear layer, and an output of NaN."""
    a = torch.randn(m, k, device=DEVICE, dtype=torch.bfloat16)
    w = torch.randn(n, k, device=DEVICE, dtype=torch.bfloat16)
    return a, w.t(), torch.full((m, n), float("nan"), device=DEVICE, dtype=torch.bfloat16)


def calls_of(text: str, a: torch.Tensor, b: torch.Tensor, c: torch.Tensor) -> list[Call]:
    schedule = parse_schedule(text)
    family = family_module(schedule.family)
    assert family.supports(a, b, c, schedule) is None
    found: list[Call] = family.calls(a, b, c, schedule, 132, allocate(family.scratch(a, b, c, schedule, 132), a.device))
    return found


WIDE = ["pointer 128x128x32 w8 s3 g8", "tma 128x256x64 w8 s3 g8 p1 f1", "tma 128x128x64 w4 s3", "tma 128x128x64 w4 s3 p1 q1"]
WIDE += ["tma 128x128x64 w4 s3 x1", "wgmma 128x256x64 w8 s4 g8 p1 e4"]


@pytest.mark.parametrize("text", WIDE)
@pytest.mark.parametrize("columns", [65536, 65537])
def test_offsets_past_2_to_the_31(text: str, columns: int, run: Callable[[Call], None]) -> None:
    """The last row of C starts at element 2^31 or after; with 65537 columns it is stored through pointers."""
    m, k = 32769, 16
    a, b, c = matrices(m, columns, k)
    for call in calls_of(text, a, b, c):
        run(call)
    for rows in (slice(0, 64), slice(m - 64, m)):
        torch.testing.assert_close(c[rows].float(), a[rows].float() @ b.float(), rtol=2.0**-7, atol=1e-2)
    assert not any(bool(part.isnan().any()) for part in c.chunk(16))


def test_weights_past_2_to_the_31(run: Callable[[Call], None]) -> None:
    """B has 2^31 + 2^25 elements, and is streamed, or copied to aligned rows, past that."""
    n, k = 2**20 + 2**14, 2048
    a, b, c = matrices(2, n, k)
    for call in calls_of("gemv 2x2x1024 w2 s1", a, b, c):
        run(call)
    torch.testing.assert_close(c[:, -64:].float(), a.float() @ b[:, -64:].float(), rtol=2.0**-7, atol=0.5)
    a, b, c = matrices(64, n, k + 1)
    for call in calls_of("tma 64x128x64 w4 s4 d1", a, b, c):
        run(call)
    for columns in (slice(0, 64), slice(n - 64, n)):
        torch.testing.assert_close(c[:, columns].float(), a.float() @ b[:, columns].float(), rtol=2.0**-7, atol=0.5)


def test_far_apart_rows(run: Callable[[Call], None]) -> None:
    """4096 rows of A whose starts are 2^20 + 16 elements apart: offsets up to 2^32."""
    rows, stride, k, n = 4096, 2**20 + 16, 64, 128
    a = torch.empty(rows * stride, device=DEVICE, dtype=torch.bfloat16).as_strided((rows, k), (stride, 1))
    a.copy_(torch.randn(rows, k))
    for text in ("pointer 64x64x64 w4 s3", "tma 64x64x64 w4 s3"):
        _, b, c = matrices(rows, n, k)
        for call in calls_of(text, a, b, c):
            run(call)
        torch.testing.assert_close(c.float(), a.float() @ b.float(), rtol=2.0**-7, atol=1e-2)


IN_ONE_LAUNCH = ["pointer 64x128x64 w4 s4 k8 r1", "tma 64x128x64 w4 s4 k8 r1", "tma 64x128x64 w4 s4 p1 q1", "tma 128x64x64 w4 s4 k8 r1 x1"]


@pytest.mark.parametrize("text", ["pointer 64x128x64 w4 s4 k8", "tma 64x128x64 w4 s4 k8", "tma 64x128x64 w4 s4 k8 p1 f1", *IN_ONE_LAUNCH])
def test_split_k_gives_the_same_bits_every_time(text: str, run: Callable[[Call], None]) -> None:
    a, b, c = matrices(64, 4096, 14336)
    results = []
    for _ in range(20):
        c.fill_(float("nan"))
        for call in calls_of(text, a, b, c):
            run(call)
        results.append(c.clone())
    assert all(torch.equal(results[0], result) for result in results)
    assert results[0].isfinite().all()


@pytest.mark.parametrize("text", ["pointer 64x128x64 w4 s4", "tma 128x128x64 w4 s4 p1 f1", "tma 64x128x64 w4 s4 k4", *IN_ONE_LAUNCH])
def test_compiled_calls_in_a_cuda_graph(text: str) -> None:
    a, b, c = matrices(512, 1024, 2048)
    compiled: list[tuple[Any, Call]] = [(compile_call(call, cuda_target(capability())), call) for call in calls_of(text, a, b, c)]
    for binary, call in compiled:
        run_compiled(binary, call)  # loads the binary
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for binary, call in compiled:
            run_compiled(binary, call)
    for _ in range(3):
        a.normal_()
        c.fill_(float("nan"))
        graph.replay()
        torch.testing.assert_close(c.float(), a.float() @ b.float(), rtol=2.0**-6, atol=0.5)


def test_both_ways_run_the_same_binary() -> None:
    """What is measured from a compiled call is what a program gets that goes through Triton's own path."""
    a, b, c = matrices(256, 256, 256)
    for text in (
        "pointer 64x128x64 w4 s3 k2",
        "tma 64x128x64 w4 s3",
        "tma 64x128x64 w4 s3 p1 q1",
        "wgmma 128x128x64 w8 s3 p1 e2",
    ):
        for call in calls_of(text, a, b, c):
            own = call.kernel[call.grid](**call.arguments, **call.constants, **call.options)
            assert own.asm["cubin"] == compile_call(call, cuda_target(capability())).asm["cubin"]
