"""What a compiled kernel is, read from the binary with no GPU: registers, local memory, shared memory and the MMA instruction it uses."""

from __future__ import annotations

import hashlib
import re
import subprocess
from collections import Counter
from pathlib import Path
from tempfile import NamedTemporaryFile
from typing import Any

import triton

from tuner.compiling import KernelBinary

_USAGE = re.compile(r"REG:(\d+) STACK:(\d+) SHARED:\d+ LOCAL:(\d+)")
_MMA = re.compile(r"(wgmma)\.mma_async\S*?\.(m\d+n\d+k\d+)|(mma)\.sync\S*?\.(m\d+n\d+k\d+)|(tcgen05\.mma)\b")


def read_binary(compiled: Any) -> KernelBinary:
    """compiled: a triton CompiledKernel."""
    cubin = compiled.asm["cubin"]
    registers, stack_bytes, local_bytes = _resource_usage(cubin)
    return KernelBinary(
        name=compiled.metadata.name,
        registers=registers,
        spill_slots=max(stack_bytes, local_bytes) // 4,
        shared_memory_bytes=compiled.metadata.shared,
        mma_instruction=mma_instruction(compiled.asm["ptx"]),
        binary_hash=hashlib.sha256(cubin).hexdigest(),
    )


def mma_instruction(ptx: str) -> str:
    """The commonest MMA of a PTX text, such as `wgmma m64n256k16`; `fma` where there is none."""
    found: Counter[str] = Counter()
    for match in _MMA.finditer(ptx):
        wgmma, wgmma_shape, sync, sync_shape, tcgen05 = match.groups()
        found[f"wgmma {wgmma_shape}" if wgmma else f"mma.sync {sync_shape}" if sync else tcgen05] += 1
    return found.most_common(1)[0][0] if found else "fma"


def _resource_usage(cubin: bytes) -> tuple[int, int, int]:
    """(registers, bytes of stack, bytes of local memory) a thread, by the cuobjdump that Triton ships."""
    tool = Path(triton.__file__).parent / "backends/nvidia/bin/cuobjdump"
    with NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        ran = subprocess.run([tool, "-res-usage", file.name], capture_output=True, text=True, check=True)
    match = _USAGE.search(ran.stdout + ran.stderr)
    if not match:
        raise ValueError(f"cuobjdump names no registers: {(ran.stdout + ran.stderr)[:200]}")
    registers, stack, local = map(int, match.groups())
    return registers, stack, local
