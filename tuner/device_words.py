"""Whose doing is it, by the words of CUDA and of the system, that a process which measures died or gave up? Of text alone: where the
process is gone, there is nothing else; where it lives, tuner/launch_failures.py knows the error besides."""

from __future__ import annotations

import re
import signal

from db.records import Status

# The kernel broke a rule of the device, which CUDA names: it would do so again
FAULT = re.compile(
    r"illegal memory access|illegal address|misaligned address|illegal instruction|invalid program counter|hardware stack error"
    r"|operation not supported on global/shared address space|unspecified launch failure|device-side assert"
    r"|tensor memory not completely freed"
    r"|CUDA_ERROR_(ILLEGAL_ADDRESS|MISALIGNED_ADDRESS|ILLEGAL_INSTRUCTION|INVALID_PC|INVALID_ADDRESS_SPACE|HARDWARE_STACK_ERROR"
    r"|LAUNCH_FAILED|ASSERT)",
    re.IGNORECASE,
)
# Device memory that others hold, a device or driver that is not ready or broken, and what the system is out of
MACHINE = re.compile(
    r"out of memory|OUT_OF_MEMORY|memory allocation|ALLOC_FAILED|CUBLAS_STATUS_NOT_INITIALIZED|no kernel image|kernel image is invalid"
    r"|active drivers|failed to find C compiler|cannot open shared object file|device not ready"
    r"|OutOfMemory|MemoryError|bad_alloc|cannot allocate memory|no space left|quota exceeded|too many open files"
    r"|read-only file system|input/output error|resource temporarily unavailable|can't start new thread|no CUDA-capable device"
    r"|no CUDA GPUs are available|found no NVIDIA driver|not yet initialized|system driver mismatch|busy or unavailable"
    r"|device.{0,3} unavailable|driver version is insufficient|driver shutting down|initialization error|ECC error|uncorrectable|\bXid\b"
    r"|nvlink|GPU is lost|fallen off the bus|requires reset|\bMPS\b|unknown error|invalid device ordinal|forward compatibility"
    r"|ImportError|ModuleNotFoundError|CUDA_ERROR_(NO_DEVICE|SYSTEM_NOT_READY|DEVICE_UNAVAILABLE|ECC_UNCORRECTABLE|NOT_INITIALIZED|UNKNOWN)",
    re.IGNORECASE,
)
FROM_OUTSIDE = (signal.SIGKILL, signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT)
LIMITS = (signal.SIGBUS, signal.SIGXFSZ, signal.SIGXCPU)  # a mapped file without room on its disk, and limits of the process


def status_of(words: str) -> Status:
    """The status that the last words of a process speak for. In doubt the moment's: a schedule that is blamed wrongly is lost for good."""
    if MACHINE.search(words):
        return "machine_fault"
    return "faulted" if FAULT.search(words) else "crashed"


def status_of_signal(number: int) -> Status:
    return "killed" if number in FROM_OUTSIDE else "machine_fault" if number in LIMITS else "crashed"


def signal_name(number: int) -> str:
    """SIGSEGV of 11; real-time signals have no name each."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
