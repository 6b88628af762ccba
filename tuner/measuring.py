"""Measuring on the GPU that is present: a handle to the process that does it, and what is made of its death. Needs neither torch nor
CUDA itself."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import selectors
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from types import TracebackType
from typing import IO, Any, Self

import numpy as np

from db.records import Measurement, Status
from search_spaces.errors import UserError
from search_spaces.hardware import Hardware
from search_spaces.problem import Problem
from search_spaces.schedule import Schedule
from tuner.comparing import DRIFT_SHARE, FinalsSamples
from tuner.compiling import close_streams, compiler_environment
from tuner.environment import device_present

READ_BYTES = 1 << 16
DEATH_SECONDS = 30.0  # the driver can hold on to a process with a lost context for a while, killed or not
WAIT = "--wait"  # the only argument of a process that is to read its arguments from its first line of input
ERROR_CHARACTERS = 300


@dataclass(frozen=True, kw_only=True)
class MeasureSettings:
    """protocol names the rules of timing: times under different rules are never compared."""

    protocol: str = "graph-rotating-1"
    start_seconds: float = 180.0
    candidate_seconds: float = 30.0
    finals_seconds: float = 120.0
    anchor_every: int = 16  # candidates between two timings of the library
    command: tuple[str, ...] = (sys.executable, "-m", "tuner.measure_start")


class Lost(Exception):
    """The process did not answer: it died, or outlived its time and was killed."""

    def __init__(self, status: Status, message: str) -> None:
        super().__init__(message)
        self.status: Status = status
        self.message = message


@dataclass
class _Child:
    """One life of the process."""

    process: subprocess.Popen[bytes]
    errors: IO[bytes]
    buffer: bytearray = field(default_factory=bytearray)
    ready: bool = False
    measured: int = 0

    def end(self) -> None:
        """Kill the process, all of its group."""
        with contextlib.suppress(ProcessLookupError):  # it is gone already
            os.killpg(self.process.pid, signal.SIGKILL)
        with contextlib.suppress(subprocess.TimeoutExpired):  # it has its signal
            self.process.wait(DEATH_SECONDS)
        close_streams(self.process.stdin, self.process.stdout, self.errors)


def _spawn(settings: MeasureSettings, cache_dir: Path, arguments: Sequence[str]) -> _Child:
    errors = tempfile.TemporaryFile()  # noqa: SIM115 - closed when this life of the process ends
    process = subprocess.Popen(
        [*settings.command, *arguments],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=errors,
        env=compiler_environment(cache_dir) | {"CUDA_DEVICE_ORDER": "PCI_BUS_ID"},  # as NVML counts
        start_new_session=True,
    )
    return _Child(process, errors)


class Standby:
    """A process for a problem that is not known yet: it imports what measuring needs, does not touch the GPU, and waits."""

    def __init__(self, settings: MeasureSettings, cache_dir: Path) -> None:
        self._child: _Child | None = _spawn(settings, cache_dir, [WAIT])

    def hand_over(self, arguments: Sequence[str]) -> _Child:
        """Tell it the arguments that it was started without; whoever takes it ends it."""
        child, self._child = self._child, None
        assert child is not None, "handed over twice"
        assert child.process.stdin is not None
        with contextlib.suppress(BrokenPipeError):  # it is dead, as whoever takes it will find
            child.process.stdin.write(json.dumps(arguments).encode() + b"\n")
            child.process.stdin.flush()
        return child

    def close(self) -> None:
        if self._child is not None:
            self._child.end()


class MeasuringProcess:
    """Measures schedules of one problem. The process starts at once, or is the one that stood by, and gets ready while others compile; it
    is started anew after each death."""

    def __init__(
        self,
        problem: Problem,
        hardware: Hardware,
        settings: MeasureSettings,
        *,
        cache_dir: Path,
        wait: Callable[[str], None] | None = None,
        standby: Standby | None = None,
    ) -> None:
        self._settings, self._cache_dir = settings, cache_dir
        self._arguments = ["--problem", json.dumps(asdict(problem)), "--sms", str(int(hardware.need("sms")))]
        device = device_present()
        self._lock = _device_lock(device.uuid if device else "none", wait or (lambda sentence: None))
        self._anchors: list[float] = []
        self._since_anchor = 0
        self._child: _Child | None = standby.hand_over(self._arguments) if standby else self._start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    def _start(self) -> _Child:
        return _spawn(self._settings, self._cache_dir, self._arguments)

    @property
    def pid(self) -> int | None:
        return self._child.process.pid if self._child else None

    def wait_until_ready(self) -> None:
        """Its start takes seconds, most of them the import of torch; whoever counts time may want to begin after it."""
        self._ready()

    def measure(self, schedule: Schedule, best_us: float | None) -> Measurement:
        """Check and time one schedule. Whatever it does to the process is its result; the next one finds a fresh process.

        One that fails in a process that others used before it is tried again in a fresh one before it gets the blame.
        """
        request = {"op": "measure", "schedule": asdict(schedule), "best_us": best_us}
        for attempt in (1, 2):
            try:
                child = self._ready()
                answer = self._ask(child, request, self._settings.candidate_seconds, "status")
            except Lost as lost:
                first_in_its_process = self._end() == 0
                if attempt == 1 and lost.status != "timeout" and not (first_in_its_process and lost.status == "crashed"):
                    continue
                return Measurement(status=lost.status, message=lost.message)
            child.measured += 1
            if answer.pop("fatal", False):
                self._end()
                if attempt == 1 and child.measured > 1:
                    continue
            self._keep_anchor()
            return _measured(answer)
        raise AssertionError("the second attempt returns")

    def finals(self, schedules: Sequence[Schedule], seconds: float) -> FinalsSamples:
        """Time the leaders and the library in turn. Raises Lost where the process dies of it."""
        request = {"op": "finals", "schedules": [asdict(schedule) for schedule in schedules], "seconds": seconds}
        try:
            answer = self._ask(self._ready(), request, self._settings.finals_seconds, "rounds")
        except Lost:
            self._end()
            raise
        rounds = np.array(answer["rounds"], dtype=np.float64)
        times = {name: tuple(answer[name]) for name in ("hot_l2_us", "eager_us")}
        return FinalsSamples(rounds[:, 1:], rounds[:, 0], **times, wrong=tuple(answer.get("wrong", ())))

    def first_rounds(self, schedules: Sequence[Schedule], count: int) -> FinalsSamples:
        """So many rounds of contestants of which few go on to the finals; no more is known of them. Raises Lost as `finals`."""
        request = {"op": "rounds", "schedules": [asdict(schedule) for schedule in schedules], "rounds": count}
        try:
            answer = self._ask(self._ready(), request, self._settings.finals_seconds, "rounds")
        except Lost:
            self._end()
            raise
        rounds = np.array(answer["rounds"], dtype=np.float64)
        return FinalsSamples(rounds[:, 1:], rounds[:, 0])

    @property
    def library_seconds(self) -> float | None:
        """The library's time when it was last taken."""
        return self._anchors[-1] * 1e-6 if self._anchors else None

    @property
    def notes(self) -> tuple[str, ...]:
        """Sentences about how the run went."""
        if len(self._anchors) < 2:
            return ()
        drift = max(self._anchors) / min(self._anchors) - 1
        if drift <= DRIFT_SHARE:
            return ()
        return (f"cuBLAS moved by {drift:.1%} between {min(self._anchors):.2f} and {max(self._anchors):.2f} us during the run",)

    def _keep_anchor(self) -> None:
        self._since_anchor += 1
        if self._since_anchor < self._settings.anchor_every or self._child is None:
            return
        self._since_anchor = 0
        try:
            answer = self._ask(self._child, {"op": "library"}, self._settings.candidate_seconds, "library_us")
            self._anchors.append(answer["library_us"])
        except Lost:
            self._end()

    def _ready(self) -> _Child:
        """A process that has said hello. One that died before it was asked anything is started once more; then the machine is to blame."""
        for attempt in (1, 2):
            if self._child is None:
                self._child = self._start()
            child = self._child
            if child.ready:
                return child
            try:
                self._anchors.append(self._read(child, self._settings.start_seconds, "library_us")["library_us"])
                child.ready = True
                return child
            except Lost as lost:
                self._end()
                if attempt == 2:  # no schedule is to blame, so none is recorded as failed
                    raise UserError(f"cannot measure: {lost.message}; see `tuner doctor`, or leave it out with --no-measure") from None
        raise AssertionError("the second attempt returns or raises")

    def _ask(self, child: _Child, request: dict[str, Any], limit_seconds: float, key: str) -> dict[str, Any]:
        assert child.process.stdin is not None
        try:
            child.process.stdin.write(json.dumps(request).encode() + b"\n")
            child.process.stdin.flush()
        except BrokenPipeError:
            raise self._obituary(child) from None
        return self._read(child, limit_seconds, key)

    def _read(self, child: _Child, limit_seconds: float, key: str) -> dict[str, Any]:
        """The next line of the process: a JSON object that has the key. Raises Lost."""
        assert child.process.stdout is not None
        deadline = time.monotonic() + limit_seconds
        with selectors.DefaultSelector() as selector:
            selector.register(child.process.stdout, selectors.EVENT_READ)
            while b"\n" not in child.buffer:
                if not selector.select(max(deadline - time.monotonic(), 0)):
                    raise Lost("timeout", f"no answer in {limit_seconds:g} s; the measuring process was killed")
                data = os.read(child.process.stdout.fileno(), READ_BYTES)
                if not data:
                    raise self._obituary(child)
                child.buffer += data
        line, _, rest = bytes(child.buffer).partition(b"\n")
        child.buffer = bytearray(rest)
        try:
            answer = json.loads(line)
        except ValueError:
            answer = None
        if isinstance(answer, dict) and key not in answer and {"status", "message"} <= answer.keys():
            raise Lost(answer["status"], answer["message"])
        if not isinstance(answer, dict) or key not in answer:
            raise Lost("crashed", f"the measuring process answered {line[:ERROR_CHARACTERS]!r}")
        return answer

    def _obituary(self, child: _Child) -> Lost:
        """How the process died. Killed from outside says nothing about the schedule."""
        try:
            code = child.process.wait(DEATH_SECONDS)
        except subprocess.TimeoutExpired:
            return Lost("crashed", "the measuring process closed its output and went on running")
        child.errors.seek(0)
        lines = [line for line in child.errors.read().decode(errors="replace").splitlines() if line.strip()]
        last = f": {lines[-1][:ERROR_CHARACTERS]}" if lines else ""
        if code == -signal.SIGKILL:
            return Lost("killed", "the measuring process was killed from outside")
        how = f"died of {signal.Signals(-code).name}" if code < 0 else f"left with exit code {code}"
        return Lost("crashed", f"the measuring process {how}{last}")

    def _end(self) -> int:
        """End the process; how many schedules it had measured."""
        child, self._child = self._child, None
        if child is None:
            return 0
        child.end()
        return child.measured

    def close(self) -> None:
        self._end()
        self._lock.close()


def _measured(answer: dict[str, Any]) -> Measurement:
    return Measurement(**{**answer, "samples_us": tuple(answer.get("samples_us", ()))})


def _device_lock(device: str, wait: Callable[[str], None]) -> IO[bytes]:
    """Held while this process measures, so that two tuners on one GPU take turns. Freed by the system whatever becomes of the holder."""
    name = "".join(character if character.isalnum() else "-" for character in device)
    path = Path(tempfile.gettempdir()) / f"tuner-gpu-{name}.lock"
    if not path.exists():
        path.touch()
    file = path.open("rb")  # to read is enough, and all that another user's file allows
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        wait("another tuner measures on this GPU; waiting for it")
        fcntl.flock(file, fcntl.LOCK_EX)
    return file
