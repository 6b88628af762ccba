"""What becomes of schedules that stream B: numbers of kernels that Triton 3.9 compiled for sm_90, and which schedules are left out."""

from __future__ import annotations

import pytest

from search_spaces.checks import Facts
from search_spaces.constraints import CONSTRAINTS
from search_spaces.hardware import Hardware
from search_spaces.lowering import lower, lower_one
from search_spaces.problem import Problem
from search_spaces.schedule import parse_schedule
from search_spaces.table import ScheduleTable

WIDE = (28672, 4096)


@pytest.mark.parametrize(
    ("text", "m", "layout", "shared_memory", "registers"),
    [
        ("gemv 1x4x1024 w4 s1", 1, "nt", 64, 36),
        ("gemv 1x4x1024 w4 s4", 1, "nt", 30720, 48),  # 3 buffers of 4 rows of B and one of A
        ("gemv 1x1x256 w1 s5", 1, "nt", 4096, 32),
        ("gemv 4x8x1024 w4 s3", 4, "nt", 49152, 108),
        ("gemv 1x128x64 w8 s3 k4 r1", 1, "nn", 32768, 48),  # along N, B alone goes through shared memory
        ("gemv 8x64x32 w4 s1 k4 r1", 8, "nn", 1024, 128),
    ],
)
def test_compiled_numbers(h200: Hardware, text: str, m: int, layout: str, shared_memory: int, registers: int) -> None:
    low = lower_one(parse_schedule(text), Problem(m=m, n=WIDE[0], k=WIDE[1], layout=layout), h200)
    assert low.shared_memory_bytes[0] == shared_memory
    assert low.registers_per_thread[0] == pytest.approx(registers, rel=0.25)
    assert low.instruction(0) == "fma 1x1x1"


def test_sums_of_a_thread(h200: Hardware) -> None:
    """Along K every thread has sums for all columns; along N, for the 8 that it loads at once."""
    assert lower_one(parse_schedule("gemv 2x4x1024 w4"), Problem(m=2, n=64, k=4096), h200).accumulators_per_thread[0] == 8
    along_n = lower_one(parse_schedule("gemv 2x64x32 w4"), Problem(m=2, n=64, k=4096, layout="nn"), h200)
    assert along_n.accumulators_per_thread[0] == 16


def refused_by(text: str, problem: Problem, hardware: Hardware) -> str | None:
    """The first constraint that the schedule falls to."""
    table = ScheduleTable.of([parse_schedule(text)])
    facts = Facts(table, problem, hardware, lower(table, problem, hardware))
    return next((c.name for c in CONSTRAINTS if not c.check(facts).passes().all()), None)


@pytest.mark.parametrize(
    ("text", "m", "expected"),
    [
        ("gemv 1x4x1024 w4", 1, None),
        ("gemv 1x2x512 w2 k2 r1", 1, None),
        ("gemv 16x4x1024 w4", 17, "stream_rows"),
        ("gemv 4x4x1024 w4", 8, "stream_rows"),  # would read B twice
        ("gemv 8x4x1024 w4", 16, None),
        ("gemv 8x4x1024 w4", 4, "idle_rows"),
        ("gemv 1x4x512 w4", 1, "stream_step"),  # half the threads would have nothing to load
        ("gemv 1x8x4096 w4", 1, "stream_loads"),  # 32 loads a thread
        ("gemv 1x4x1024 w4 k2", 1, "stream_splits"),
        ("gemv 1x4x1024 w4 k2 r2", 1, None),
        ("gemv 16x16x1024 w4", 16, "accumulator_registers"),
    ],
)
def test_which_schedules_stream(h200: Hardware, text: str, m: int, expected: str | None) -> None:
    assert refused_by(text, Problem(m=m, n=4096, k=8192), h200) == expected
