"""What one kernel launch is, what every family asks of its tensors, and the plain way to launch: through Triton's own just-in-time path."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    import torch


class Scratch(NamedTuple):
    """Device memory that a schedule needs besides its operands. Zeroed scratch is zero before the first launch, and every launch leaves it
    zero again."""

    dtype: str
    shape: tuple[int, ...]
    zeroed: bool = False


class Call(NamedTuple):
    """One launch of one kernel, with nothing left to decide."""

    kernel: Any  # a function under triton.jit
    grid: tuple[int, int, int]
    arguments: dict[str, Any]  # tensors, integers and tensor descriptors, by parameter name
    constants: dict[str, Any]  # what the binary is specialised on, by parameter name
    warps: int
    stages: int
    max_registers: int | None = None  # a thread, where the kernel shares them out among its warps itself

    @property
    def options(self) -> dict[str, Any]:
        """fp fusion is named because its default changes between releases of Triton."""
        limit = {} if self.max_registers is None else {"maxnreg": self.max_registers}
        return {"num_warps": self.warps, "num_stages": self.stages, "enable_fp_fusion": True, **limit}


def launch(call: Call) -> None:
    call.kernel[call.grid](**call.arguments, **call.constants, **call.options)


def allocate(needed: dict[str, Scratch], device: torch.device) -> dict[str, torch.Tensor]:
    """The scratch of one launch at a time: two that run at once must not share it."""
    import torch

    dtypes = {"fp16": torch.float16, "bf16": torch.bfloat16, "fp32": torch.float32, "int32": torch.int32}
    return {
        name: (torch.zeros if part.zeroed else torch.empty)(part.shape, dtype=dtypes[part.dtype], device=device)
        for name, part in needed.items()
    }


def tensor_obstacle(a: torch.Tensor, b: torch.Tensor, c: torch.Tensor, schedule: Any) -> str | None:
    """Why no family can run this schedule on these tensors; None where one can."""
    if a.dtype != b.dtype or str(a.dtype) not in ("torch.float16", "torch.bfloat16"):
        return f"A is {a.dtype} and B is {b.dtype}; both must be float16 or both bfloat16"
    if c.dtype != a.dtype and str(c.dtype) != "torch.float32":
        return f"C is {c.dtype}; it must be {a.dtype} or float32"
    (m, n), k = c.shape, a.shape[1]
    if n > 1 and c.stride(1) != 1:
        return f"neighbours in a row of C are {c.stride(1)} elements apart; they must be side by side"
    tile_m, tile_n = (schedule.cta_n, schedule.cta_m) if schedule.swap_ab else (schedule.cta_m, schedule.cta_n)
    for name, extent, tile in (("M", m, tile_m), ("N", n, tile_n), ("K", k, schedule.cta_k * schedule.split_k)):
        if extent > 2**31 - tile:
            return f"{name} = {extent} in steps of {tile} passes 2**31, the end of tile coordinates"
    tiles = -(-m // tile_m) * -(-n // tile_n)
    if tiles * schedule.split_k > 2**30:
        return f"{tiles} tiles and {schedule.split_k} splits pass 2**30, the most that are counted"
    return None


def exchanged(a: torch.Tensor, b: torch.Tensor, schedule: Any) -> tuple[torch.Tensor, torch.Tensor]:
    """The factors as the kernel sees them: of C, or of C^T = B^T A^T."""
    return (b.t(), a.t()) if schedule.swap_ab else (a, b)


EXPORTS = (Scratch, Call, launch, allocate, exchanged, tensor_obstacle)
