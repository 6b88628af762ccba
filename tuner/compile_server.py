"""The process that compiles: it imports torch and Triton once and forks a child for each job, so that whatever a compiler does costs one
candidate.

Jobs come as JSON lines on stdin, answers go as JSON lines to stdout, in the order in which they finish. A child has a session of its
own, so that killing its group takes the assembler along. The server ends, with its children, when its stdin closes.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib
import json
import os
import selectors
import signal
import sys
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from tuner.kernels import family_names

READ_BYTES = 1 << 16
POLL_SECONDS = 0.05
LOG_CHARACTERS = 20_000


@dataclass
class _Running:
    """A child at work."""

    job: dict[str, Any]
    pid: int
    pipe: int
    started: float
    alone: bool
    output: bytearray = field(default_factory=bytearray)
    timed_out: bool = False


def compile_schedule(job: dict[str, Any]) -> dict[str, Any]:
    """Compile all kernels of one schedule for the job's chip and say what they became."""
    from dataclasses import asdict

    from search_spaces.problem import Problem
    from search_spaces.schedule import Schedule
    from tuner.binaries import read_binary
    from tuner.kernels import family_module
    from tuner.kernels.specialise import compile_call, cuda_target
    from tuner.operands import meta_operands

    problem, schedule = Problem(**job["problem"]), Schedule(**job["schedule"])
    calls = family_module(schedule.family).calls(*meta_operands(problem), schedule, job["sms"])
    target = cuda_target(job["capability"])
    binaries = [read_binary(compile_call(call, target, alignment_bytes=problem.alignment_bytes)) for call in calls]
    need, limit = max(binary.shared_memory_bytes for binary in binaries), job["shared_memory_limit_bytes"]
    if need > limit:
        return {"status": "out_of_resources", "message": f"compiled to {need} B of shared memory, a CTA has {limit} B", "kernels": []}
    return {"status": "ok", "message": "", "kernels": [asdict(binary) for binary in binaries]}


def prepare() -> None:
    """Do once, before the forks, what every compile would do again: imports, and hashing Triton's own files for its cache's keys."""
    from triton.runtime.cache import triton_key

    for module in ("tuner.binaries", "tuner.operands", "tuner.kernels.specialise", *(f"tuner.kernels.{name}" for name in family_names())):
        importlib.import_module(module)
    triton_key()


def failure(error: BaseException) -> dict[str, Any]:
    """The status of an exception that a compiler raised; its whole text is kept."""
    text = f"{type(error).__name__}: {error}"
    status = "out_of_resources" if type(error).__name__ == "OutOfResources" else "compile_failed"
    if "C7600" in text or "too many registers" in text.lower():
        text = f"ptxas-registers: {text}"
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return {"status": status, "message": lines[0][:300] if lines else type(error).__name__, "log": text[:LOG_CHARACTERS], "kernels": []}


def _child(compile_job: Callable[[dict[str, Any]], dict[str, Any]], job: dict[str, Any], pipe: int) -> None:
    """Never returns. What the compiler prints goes nowhere: the answer is its own pipe."""
    os.setsid()
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    nowhere = os.open(os.devnull, os.O_RDWR)
    for stream in (0, 1, 2):
        os.dup2(nowhere, stream)
    try:
        answer = compile_job(job)
    except BaseException as error:  # the boundary where a compiler's failure becomes a value
        answer = failure(error)
    with os.fdopen(pipe, "wb") as out:
        out.write(json.dumps(answer).encode())
    os._exit(0)


