"""What one kernel launch is, what every family asks of its tensors, and the plain way to launch: through Triton's own just-in-time path."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    import torch


class Call(NamedTuple):
    """One launch of one kernel, with nothing left to decide."""

    kernel: Any  # a function under triton.jit
    grid: tuple[int, int, int]
    arguments: dict[str, Any]  # tensors, integers and tensor descriptors, by parameter name
    constants: dict[str, Any]  # what the binary is specialised on, by parameter name
    warps: int
    stages: int

    @property
    def options(self) -> dict[str, Any]:
        """fp fusion is named because its default changes between releases of Triton."""
        return {"num_warps": self.warps, "num_stages": self.stages, "enable_fp_fusion": True}


def launch(call: Call) -> None:
    call.kernel[call.grid](**call.arguments, **call.constants, **call.options)


def tensor_obstacle(a: torch.Tensor, b: torch.Tensor, c: torch.Tensor, schedule: Any) -> str | None:
    """Why no family can run this schedule on these tensors; None where one can."""
    if a.dtype != b.dtype or str(a.dtype) not in ("torch.float16", "torch.bfloat16"):
        return f"A is {a.dtype} and B is {b.dtype}; both must be float16 or both bfloat16"
    if c.dtype != a.dtype and str(c.dtype) != "torch.float32":
        return f"C is {c.dtype}; it must be {a.dtype} or float32"
    (m, n), k = c.shape, a.shape[1]
    if n > 1 and c.stride(1) != 1:
        return f"neighbours in a row of C are {c.stride(1)} elements apart; they must be side by side"
    for name, extent, tile in (("M", m, schedule.cta_m), ("N", n, schedule.cta_n), ("K", k, schedule.cta_k * schedule.split_k)):
        if extent > 2**31 - tile:
            return f"{name} = {extent} in steps of {tile} passes 2**31, the end of tile coordinates"
    tiles = -(-m // schedule.cta_m) * -(-n // schedule.cta_n)
    if tiles * schedule.split_k > 2**30:
        return f"{tiles} tiles and {schedule.split_k} splits pass 2**30, the most that are counted"
    return None


EXPORTS = (Call, launch, tensor_obstacle)
