"""The process that compiles: it imports Triton once, never torch, and forks a child for each job, so that whatever a compiler does costs
one candidate.

Jobs come as JSON lines on stdin, answers go as JSON lines to stdout, in the order in which they finish. A child has a process group of
its own, so that killing it takes the assembler along, within the session of the server, where the parent finds what a dead server left.
The server ends, with its children, when its stdin closes. It has one thread and never waits for anything but for all of them at once.
"""

from __future__ import annotations

import argparse
import contextlib
import errno
import importlib
import json
import os
import selectors
import signal
import time
import traceback
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from tuner.causes import ASSEMBLER_SIGNAL, MACHINE, REGISTERS, TELLING, cause_of, causes, death, kinds
from tuner.kernels import family_names

NICENESS = 5  # compilers fill all CPUs, and the one process that measures is waited for
READ_BYTES = 1 << 16
POLL_SECONDS = 0.05
LOG_BYTES = 20_000
MESSAGE_CHARACTERS = 300
BUSY = (errno.ENOENT, errno.EBUSY, errno.ESTALE, errno.ETXTBSY)  # what another compiler's work in the same cache can look like


@dataclass(eq=False)
class _Running:
    """A child at work, with the server's ends of the pipes for its answer and for what it writes to stderr."""

    job: dict[str, Any]
    pid: int
    pipe: int
    log_pipe: int
    started: float
    alone: bool
    output: bytearray = field(default_factory=bytearray)
    log: bytearray = field(default_factory=bytearray)
    timed_out: bool = False
    cancelled: bool = False

    def keep_log(self, data: bytes) -> None:
        """The beginning and the end; the middle of a long one, such as a dump of a module, is dropped."""
        self.log += data
        if len(self.log) > 2 * LOG_BYTES:
            self.log[LOG_BYTES // 2 : -LOG_BYTES // 2] = b"\n[...]\n"


def compile_schedule(job: dict[str, Any]) -> dict[str, Any]:
    """Compile all kernels of one schedule for the job's chip and say what they became."""
    from dataclasses import asdict

    from search_spaces.problem import Problem
    from search_spaces.schedule import Schedule
    from tuner.binaries import read_binary
    from tuner.kernels import family_module
    from tuner.kernels.specialise import compile_call, cuda_target
    from tuner.operands import outlines, scratch_outline

    problem, schedule = Problem(**job["problem"]), Schedule(**job["schedule"])
    family, operands = family_module(schedule.family), outlines(problem)
    scratch = {name: scratch_outline(part) for name, part in family.scratch(*operands, schedule, job["sms"]).items()}
    calls = family.calls(*operands, schedule, job["sms"], scratch)
    target = cuda_target(job["capability"])
    compiled = [compile_call(call, target, alignment_bytes=problem.alignment_bytes) for call in calls]
    binaries, files = [read_binary(one) for one in compiled], cache_folders(compiled)
    need, limit = max(binary.shared_memory_bytes for binary in binaries), job["shared_memory_limit_bytes"]
    if need > limit:
        words = f"compiled to {need} B of shared memory, a CTA has {limit} B"
        return {"status": "out_of_resources", "message": words, "kernels": [], "cache_folders": files}
    return {"status": "ok", "message": "", "kernels": [asdict(binary) for binary in binaries], "cache_folders": files}


def cache_folders(compiled: Sequence[Any]) -> list[str]:
    """The names of the folders in Triton's cache that hold what these kernels, each a CompiledKernel, were compiled to."""
    paths = [path for one in compiled for path in one.metadata_group.values()]
    return sorted({os.path.basename(os.path.dirname(path)) for path in paths})


def prepare() -> None:
    """Do once, before the forks, what every compile would do again: imports, and hashing Triton's own files for its cache's keys."""
    from triton.runtime.cache import triton_key

    for module in ("tuner.binaries", "tuner.operands", "tuner.kernels.specialise", *(f"tuner.kernels.{name}" for name in family_names())):
        importlib.import_module(module)
    triton_key()


def failure(error: BaseException) -> dict[str, Any]:
    """The status of an exception that a compiler raised, the line of it that says why, and its whole text."""
    log = "".join(traceback.format_exception(error))[-LOG_BYTES:].strip()
    *_, cause = causes(error)
    status = cause_of(error)
    lines = [line.strip() for line in str(cause).splitlines() if line.strip()] or [""]
    reason = lines[-1] if "CompilationError" in kinds(cause) else next(filter(TELLING.search, lines), lines[0])
    message = f"{type(cause).__name__}: {reason}"
    if killed := ASSEMBLER_SIGNAL.search(str(cause)):
        message = obituary(int(killed[1]) if killed[1] else signal.Signals[killed[2]], "the assembler")
    elif REGISTERS.search(str(cause)):
        message = f"ptxas-registers: {reason}"
    return {"status": status, "message": message, "log": log, "kernels": []}


def obituary(number: int, who: str) -> str:
    """How a process ended, in words."""
    return f"{who} was killed (out of memory?)" if number == signal.SIGKILL else f"{who} died of {signal.Signals(number).name}"


def _attempt(compile_job: Callable[[dict[str, Any]], dict[str, Any]], job: dict[str, Any]) -> dict[str, Any]:
    """A file of the cache that is missing or busy is worth a second try."""
    try:
        return compile_job(job)
    except OSError as error:
        if error.errno not in BUSY:
            raise
    return compile_job(job)


def _child(compile_job: Callable[[dict[str, Any]], dict[str, Any]], job: dict[str, Any], pipe: int, log_pipe: int) -> None:
    """Never returns. On a failure Triton prints the whole PTX to stdout: that goes nowhere."""
    signal.set_wakeup_fd(-1)
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGCHLD):
        signal.signal(number, signal.SIG_DFL)
    os.setpgid(0, 0)
    nowhere = os.open(os.devnull, os.O_RDWR)
    for stream, target in ((0, nowhere), (1, nowhere), (2, log_pipe)):
        os.dup2(target, stream)
    try:
        answer = _attempt(compile_job, job)
    except BaseException as error:  # the boundary where a compiler's failure becomes a value
        answer = failure(error)
    with os.fdopen(pipe, "wb") as out:
        out.write(json.dumps(answer).encode())
    os._exit(0)


