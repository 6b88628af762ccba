"""Kernels that go wrong on a GPU; the measuring process runs them in place of a family's, chosen by the schedule's group_m."""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl

from tuner.kernels.launch import Call
from tuner.kernels.pointer import pointer_calls

GOOD, ILLEGAL, TRAP, HANG, NOTHING, HALF, GUARD, THIRD, LATE = 1, 2, 4, 8, 16, 32, 64, 128, 256
WRONG_FROM = {THIRD: 3, LATE: 2500}  # launches; with 121 operand sets some 1,250 are made to measure, and as many again before finals end
_COUNTERS: dict[int, torch.Tensor] = {}


@triton.jit
def far_away(c, DISTANCE: tl.constexpr):
    tl.store(c + tl.cast(DISTANCE, tl.int64), 1.0)


@triton.jit
def trap(c):
    tl.inline_asm_elementwise("trap; mov.u32 $0, 0;", "=r", [], dtype=tl.int32, is_pure=False, pack=1)
    tl.store(c, 1.0)


@triton.jit
def wait_for_ever(c):
    while tl.load(c, volatile=True).to(tl.float32) != 12345.0:
        pass


@triton.jit
def nothing(c):
    pass


@triton.jit
def wrong_from(c, counter, COUNT: tl.constexpr):
    """Spoils an element from the COUNT-th launch on."""
    launches = tl.load(counter) + 1
    tl.store(counter, launches)
    if launches >= COUNT:
        tl.store(c, 1000.0)


def calls(a: torch.Tensor, b: torch.Tensor, c: torch.Tensor, schedule: Any, sms: int, scratch: dict[str, torch.Tensor]) -> list[Call]:
    one = (1, 1, 1)
    match schedule.group_m:
        case 2:
            return [Call(far_away, one, {"c": c}, {"DISTANCE": 1 << 44}, 1, 1)]
        case 4:
            return [Call(trap, one, {"c": c}, {}, 1, 1)]
        case 8:
            return [Call(wait_for_ever, one, {"c": c}, {}, 1, 1)]
        case 16:
            return [Call(nothing, one, {"c": c}, {}, 1, 1)]
        case 32:
            return pointer_calls(a[: a.shape[0] // 2], b, c[: c.shape[0] // 2], schedule, sms, scratch)
        case 64:
            return [*pointer_calls(a, b, c, schedule, sms, scratch), Call(far_away, one, {"c": c}, {"DISTANCE": -8}, 1, 1)]
        case 128 | 256:
            counter = _COUNTERS.setdefault(schedule.group_m, torch.zeros(1, dtype=torch.int32, device=c.device))
            spoil = Call(wrong_from, one, {"c": c, "counter": counter}, {"COUNT": WRONG_FROM[schedule.group_m]}, 1, 1)
            return [*pointer_calls(a, b, c, schedule, sms, scratch), spoil]
    return pointer_calls(a, b, c, schedule, sms, scratch)
