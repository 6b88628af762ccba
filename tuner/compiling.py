"""Compiling schedules for a named chip, which need not be present: a pool in front of the compile server. Needs neither torch nor Triton
itself."""

from __future__ import annotations

import contextlib
import json
import os
import selectors
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from types import TracebackType
from typing import IO, Any, Literal, Self

import psutil

from search_spaces.errors import MachineFault
from search_spaces.problem import Problem
from search_spaces.schedule import Schedule

CompileStatus = Literal[
    "ok", "refused", "out_of_resources", "compile_failed", "compile_timeout", "crashed", "killed", "machine_fault"
]  # what each means stands with `db.records.Status`
PACKAGES = Path(__file__).parent.parent
READ_BYTES = 1 << 16
WAIT_SECONDS = 1.0
MOST_FRUITLESS_STARTS = 2
ERROR_BYTES = 4096
CANDIDATE_BYTES = 2 * 2**20  # of disk that compiling one takes, and a little more
CHILDRENS = "tmp"  # folder for the temporary files of those that compile, within the cache: whatever ends them, it goes with the cache
ONE_THREAD = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}  # the server forks


@dataclass(frozen=True, kw_only=True)
class CompileJob:
    """capability: 90 for compute capability 9.0."""

    problem: Problem
    schedule: Schedule
    capability: int
    sms: int
    shared_memory_limit_bytes: int


@dataclass(frozen=True, kw_only=True)
class KernelBinary:
    """spill_slots: 32-bit words of local memory a thread has, as Triton counts them; a local array counts as well as a spilled register."""

    name: str
    registers: int
    spill_slots: int
    shared_memory_bytes: int
    mma_instruction: str
    binary_hash: str


@dataclass(frozen=True, kw_only=True)
class Compiled:
    """What became of one job. `kernels` is empty unless status is ok: copies of operands, the product, the sum of split-K's parts.

    cache_folders: names of the folders in the compiler's cache that hold them. alone: it was tried a second time, with nothing beside it.
    """

    status: CompileStatus
    message: str
    log: str
    seconds: float
    kernels: tuple[KernelBinary, ...]
    cache_folders: tuple[str, ...] = ()
    alone: bool = False

    @property
    def main(self) -> KernelBinary:
        """The product: copies before it and a sum after it keep nothing in shared memory."""
        return max(self.kernels, key=lambda kernel: kernel.shared_memory_bytes)

    @property
    def binary_hash(self) -> str:
        """Of all kernels together. The grid is no part of a binary."""
        return "-".join(kernel.binary_hash[:16] for kernel in self.kernels)


def compiler_environment(cache_dir: Path) -> dict[str, str]:
    """For every process that compiles: what one of them compiled the others find in the cache, and what it leaves behind lies there, too.

    Their modules are those of this package, whatever the folder that a person works in holds: a `triton.py` or a `db/` there is not ours.
    Raises MachineFault where nothing can be written to the cache.
    """
    files = cache_dir / CHILDRENS
    try:
        files.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise no_room(cache_dir, error) from None
    plain = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}  # the interpreter compiles nothing
    path = os.pathsep.join(filter(None, (str(PACKAGES), os.environ.get("PYTHONPATH"))))
    return {**plain, "TRITON_CACHE_DIR": str(cache_dir), "TMPDIR": str(files), "PYTHONSAFEPATH": "1", "PYTHONPATH": path}


def no_room(folder: Path, error: OSError) -> MachineFault:
    """That compilers cannot work in this folder, and what to do."""
    return MachineFault(
        f"the compilers cannot write to {folder} ({error.strerror}), and each needs some {CANDIDATE_BYTES >> 20} MiB there: make room, or"
        " set TMPDIR to another folder; what was measured is stored"
    )


def check_room(cache_dir: Path) -> None:
    """Raises MachineFault where there is no room for one more candidate."""
    try:
        with tempfile.TemporaryFile(dir=cache_dir) as file:
            file.write(bytes(CANDIDATE_BYTES))
    except OSError as error:
        raise no_room(cache_dir, error) from None