class Server:
    """Runs jobs, at most `workers` at once. One that outlived its limit, was killed from outside or died is tried once more, with nothing
    beside it; its answer then says `alone`."""

    def __init__(self, compile_job: Callable[[dict[str, Any]], dict[str, Any]], workers: int, limit_seconds: float) -> None:
        self._compile_job = compile_job
        self._workers = workers
        self._limit_seconds = limit_seconds
        self._queue: deque[dict[str, Any]] = deque()
        self._lonely: deque[dict[str, Any]] = deque()
        self._running: list[_Running] = []
        self._selector = selectors.DefaultSelector()
        self._input = bytearray()
        self._answers = bytearray()
        self._open = True

    def serve(self) -> None:
        """Until stdin closes or SIGTERM comes."""
        woken, wake = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        signal.signal(signal.SIGCHLD, lambda number, frame: None)  # its only use is to wake the selector
        signal.signal(signal.SIGTERM, lambda number, frame: self._stop())
        signal.set_wakeup_fd(wake, warn_on_full_buffer=False)
        os.set_blocking(0, False)
        os.set_blocking(1, False)  # a parent that is busy measuring reads late; limits are kept all the same
        self._selector.register(0, selectors.EVENT_READ, self._read_jobs)
        self._selector.register(woken, selectors.EVENT_READ, lambda: _drain(woken, lambda data: None))
        try:
            while self._open:
                self._turn()
        finally:
            for running in self._running:
                _kill_group(running.pid)
            for running in self._running:
                os.waitpid(running.pid, 0)

    def _stop(self) -> None:
        self._open = False

    def _turn(self) -> None:
        """One round: start what may start, read and write what can be, collect what ended, end what is over time."""
        self._start()
        for key, _ in self._selector.select(POLL_SECONDS):
            key.data()
        for running in [running for running in self._running if _has_ended(running.pid)]:
            self._collect(running)
        for running in self._running:
            if not running.timed_out and time.monotonic() - running.started > self._limit_seconds:
                running.timed_out = True
                _kill_group(running.pid)

    def _read_jobs(self) -> None:
        data = os.read(0, READ_BYTES)
        if not data:
            self._stop()
        self._input += data
        *lines, rest = self._input.split(b"\n")
        self._input = bytearray(rest)
        for line in lines:
            message = json.loads(line)
            if message == "cancel":
                self._cancel()
            else:
                self._queue.append(message)

    def _cancel(self) -> None:
        """What runs ends as well: it would hold a worker and disturb what is measured next."""
        self._queue.clear()
        self._lonely.clear()
        for running in self._running:
            running.cancelled = True
            _kill_group(running.pid)

    def _start(self) -> None:
        if any(running.alone for running in self._running):
            return
        while self._queue and len(self._running) < self._workers:
            self._fork(self._queue.popleft(), alone=False)
        if self._lonely and not self._queue and not self._running:
            self._fork(self._lonely.popleft(), alone=True)

    def _fork(self, job: dict[str, Any], *, alone: bool) -> None:
        """Start a child. Where the machine has no room for one more it waits for those that run; without any, that is the answer."""
        ends: list[int] = []
        try:
            ends += os.pipe()
            ends += os.pipe()
            pid = os.fork()
        except OSError as error:
            for end in ends:
                os.close(end)
            self._no_room(job, error, alone=alone)
            return
        pipe, answer_end, log_pipe, log_end = ends
        if pid == 0:
            _child(self._compile_job, job, answer_end, log_end)
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.setpgid(pid, pid)  # by whoever comes first: from here on its group can be killed
        os.close(answer_end)
        os.close(log_end)
        running = _Running(job, pid, pipe, log_pipe, time.monotonic(), alone)
        self._running.append(running)
        for end, keep in ((pipe, running.output.extend), (log_pipe, running.keep_log)):
            os.set_blocking(end, False)
            self._selector.register(end, selectors.EVENT_READ, lambda end=end, keep=keep: self._read_pipe(end, keep))

    def _no_room(self, job: dict[str, Any], error: OSError, *, alone: bool) -> None:
        if self._running:
            self._workers = len(self._running)
            self._queue.appendleft(job)
            return
        message = f"no compiler could be started: {error.strerror}"
        self._answer(job, 0.0, {"status": "machine_fault", "message": message, "log": "", "kernels": [], "alone": alone})

    def _read_pipe(self, end: int, keep: Callable[[bytes], None]) -> None:
        if not _drain(end, keep):
            self._selector.unregister(end)

    def _collect(self, running: _Running) -> None:
        _kill_group(running.pid)  # what the compiler itself left behind, while its number cannot be anybody else's
        _, status = os.waitpid(running.pid, 0)
        self._running.remove(running)
        for end, keep in ((running.pipe, running.output.extend), (running.log_pipe, running.keep_log)):
            _drain(end, keep)
            if end in self._selector.get_map():
                self._selector.unregister(end)
            os.close(end)
        if running.cancelled:
            return
        answer = self._verdict(running, status)
        if answer["status"] in ("compile_timeout", "killed", "crashed") and not running.alone:
            self._lonely.append(running.job)
        else:
            self._answer(running.job, time.monotonic() - running.started, answer)

    def _verdict(self, running: _Running, status: int) -> dict[str, Any]:
        """What the child said, or else how it ended; then what it wrote to stderr, which may tell whose doing it was."""
        code = os.waitstatus_to_exitcode(status)
        answer: dict[str, Any] = {"status": "crashed", "message": f"the compiler left with exit code {code} and no answer"}
        if code == 0 and running.output:
            answer = json.loads(running.output)
        elif running.timed_out:
            answer = {"status": "compile_timeout", "message": f"not compiled in {self._limit_seconds:g} s"}
        elif code < 0:
            answer = {"status": death(-code), "message": obituary(-code, "the compiler")}
        printed = running.log.decode(errors="replace").strip()
        if answer["status"] in ("crashed", "compile_failed"):
            answer |= _told(answer, printed, alone=running.alone)
        log = "\n".join(filter(None, (printed, answer.get("log"))))
        return {"kernels": [], **answer, "message": answer["message"][:MESSAGE_CHARACTERS], "log": log, "alone": running.alone}

    def _answer(self, job: dict[str, Any], seconds: float, answer: dict[str, Any]) -> None:
        if not self._answers:
            self._selector.register(1, selectors.EVENT_WRITE, self._write_answers)
        self._answers += json.dumps({"id": job["id"], "seconds": round(seconds, 3), **answer}).encode() + b"\n"

    def _write_answers(self) -> None:
        try:
            written = os.write(1, self._answers)
        except BrokenPipeError:  # the parent is gone
            self._stop()
            return
        del self._answers[:written]
        if not self._answers:
            self._selector.unregister(1)