class Server:
    """Runs jobs, at most `workers` at once. One that outlived its limit or was killed from outside is tried once more, with nothing
    beside it."""

    def __init__(self, compile_job: Callable[[dict[str, Any]], dict[str, Any]], workers: int, limit_seconds: float) -> None:
        self._compile_job = compile_job
        self._workers = workers
        self._limit_seconds = limit_seconds
        self._queue: deque[dict[str, Any]] = deque()
        self._lonely: deque[tuple[dict[str, Any], dict[str, Any]]] = deque()
        self._running: dict[int, _Running] = {}
        self._selector = selectors.DefaultSelector()
        self._input = bytearray()

    def serve(self) -> None:
        os.set_blocking(0, False)
        self._selector.register(0, selectors.EVENT_READ)
        try:
            while self._turn():
                pass
        finally:
            for running in self._running.values():
                _kill_group(running.pid)

    def _turn(self) -> bool:
        """One round: start what may start, read what came, end what is over time. False when stdin has closed."""
        self._start()
        for key, _ in self._selector.select(POLL_SECONDS):
            if key.fd == 0:
                if not self._read_jobs():
                    return False
            else:
                self._read_answer(key.fd)
        for running in self._running.values():
            if not running.timed_out and time.monotonic() - running.started > self._limit_seconds:
                running.timed_out = True
                _kill_group(running.pid)
        return True

    def _read_jobs(self) -> bool:
        data = os.read(0, READ_BYTES)
        self._input += data
        *lines, rest = self._input.split(b"\n")
        self._input = bytearray(rest)
        for line in lines:
            message = json.loads(line)
            if message == "cancel":
                self._queue.clear()
                self._lonely.clear()
            else:
                self._queue.append(message)
        return bool(data)

    def _start(self) -> None:
        if any(running.alone for running in self._running.values()):
            return
        while self._queue and len(self._running) < self._workers:
            self._fork(self._queue.popleft(), alone=False)
        if self._lonely and not self._queue and not self._running:
            job, _ = self._lonely.popleft()
            self._fork(job, alone=True)

    def _fork(self, job: dict[str, Any], *, alone: bool) -> None:
        read, write = os.pipe()
        pid = os.fork()
        if pid == 0:
            os.close(read)
            _child(self._compile_job, job, write)
        os.close(write)
        self._running[read] = _Running(job, pid, read, time.monotonic(), alone)
        self._selector.register(read, selectors.EVENT_READ)

    def _read_answer(self, pipe: int) -> None:
        running = self._running[pipe]
        data = os.read(pipe, READ_BYTES)
        if data:
            running.output += data
            return
        self._selector.unregister(pipe)
        os.close(pipe)
        del self._running[pipe]
        _, status = os.waitpid(running.pid, 0)
        _kill_group(running.pid)  # what the compiler itself left behind
        answer = self._verdict(running, status)
        if answer["status"] in ("compile_timeout", "killed") and not running.alone:
            self._lonely.append((running.job, answer))
        else:
            self._answer(running, answer)

    def _verdict(self, running: _Running, status: int) -> dict[str, Any]:
        if running.timed_out:
            return {"status": "compile_timeout", "message": f"not compiled in {self._limit_seconds:g} s", "kernels": []}
        if os.WIFSIGNALED(status):
            name = signal.Signals(os.WTERMSIG(status)).name
            if os.WTERMSIG(status) == signal.SIGKILL:
                return {"status": "killed", "message": "the compiler was killed (out of memory?)", "kernels": []}
            return {"status": "crashed", "message": f"the compiler died of {name}", "kernels": []}
        try:
            answer: dict[str, Any] = json.loads(bytes(running.output))
        except ValueError:
            return {
                "status": "crashed",
                "message": f"the compiler left with exit code {os.waitstatus_to_exitcode(status)} and no answer",
                "kernels": [],
            }
        return answer

    def _answer(self, running: _Running, answer: dict[str, Any]) -> None:
        line = json.dumps({"id": running.job["id"], "seconds": round(time.monotonic() - running.started, 3), "log": "", **answer}) + "\n"
        sys.stdout.write(line)
        sys.stdout.flush()


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
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the whole group; the parent decides
    Server(compile_job, given.workers, given.limit_seconds).serve()


if __name__ == "__main__":
    main()