class CompilePool:
    """Jobs in, results out as they finish. Closing it kills everything that still runs.

    A server that dies is started anew with the jobs that are unanswered. Where it gave no answer twice running, and where there is no room
    on the disk, every candidate would be lost: that is a MachineFault.
    """

    def __init__(self, workers: int, limit_seconds: float, cache_dir: Path, *, compile_function: str | None = None) -> None:
        self._arguments = ["--workers", str(workers), "--limit-seconds", str(limit_seconds)]
        self._arguments += ["--compile-function", compile_function] if compile_function else []
        self._environment = compiler_environment(cache_dir) | ONE_THREAD
        self._cache_dir = cache_dir
        self._jobs: dict[int, CompileJob] = {}
        self._next_id = 0
        self._fruitless_starts = 0
        self._buffer = bytearray()
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115 - what the server says when it cannot start; closed with the pool
        self._server = self._start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    def _start(self) -> subprocess.Popen[bytes]:
        self._fruitless_starts += 1
        try:
            return subprocess.Popen(
                [sys.executable, "-m", "tuner.compile_server", *self._arguments],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=self._errors,
                env=self._environment,
                start_new_session=True,
            )
        except OSError as error:
            raise MachineFault(f"the compile server cannot be started: {error.strerror}; what was measured is stored") from None

    @property
    def pid(self) -> int:
        """Of the server."""
        return self._server.pid

    @property
    def waiting(self) -> int:
        """Jobs without a result yet."""
        return len(self._jobs)

    def submit(self, jobs: Sequence[CompileJob]) -> None:
        """In the order in which they are to be compiled."""
        new = {self._next_id + i: job for i, job in enumerate(jobs)}
        self._next_id += len(jobs)
        self._jobs |= new
        self._send(new)

    def cancel(self) -> None:
        """Forget the jobs that have no result yet."""
        if self._jobs:
            self._jobs.clear()
            self._write(b'"cancel"\n')

    def _send(self, jobs: dict[int, CompileJob]) -> None:
        self._write(b"".join(json.dumps({"id": key, **asdict(job)}).encode() + b"\n" for key, job in jobs.items()))

    def _write(self, data: bytes) -> None:
        assert self._server.stdin is not None
        if self._server.stdin.closed:
            return
        with contextlib.suppress(BrokenPipeError):  # the server died; the next poll restarts it with every job that is unanswered
            self._server.stdin.write(data)
            self._server.stdin.flush()

    def poll(self, timeout_seconds: float) -> list[tuple[CompileJob, Compiled]]:
        """What has finished, waiting for at most so long for the first."""
        if not self._jobs:
            return []
        assert self._server.stdout is not None
        with selectors.DefaultSelector() as selector:
            selector.register(self._server.stdout, selectors.EVENT_READ)
            if not selector.select(timeout_seconds):
                return []
        data = os.read(self._server.stdout.fileno(), READ_BYTES)
        if not data:
            return self._server_died()
        self._buffer += data
        *lines, rest = self._buffer.split(b"\n")
        self._buffer = bytearray(rest)
        answers = [json.loads(line) for line in lines]
        if answers:
            self._fruitless_starts = 0
        found = [(self._jobs.pop(answer["id"]), _compiled(answer)) for answer in answers if answer["id"] in self._jobs]
        if any(compiled.status == "machine_fault" for _, compiled in found):
            check_room(self._cache_dir)
        return found

    def _server_died(self) -> list[tuple[CompileJob, Compiled]]:
        code = self._server.wait()
        end_session(self._server.pid)
        close_streams(self._server.stdin, self._server.stdout)
        self._buffer.clear()
        if self._fruitless_starts >= MOST_FRUITLESS_STARTS:
            raise MachineFault(
                f"nothing can be compiled: the compile server left {self._fruitless_starts} times without an answer, last with exit code"
                f" {code}{self._last_words()}; what was measured is stored, and the same command goes on from there"
            )
        self._server = self._start()
        self._send(self._jobs)
        return []

    def _last_words(self) -> str:
        said = os.pread(self._errors.fileno(), ERROR_BYTES, max(os.fstat(self._errors.fileno()).st_size - ERROR_BYTES, 0))
        line = said.decode(errors="replace").strip().rpartition("\n")[2]
        return f": {line}" if line else ""

    def results(self) -> Iterator[tuple[CompileJob, Compiled]]:
        """Every result, as it comes."""
        while self._jobs:
            yield from self.poll(WAIT_SECONDS)

    def close(self) -> None:
        """Closing its stdin makes the server kill its children and end; one that does not is killed."""
        close_streams(self._server.stdin)
        try:
            self._server.wait(timeout=5)
        except subprocess.TimeoutExpired:
            self._server.kill()
            self._server.wait()
        end_session(self._server.pid)
        close_streams(self._server.stdout)
        self._errors.close()


def end_session(session: int) -> None:
    """Kill every process of a session: what a dead leader cannot. Looks again until it finds none, for what they start meanwhile."""
    while members := [pid for pid in psutil.pids() if _session_of(pid) == session]:
        for pid in members:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(0.005)


def _session_of(pid: int) -> int | None:
    """None for a process that has ended, collected or not."""
    try:
        return None if psutil.Process(pid).status() == psutil.STATUS_ZOMBIE else os.getsid(pid)
    except (psutil.Error, ProcessLookupError):
        return None


def close_streams(*streams: IO[bytes] | None) -> None:
    """Close pipes to a process that may be dead: what nobody will read is dropped."""
    for stream in streams:
        if stream is not None:
            with contextlib.suppress(BrokenPipeError):
                stream.close()


def _compiled(answer: dict[str, Any]) -> Compiled:
    kernels = tuple(KernelBinary(**kernel) for kernel in answer["kernels"])
    return Compiled(
        status=answer["status"],
        message=answer["message"],
        log=answer["log"],
        seconds=answer["seconds"],
        kernels=kernels,
        cache_folders=tuple(answer.get("cache_folders", ())),
        alone=answer["alone"],
    )
