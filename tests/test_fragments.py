"""What becomes of schedules that load operands straight into the registers of mma.sync: numbers of kernels that Triton compiled for sm_90,
and which schedules are left out."""

from __future__ import annotations

from dataclasses import replace

import pytest

from cost_models.calibration_files import load_calibration
from cost_models.hierarchy import estimate
from search_spaces.checks import Facts
from search_spaces.constraints import CONSTRAINTS
from search_spaces.hardware import Hardware
from search_spaces.lowering import lower, lower_one
from search_spaces.problem import Problem
from search_spaces.schedule import parse_schedule
from search_spaces.table import ScheduleTable

DECODE = Problem(m=8, n=28672, k=4096, layout="nt")


@pytest.mark.parametrize(
    ("text", "shared_memory", "registers", "accumulators"),
    [
        ("skinny 16x16x256 w1 s1", 0, 136, 8),
        ("skinny 16x32x512 w4 s1", 8192, 138, 16),  # 4 warps' sums of 16x32
        ("skinny 16x32x512 w4 s2", 8192, 230, 16),
        ("skinny 16x64x128 w4 n4 s2", 0, 136, 8),  # no sums to add
        ("skinny 16x32x256 w4 n2 s1 k3 r1", 4096, 94, 8),
    ],
)
def test_compiled_numbers(h200: Hardware, text: str, shared_memory: int, registers: int, accumulators: int) -> None:
    low = lower_one(parse_schedule(text), DECODE, h200)
    assert low.shared_memory_bytes[0] == shared_memory
    assert low.registers_per_thread[0] == pytest.approx(registers, rel=0.25)
    assert low.accumulators_per_thread[0] == accumulators
    assert low.instruction(0) == "mma.sync 16x8x16"


def refused_by(text: str, problem: Problem, hardware: Hardware) -> str | None:
    """The first constraint that the schedule falls to."""
    table = ScheduleTable.of([parse_schedule(text)])
    facts = Facts(table, problem, hardware, lower(table, problem, hardware))
    return next((c.name for c in CONSTRAINTS if not c.check(facts).passes().all()), None)


@pytest.mark.parametrize(
    ("text", "m", "expected"),
    [
        ("skinny 16x16x256 w1", 1, None),
        ("skinny 16x32x512 w4 k2 r1", 16, None),
        ("skinny 16x64x256 w4 n2 s2", 8, None),
        ("skinny 32x32x512 w4", 24, None),
        ("skinny 32x32x512 w4", 16, "idle_rows"),
        ("skinny 16x32x512 w4", 24, "fragment_rows"),  # would read B twice
        ("skinny 64x32x512 w4", 64, "fragment_rows"),
        ("skinny 16x32x128 w4", 8, "fragment_step"),  # 32 elements for each warp
        ("skinny 16x32x512 w4 k2", 8, "fragment_step"),
        ("skinny 16x64x1024 w2", 8, "fragment_ring"),  # 128 loads a thread
        ("skinny 16x16x256 w4 n4", 8, "warp_tile"),  # 4 columns for each warp
    ],
)
def test_which_schedules_load_fragments(h200: Hardware, text: str, m: int, expected: str | None) -> None:
    assert refused_by(text, Problem(m=m, n=4096, k=8192, layout="nt"), h200) == expected


@pytest.mark.parametrize(
    "changes", [{"layout": "nn"}, {"layout": "tt"}, {"k": 4100, "lda": 4104, "ldb": 4104}, {"lda": 4100}, {"alignment_bytes": 8}]
)
def test_operands_lie_along_k_and_are_aligned(h200: Hardware, changes: dict[str, int | str]) -> None:
    shape = {"m": 8, "n": 4096, "k": 4096, "layout": "nt"} | changes
    assert refused_by("skinny 16x16x256 w1", Problem(**shape), h200) == "fragment_operands"  # type: ignore[arg-type]


def test_more_under_way_at_once_is_no_slower(h200: Hardware) -> None:
    """Eight loads of 16 bytes in a thread against one CTA's share of DRAM: two steps are under way instead of one."""
    table = ScheduleTable.of([parse_schedule(f"skinny 16x32x256 w4 n4 s{stages}") for stages in (1, 2)])
    problem = replace(DECODE, n=2112)  # 66 tiles: half the SMs have one
    estimates = estimate(table, lower(table, problem, h200), problem, h200, load_calibration(h200))
    assert estimates.terms["latency"][1] == pytest.approx(estimates.terms["latency"][0] / 2)
    assert estimates.seconds[1] < estimates.seconds[0]
