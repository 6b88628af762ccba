"""Whose doing a failure is: only what a schedule would meet again, on any machine and any day, is held against it."""

from __future__ import annotations

import errno
import os
import signal
from subprocess import TimeoutExpired

import pytest

from db.records import SCHEDULES_OWN, is_moments
from tuner.causes import cause_of, death


class OutOfResources(Exception):
    """Named as Triton's own."""


class CompilationError(Exception):
    """Named as Triton's own."""


class PTXASError(Exception):
    """Named as Triton's own."""


def ptxas(*lines: str) -> PTXASError:
    return PTXASError(
        "\n".join(("PTXAS error: Internal Triton PTX codegen error", "`ptxas` stderr:", *lines, "Repro command: ptxas -v x.ptx"))
    )


def within(inner: BaseException) -> BaseException:
    """As Triton gives an error of its language, once for each function that is inlined."""
    middle, outer = CompilationError("at 1:2:\nbody\n"), CompilationError("at 3:4:\n    inlined(a, b)\n")
    middle.__cause__, outer.__cause__ = inner, middle
    return outer


@pytest.mark.parametrize(
    "number",
    [
        errno.ENOSPC,
        errno.EDQUOT,
        errno.EMFILE,
        errno.ENFILE,
        errno.ENOMEM,
        errno.EIO,
        errno.EROFS,
        errno.EACCES,
        errno.EPERM,
        errno.EAGAIN,
        errno.ENOENT,
        errno.ESTALE,
        errno.ETXTBSY,
        errno.ENOTDIR,
    ],
)
def test_what_the_system_refuses_is_the_machine_s(number: int) -> None:
    error = OSError(number, os.strerror(number), "/tmp/x.ptx")
    assert cause_of(error) == "machine_fault"
    assert cause_of(within(error)) == "machine_fault"


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (MemoryError(), "machine_fault"),
        (ModuleNotFoundError("No module named 'triton'"), "machine_fault"),
        (ImportError("libstdc++.so.6: cannot open shared object file"), "machine_fault"),
        (RuntimeError("std::bad_alloc"), "machine_fault"),
        (RuntimeError("can't start new thread"), "machine_fault"),
        (RuntimeError("CUDA out of memory. Tried to allocate 2.00 GiB"), "machine_fault"),
        (ptxas("ptxas fatal   : Memory allocation failure"), "machine_fault"),
        (ptxas("ptxas fatal   : Output file '/tmp/x.o' could not be opened"), "machine_fault"),
        (RuntimeError("Cannot find ptxas"), "machine_fault"),
        (RuntimeError("PTXAS error: `ptxas` failed with error code -9"), "killed"),
        (RuntimeError("PTXAS error: `ptxas` failed with error code -15"), "killed"),
        (RuntimeError("PTXAS error: `ptxas` failed with error code -7"), "machine_fault"),
        (RuntimeError("PTXAS error: `ptxas` failed with error code -11"), "crashed"),
        (RuntimeError("PTXAS error: `ptxas` raised SIGSEGV"), "crashed"),
        (TimeoutExpired("ptxas", 60), "compile_timeout"),
        (RuntimeError("PassManager::run failed"), "compile_failed"),
        (RuntimeError(""), "compile_failed"),
        (ptxas(), "compile_failed"),
        (ValueError("cuobjdump names no registers: "), "compile_failed"),
        (AssertionError(), "compile_failed"),
        (within(AttributeError("module 'triton.language' has no attribute 'dot'")), "compile_failed"),
        (SystemExit("leaving"), "compile_failed"),
    ],
)  # fmt: skip
def test_in_doubt_it_is_the_moment_s(error: BaseException, status: str) -> None:
    assert cause_of(error) == status
    assert is_moments(status)


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (CompilationError("at 3:4:\n    tl.dot(a, b)\nfirst input shape ['8', '8'] is too small"), "refused"),
        (within(ValueError("numel (2097152) exceeds triton maximum tensor numel (1048576)")), "refused"),
        (within(TypeError("unsupported operand dtypes")), "refused"),
        (AssertionError("num_warps must be a power of 2"), "refused"),
        (ptxas("ptxas fatal   : (C7602) Insufficient registers (64) to compile instruction at line 303"), "refused"),
        (ptxas("ptxas error   : Unexpected instruction 'wgmma'"), "refused"),
        (RuntimeError("loc(\"k.py\":3:4): error: failed to legalize operation 'tt.dot'"), "refused"),
        (OutOfResources("out of resource: shared memory, Required: 300000, Hardware limit: 232448"), "out_of_resources"),
        (ptxas("ptxas error   : Entry function 'k' uses too much shared data (0x40000 bytes, 0x38c00 max)"), "out_of_resources"),
    ],
)  # fmt: skip
def test_what_the_compiler_gives_a_reason_for_is_the_schedule_s(error: BaseException, status: str) -> None:
    assert cause_of(error) == status
    assert status in SCHEDULES_OWN


@pytest.mark.parametrize(
    ("number", "status"),
    [
        (signal.SIGKILL, "killed"),
        (signal.SIGTERM, "killed"),
        (signal.SIGHUP, "killed"),
        (signal.SIGBUS, "machine_fault"),  # a mapped file on a disk that is full
        (signal.SIGXFSZ, "machine_fault"),
        (signal.SIGSEGV, "crashed"),
        (signal.SIGABRT, "crashed"),
    ],
)
def test_no_signal_alone_is_the_schedule_s_doing(number: int, status: str) -> None:
    assert death(number) == status
    assert is_moments(status)
