"""One life of the process that measures: how it is started, asked and ended, and what is made of its death."""

from __future__ import annotations

import contextlib
import json
import os
import selectors
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any, TypeVar

from search_spaces.errors import MachineFault
from search_spaces.plain_text import visible
from tuner.compiling import close_streams, compiler_environment
from tuner.device_words import signal_name, status_of, status_of_signal
from tuner.measure_protocol import Hello, Lost, Malformed

READ_BYTES = 1 << 16
DEATH_SECONDS = 30.0  # the driver can hold on to a process with a lost context for a while, killed or not
WAIT = "--wait"  # the only argument of a process that is to read its arguments from its first line of input
ERROR_BYTES, ERROR_CHARACTERS = 4096, 300  # of what it left on stderr: the end, and what is shown of its last line

T = TypeVar("T")
Reader = Callable[[dict[str, Any]], T]  # what it said -> the answer; raises Lost


@dataclass(frozen=True, kw_only=True)
class MeasureSettings:
    """How the process is started, and how long its answers may take."""

    start_seconds: float = 180.0
    candidate_seconds: float = 30.0
    finals_seconds: float = 120.0
    anchor_every: int = 16  # candidates between two timings of the library
    command: tuple[str, ...] = (sys.executable, "-m", "tuner.measure_start")


@dataclass
class Child:
    """hello: what it said once it was ready. measured: schedules so far."""

    process: subprocess.Popen[bytes]
    errors: IO[bytes]
    buffer: bytearray = field(default_factory=bytearray)
    hello: Hello | None = None
    measured: int = 0

    def ask(self, request: dict[str, Any], limit_seconds: float, read: Reader[T]) -> T:
        """Its answer, as `read` takes it. Raises Lost."""
        assert self.process.stdin is not None
        if self.buffer or self._can_be_read():
            raise self._unasked()
        try:
            self.process.stdin.write(json.dumps(request).encode() + b"\n")
            self.process.stdin.flush()
        except BrokenPipeError:
            raise self._obituary() from None
        return self.read(limit_seconds, read)

    def _unasked(self) -> Lost:
        """It has said something, or died, since its last answer: the next line would be taken for the answer to another question."""
        assert self.process.stdout is not None
        data = bytes(self.buffer) or os.read(self.process.stdout.fileno(), READ_BYTES)
        return Lost("crashed", f"the measuring process said {data[:ERROR_CHARACTERS]!r} unasked") if data else self._obituary()

    def read(self, limit_seconds: float, read: Reader[T]) -> T:
        """The next line of the process: a JSON object that `read` takes. Raises Lost."""
        assert self.process.stdout is not None
        deadline = time.monotonic() + limit_seconds
        with selectors.PollSelector() as selector:
            selector.register(self.process.stdout, selectors.EVENT_READ)
            while b"\n" not in self.buffer:
                if not selector.select(max(deadline - time.monotonic(), 0)):
                    raise Lost("timeout", f"no answer in {limit_seconds:g} s; the measuring process was killed")
                data = os.read(self.process.stdout.fileno(), READ_BYTES)
                if not data:
                    raise self._obituary()
                self.buffer += data
        line, _, rest = bytes(self.buffer).partition(b"\n")
        self.buffer = bytearray(rest)
        try:
            said = json.loads(line)
        except (ValueError, RecursionError):
            said = None
        if not isinstance(said, dict):
            raise Malformed(repr(line[:ERROR_CHARACTERS]))
        return read(said)

    def _can_be_read(self) -> bool:
        with selectors.PollSelector() as selector:
            assert self.process.stdout is not None
            selector.register(self.process.stdout, selectors.EVENT_READ)
            return bool(selector.select(0))

    def _obituary(self) -> Lost:
        """How the process died. Killed from outside says nothing about the schedule."""
        try:
            code = self.process.wait(DEATH_SECONDS)
        except subprocess.TimeoutExpired:
            return Lost("crashed", "the measuring process closed its output and went on running")
        self.errors.seek(max(self.errors.seek(0, os.SEEK_END) - ERROR_BYTES, 0))
        words = visible(self.errors.read().decode(errors="replace"))
        lines = [line for line in words.splitlines() if line.strip()]
        last = f": {lines[-1][:ERROR_CHARACTERS]}" if lines else ""
        status = status_of(words) if code >= 0 or code == -signal.SIGABRT else status_of_signal(-code)
        if status == "killed":
            return Lost("killed", "the measuring process was killed from outside")
        how = f"died of {signal_name(-code)}" if code < 0 else f"left with exit code {code}"
        return Lost(status, f"the measuring process {how}{last}")

    def end(self) -> None:
        """Kill the process, all of its group."""
        with contextlib.suppress(ProcessLookupError):  # it is gone already
            os.killpg(self.process.pid, signal.SIGKILL)
        with contextlib.suppress(subprocess.TimeoutExpired):  # it has its signal
            self.process.wait(DEATH_SECONDS)
        close_streams(self.process.stdin, self.process.stdout, self.errors)


def spawn(settings: MeasureSettings, cache_dir: Path, arguments: Sequence[str]) -> Child:
    """Raises MachineFault where the system has no room for one more process."""
    try:
        errors = os.fdopen(os.memfd_create("errors"), "w+b")  # in memory: a full disk is no reason not to measure
        try:
            process = subprocess.Popen(
                [*settings.command, *arguments],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                env=compiler_environment(cache_dir) | {"CUDA_DEVICE_ORDER": "PCI_BUS_ID"},  # as NVML counts
                start_new_session=True,
            )
        except BaseException:
            errors.close()
            raise
    except OSError as error:
        raise MachineFault(f"the measuring process cannot be started: {error.strerror or error}") from None
    return Child(process, errors)


class Standby:
    """A process for a problem that is not known yet: it imports what measuring needs, does not touch the GPU, and waits."""

    def __init__(self, settings: MeasureSettings, cache_dir: Path) -> None:
        self._child: Child | None = None
        with contextlib.suppress(MachineFault):  # it only saves time; whoever measures will find whether there is room by then
            self._child = spawn(settings, cache_dir, [WAIT])

    def hand_over(self, arguments: Sequence[str]) -> Child | None:
        """Tell it the arguments that it was started without; whoever takes it ends it. None where there is none to be had."""
        child, self._child = self._child, None
        if child is None:
            return None
        assert child.process.stdin is not None
        with contextlib.suppress(BrokenPipeError):  # it is dead, as whoever takes it will find
            child.process.stdin.write(json.dumps(arguments).encode() + b"\n")
            child.process.stdin.flush()
        return child

    def close(self) -> None:
        if self._child is not None:
            self._child.end()
