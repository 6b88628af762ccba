"""Whose doing is a failure? The schedule's, so that it would be the same again; or the moment's, so that it says nothing about it.

One answer for every process that compiles or measures. What is in doubt is the moment's: such a schedule is tried again, while one that is
wrongly blamed would be lost for good.
"""

from __future__ import annotations

import re
import signal
from collections.abc import Iterator
from subprocess import TimeoutExpired

from db.records import Status

# What a machine in need says, in the words of the C library, of Python, of LLVM and of the assembler
MACHINE = re.compile(
    r"no space left|quota exceeded|too many open files|file table overflow|cannot allocate memory|bad_alloc|out of memory|memory exhausted"
    r"|memory allocation|input/output error|read-only file system|permission denied|operation not permitted|temporarily unavailable"
    r"|stale (nfs )?file handle|file size limit|text file busy|no such file or directory|cannot open shared object|bus error"
    r"|start new thread|pthread_create|could not (open|be opened|write|read|create)|could not be (opened|written|read|created)|cannot find",
    re.IGNORECASE,
)
# A compiler's diagnostic; "PTXAS error:" and "Fatal Python error:" only open a text
TELLING = re.compile(r"\bfatal\s*:|(?<!PTXAS )(?<!Python )\berror\s*:|\bAssertion\b|LLVM ERROR|UNREACHABLE")
REGISTERS = re.compile(r"\(C760\d\)|too many registers", re.IGNORECASE)  # C7600, C7602: ptxas cannot fit the code into the registers
SHARED_MEMORY = re.compile(r"uses too much shared data", re.IGNORECASE)
ASSEMBLER_SIGNAL = re.compile(r"`ptxas` (?:failed with error code -(\d+)|raised (SIG[A-Z]+))")
PROGRAMS_OWN = (AttributeError, NameError, LookupError, RecursionError, SystemError)  # of Triton or of this program, not of a schedule
ENDED = (signal.SIGKILL, signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT)  # which only come from outside
LIMITS = (signal.SIGBUS, signal.SIGXFSZ, signal.SIGXCPU)  # a mapped file without room on its disk, and limits of the process


def cause_of(error: BaseException) -> Status:
    """The status of an exception that compiling or launching raised.

    `refused` and `out_of_resources` are the schedule's own doing; `machine_fault`, `killed`, `compile_timeout`, `crashed` and, where it is
    not known, `compile_failed` the moment's.
    """
    chain = tuple(causes(error))
    if any(isinstance(one, OSError | MemoryError | ImportError) for one in chain):
        return "machine_fault"
    if any(isinstance(one, TimeoutExpired) for one in chain):
        return "compile_timeout"
    last, words = chain[-1], reason_text(chain[-1])
    killed = ASSEMBLER_SIGNAL.search(words)
    if killed:
        return death(int(killed[1]) if killed[1] else signal.Signals[killed[2]])
    if MACHINE.search(words):
        return "machine_fault"
    if "OutOfResources" in kinds(error) or SHARED_MEMORY.search(words):
        return "out_of_resources"
    said = bool(words.strip())
    refuses = TELLING.search(words) or (said and isinstance(last, AssertionError)) or any("CompilationError" in kinds(one) for one in chain)
    return "refused" if refuses and not isinstance(last, PROGRAMS_OWN) else "compile_failed"


def death(number: int) -> Status:
    """The status of a process that a signal ended, where it said nothing that tells more."""
    return "killed" if number in ENDED else "machine_fault" if number in LIMITS else "crashed"


def causes(error: BaseException) -> Iterator[BaseException]:
    """The exception, what it was raised from, and so on: Triton wraps an error of its language once for each inlined function."""
    seen: list[BaseException] = []
    found: BaseException | None = error
    while found is not None and found not in seen:
        seen.append(found)
        yield found
        found = found.__cause__


def kinds(error: BaseException) -> tuple[str, ...]:
    """The names of its class and of those above: Triton's classes are told without importing it."""
    return tuple(kind.__name__ for kind in type(error).__mro__)


def reason_text(error: BaseException) -> str:
    """Its words; of an error of Triton's language the last line alone, as the others are the kernel's source."""
    text = str(error)
    return text.strip().rpartition("\n")[2] if "CompilationError" in kinds(error) else text
