"""Whose doing is it that a launch, or the start of the measuring process, failed? By the kind of the error that was raised and by what it
says; needs neither torch nor Triton."""

from __future__ import annotations

import re
import subprocess

from db.records import Status
from search_spaces.errors import MachineFault
from tuner import device_words

MESSAGE_CHARACTERS = 300
# more registers or shared memory than a CTA has, found at the launch
TOO_LARGE = re.compile(r"too many resources requested for launch|out of resource", re.IGNORECASE)
LACK_OF_MEMORY = re.compile(r"out of memory|OUT_OF_MEMORY|OutOfMemory|memory allocation|ALLOC_FAILED", re.IGNORECASE)
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
    return bool(LACK_OF_MEMORY.search(f"{type(error).__name__} {error}"))


def status_of(error: BaseException, lost: str = "") -> Status:
    """What became of a schedule whose check or timing raised this. lost: what the context says ever after; empty where it works still."""
    if isinstance(error, _MACHINE_ERRORS):
        return "machine_fault"
    words = f"{type(error).__name__}: {error} {lost}"
    if TOO_LARGE.search(words):
        return "out_of_resources"
    spoken = device_words.status_of(words)
    return "launch_failed" if spoken == "crashed" and not lost else spoken
