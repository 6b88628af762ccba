"""Compile functions that go wrong in every way a compiler does; the compile server runs them in place of its own."""

from __future__ import annotations

import errno
import hashlib
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any


class OutOfResources(Exception):
    """Named as Triton's own."""


class CompilationError(Exception):
    """Named as Triton's own."""


class CompileTimeAssertionFailure(CompilationError):
    """Named as Triton's own."""


def good() -> dict[str, Any]:
    kernel = {"name": "k", "registers": 40, "spill_slots": 0, "shared_memory_bytes": 1024, "mma_instruction": "fma", "binary_hash": "h"}
    return {"status": "ok", "message": "", "kernels": [kernel]}


def without_fault(job: dict[str, Any]) -> dict[str, Any]:
    """At once, and to another binary for each schedule."""
    answer = good()
    answer["kernels"][0]["binary_hash"] = hashlib.sha256(str(sorted(job["schedule"].items())).encode()).hexdigest()
    answer["cache_folders"] = []
    return answer


def by_stages(job: dict[str, Any]) -> dict[str, Any]:
    """What happens is chosen by the schedule's stages; a folder for marks comes through the environment."""
    marks = Path(os.environ["TRITON_CACHE_DIR"])
    match job["schedule"]["stages"]:
        case 1:
            return good()
        case 2:
            child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])  # as ptxas is
            (marks / "grandchild").write_text(str(child.pid))
            time.sleep(600)
        case 3:
            os.abort()
        case 4:
            os.kill(os.getpid(), signal.SIGSEGV)
        case 5:
            os._exit(7)
        case 6:
            raise RuntimeError("PassManager::run failed\nwith much more to say")
        case 7:
            raise MemoryError("no memory left")
        case 8:
            raise SystemError("odd")
        case 9:
            raise OutOfResources("shared memory, Required: 300000, Hardware limit: 232448")
        case 10:
            fatal = "ptxas fatal   : (C7602) Insufficient registers (64) to compile instruction at line 303 in function tma_gemm."
            raise RuntimeError(
                f"PTXAS error: Internal Triton PTX codegen error\n`ptxas` stderr:\n{fatal}\nptxas fatal   : Ptx assembly aborted"
            )
        case 11:
            if first_time(marks / "killed-once"):
                os.kill(os.getpid(), signal.SIGKILL)
        case 12:
            os.write(2, b"x" * 10_000_000)
            print("y" * 10_000_000)
        case 13:
            sys.exit("leaving")
        case 14:
            if first_time(marks / "assembler-killed-once"):
                raise RuntimeError("PTXAS error: `ptxas` failed with error code -9\n`ptxas` stderr:\n")
        case 15:
            if first_time(marks / "missing-once"):
                raise FileNotFoundError(errno.ENOENT, "renamed by another compiler")
        case 16:
            os.write(2, b"python: LinearLayout.cpp:12: Assertion `sane' failed.\n" + b"frame\n" * 100_000)
            os.abort()
        case 17:
            os.closerange(0, 100)
            time.sleep(600)
        case 18:
            raise RuntimeError("e" * 20_000)
        case 19:
            time.sleep(0.5)
        case 20:
            if os.fork() == 0:  # holds the pipes open
                time.sleep(600)
        case 21:
            raise OSError(errno.ENOSPC, "No space left on device")
        case 22:
            raise OSError(errno.EMFILE, "Too many open files")
        case 23:
            raise RuntimeError("std::bad_alloc")
        case 24:
            os.kill(os.getpid(), signal.SIGBUS)
        case 25:
            import no_such_compiler  # noqa: F401
        case 26:
            os.write(2, b"loc(unknown): error: operation does not fit\n")
            raise RuntimeError("PassManager::run failed")
        case 27:
            os.write(2, b"LLVM ERROR: IO failure on output stream: No space left on device\n")
            os.abort()
        case 28:
            raise RuntimeError("PTXAS error: `ptxas` failed with error code -11\n`ptxas` stderr:\n")
        case 29:
            raise CompileTimeAssertionFailure("at 3:4:\n    tl.static_assert(BLOCK_M >= 16)\nBLOCK_M must be at least 16")
        case 30:
            if first_time(marks / "aborted-once"):
                os.write(2, b"Assertion `lucky' failed.\n")
                os.abort()
    return good()


def first_time(mark: Path) -> bool:
    if mark.exists():
        return False
    mark.touch()
    return True
