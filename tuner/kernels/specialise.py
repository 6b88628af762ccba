"""Which binary a call is, compiled without a GPU for a named chip, and the launch of exactly that binary.

The rules of `signature_of` are those of Triton's own just-in-time path, which a test compares them with.
"""

from __future__ import annotations

from typing import Any

import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource, CompiledKernel
from triton.experimental.gluon._runtime import GluonASTSource, GluonJITFunction
from triton.experimental.gluon.nvidia import hopper
from triton.tools.tensor_descriptor import TensorDescriptor

from tuner.kernels.launch import Call

WARP_SIZE = 32
DTYPE_NAMES = {"torch.float16": "fp16", "torch.bfloat16": "bf16", "torch.float32": "fp32", "torch.int32": "i32"}


def cuda_target(compute_capability: int) -> GPUTarget:
    """compute_capability: 90 for 9.0."""
    return GPUTarget("cuda", compute_capability, WARP_SIZE)


def signature_of(value: Any, *, alignment_bytes: int = 16) -> tuple[str, bool]:
    """(type, known to be a multiple of 16) of a kernel argument: what Triton compiles for. An integer of 1, and None, become constants."""
    if isinstance(value, TensorDescriptor):
        return f"tensordesc<{DTYPE_NAMES[str(value.base.dtype)]}{list(value.block_shape)}>", False
    if isinstance(value, hopper.TensorDescriptor):  # Gluon's says how its tile lies in shared memory
        return f"tensordesc<{DTYPE_NAMES[str(value.base.dtype)]}{list(value.block_shape)},{value.layout!r}>", False
    if hasattr(value, "data_ptr"):
        return f"*{DTYPE_NAMES[str(value.dtype)]}", alignment_bytes % 16 == 0 and value.data_ptr() % 16 == 0
    if value is None or value == 1:
        return "constexpr", False
    return "i32" if -(2**31) <= value < 2**31 else "i64", value % 16 == 0


def source_of(call: Call, *, alignment_bytes: int = 16) -> ASTSource:
    """alignment_bytes: what the tensors that the binary will be launched with start at a multiple of."""
    signature: dict[str, str] = {}
    constants: dict[tuple[int], Any] = {}
    attributes: dict[tuple[int], list[list[Any]]] = {}
    for position, name in enumerate(call.kernel.arg_names):
        if name in call.constants:
            signature[name], constants[position,] = "constexpr", call.constants[name]
            continue
        value = call.arguments[name]
        signature[name], divisible = signature_of(value, alignment_bytes=alignment_bytes)
        if signature[name] == "constexpr":
            constants[position,] = value
        elif divisible:
            attributes[position,] = [["tt.divisibility", 16]]
    source = GluonASTSource if isinstance(call.kernel, GluonJITFunction) else ASTSource
    return source(call.kernel, signature, constants, attributes)


def compile_call(call: Call, target: GPUTarget, *, alignment_bytes: int = 16) -> CompiledKernel:
    """The binary of the call for a chip that need not be present. Tensors may be outlines (tuner/operands.py) or on the `meta` device."""
    return triton.compile(source_of(call, alignment_bytes=alignment_bytes), target=target, options=call.options)


def run_compiled(compiled: CompiledKernel, call: Call) -> None:
    """Launches the binary on the current stream; the call must be one that the binary was compiled for.

    The first launch loads the binary, so it has to come before the capture of a CUDA graph.
    """
    values = call.arguments | call.constants
    compiled[call.grid](*(values[name] for name in call.kernel.arg_names))