def _told(answer: dict[str, Any], printed: str, *, alone: bool) -> dict[str, str]:
    """What a compiler's last words make of its failure. A diagnostic is a reason to refuse the schedule, but of one that died only where it
    died so twice, the second time alone: a crash may be anything's doing."""
    lines = printed.splitlines()
    needy = next(filter(MACHINE.search, lines), None)
    telling = needy or next(filter(TELLING.search, lines), None)
    if telling is None:
        return {}
    message = f"{answer['message']}: {telling.strip()}"
    if needy:
        return {"status": "machine_fault", "message": message}
    return {"status": answer["status"] if answer["status"] == "crashed" and not alone else "refused", "message": message}


def _drain(end: int, keep: Callable[[bytes], None]) -> bool:
    """Read what is there now, but no more than a good part: others wait. False at its end."""
    with contextlib.suppress(BlockingIOError):
        for _ in range(16):
            data = os.read(end, READ_BYTES)
            if not data:
                return False
            keep(data)
    return True


def _has_ended(pid: int) -> bool:
    """Whether a child is there to be collected; it stays so."""
    return os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None


def _kill_group(pid: int) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):  # nothing is left of it
        os.killpg(pid, signal.SIGKILL)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--workers", type=int, required=True)
    parser.add_argument("--limit-seconds", type=float, required=True)
    parser.add_argument(
        "--compile-function", default="tuner.compile_server:compile_schedule", help="module:function; tests put their own here"
    )
    given = parser.parse_args()
    module, _, name = given.compile_function.partition(":")
    compile_job = getattr(importlib.import_module(module), name)
    if name == compile_schedule.__name__:
        prepare()
    os.nice(NICENESS)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the whole group; the parent decides
    Server(compile_job, given.workers, given.limit_seconds).serve()


if __name__ == "__main__":
    main()
