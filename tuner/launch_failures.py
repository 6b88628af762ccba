"""Whose doing is it that a launch, or the start of the measuring process, failed? Read from what torch, Triton, CUDA and the system say.
Needs none of them."""

from __future__ import annotations

import subprocess

from db.records import Status
from search_spaces.errors import MachineFault

MESSAGE_CHARACTERS = 300
# What the device says of a kernel that broke one of its rules. The context is lost with it.
KERNEL_FAULTS = (
    "illegal memory access",
    "illegal address",
    "misaligned address",
    "illegal instruction",
    "unspecified launch failure",
    "hardware stack error",
    "invalid program counter",
    "invalid address space",
    "operation not supported on global/shared address space",
    "device-side assert",
    "tensor memory not completely freed",
)
# More registers or shared memory than a CTA has, found at the launch
TOO_LARGE = ("too many resources requested for launch", "out of resource")
# What the machine lacks, or has lost, whatever is launched
MACHINE_FAULTS = (
    "out of memory",
    "memory allocation",
    "alloc_failed",
    "cublas_status_not_initialized",
    "no kernel image is available",
    "device kernel image is invalid",
    "driver version is insufficient",
    "driver shutting down",
    "system not yet initialized",
    "system driver mismatch",
    "initialization error",
    "no cuda-capable device",
    "no cuda gpus are available",
    "no nvidia driver",
    "found no nvidia driver",
    "busy or unavailable",
    "device not ready",
    "device is not licensed",
    "mps ",
    "ecc error",
    "nvlink",
    "fallen off the bus",
    "gpu is lost",
    "cannot open shared object file",
    "libcuda",
    "unknown error",
    "active drivers",  # Triton's words where it finds none
    "failed to find c compiler",
)
_MACHINE_ERRORS = (OSError, subprocess.SubprocessError, MemoryError, ImportError, MachineFault)


def message_of(error: BaseException) -> str:
    """One line; a machine's fault is a sentence already."""
    text = str(error).strip()
    first = text.splitlines()[0] if text else ""
    if isinstance(error, MachineFault):
        return first
    return f"{type(error).__name__}: {first}".removesuffix(": ")[:MESSAGE_CHARACTERS]


def is_lack_of_memory(error: BaseException) -> bool:
    """Whether it may go better once memory of the device is given back."""
    return type(error).__name__ == "OutOfMemoryError" or "out of memory" in str(error).lower() or "alloc_failed" in str(error).lower()


def status_of(error: BaseException, lost: str = "") -> Status:
    """What became of a schedule whose check or timing raised this. lost: what the context says ever after; empty where it works still."""
    words = f"{error} {lost}".lower()
    if any(fault in words for fault in KERNEL_FAULTS):
        return "faulted"
    if type(error).__name__ == "OutOfResources" or any(fault in words for fault in TOO_LARGE):
        return "out_of_resources"
    if isinstance(error, _MACHINE_ERRORS) or is_lack_of_memory(error) or any(fault in words for fault in MACHINE_FAULTS):
        return "machine_fault"
    return "crashed" if lost else "launch_failed"
