"""What one kernel launch is, and the plain way to run it: through Triton's own just-in-time path."""

from __future__ import annotations

from typing import Any, NamedTuple


class Call(NamedTuple):
    """One launch of one kernel, with nothing left to decide."""

    kernel: Any  # a function under triton.jit
    grid: tuple[int, int, int]
    arguments: dict[str, Any]  # tensors, integers and tensor descriptors, by parameter name
    constants: dict[str, Any]  # what the binary is specialised on, by parameter name
    warps: int
    stages: int


def launch(call: Call) -> None:
    call.kernel[call.grid](**call.arguments, **call.constants, num_warps=call.warps, num_stages=call.stages)


EXPORTS = (Call, launch)
