"""Whose doing a failure is: words that torch, Triton, CUDA and the system say, and what the measuring process makes of them."""

from __future__ import annotations

import errno
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from triton.runtime.errors import OutOfResources

from search_spaces.errors import MachineFault
from tuner import measure_process
from tuner.launch_failures import message_of, status_of

ROOT = Path(__file__).parent.parent
LAUNCH = "Triton Error [CUDA]: {}"


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 GiB"), "machine_fault"),
        (RuntimeError(LAUNCH.format("out of memory")), "machine_fault"),
        (RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling cublasCreate(handle)"), "machine_fault"),
        (MemoryError(), "machine_fault"),
        (OSError(errno.ENOSPC, "No space left on device"), "machine_fault"),
        (OSError(errno.EMFILE, "Too many open files"), "machine_fault"),
        (subprocess.CalledProcessError(1, "gcc"), "machine_fault"),
        (ImportError("libtriton.so: cannot open shared object file"), "machine_fault"),
        (RuntimeError("CUDA error: no kernel image is available for execution on the device"), "machine_fault"),
        (RuntimeError("CUDA driver version is insufficient for CUDA runtime version"), "machine_fault"),
        (RuntimeError("CUDA error: system not yet initialized"), "machine_fault"),
        (RuntimeError("0 active drivers ([]). There should only be one."), "machine_fault"),
        (OutOfResources(262144, 232448, "shared memory"), "out_of_resources"),
        (RuntimeError(LAUNCH.format("too many resources requested for launch")), "out_of_resources"),
        (RuntimeError(LAUNCH.format("invalid argument")), "launch_failed"),
        (KeyError("cta_k"), "launch_failed"),
        (ValueError("shape mismatch"), "launch_failed"),
    ],
)
def test_what_a_failure_says_of_the_schedule(error: Exception, status: str) -> None:
    assert status_of(error) == status


@pytest.mark.parametrize(
    ("words", "status"),
    [
        ("an illegal memory access was encountered", "faulted"),
        ("misaligned address", "faulted"),
        ("an illegal instruction was encountered", "faulted"),
        ("unspecified launch failure", "faulted"),
        ("hardware stack error", "faulted"),
        ("device-side assert triggered", "faulted"),
        ("uncorrectable ECC error encountered", "machine_fault"),
        ("uncorrectable NVLink error detected during the execution", "machine_fault"),
        ("the launch timed out and was terminated", "crashed"),
    ],
)
def test_what_sticks_to_the_context_is_fatal(words: str, status: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(measure_process, "_context_lost", lambda: f"CUDA error: {words}")
    found = measure_process.failed(RuntimeError("Triton Error [CUDA]: context is destroyed"))
    assert (found["status"], found["fatal"]) == (status, True)
    assert words in found["message"]


def test_a_message_is_one_line_and_a_fault_of_the_machine_a_sentence() -> None:
    assert message_of(MemoryError()) == "MemoryError"
    assert message_of(RuntimeError("one\ntwo")) == "RuntimeError: one"
    assert message_of(MachineFault("needs 45.1 GiB of device memory, 12.0 GiB are free")) == (
        "needs 45.1 GiB of device memory, 12.0 GiB are free"
    )
    assert len(message_of(RuntimeError("x" * 10_000))) == 300


class Shrinking:
    released = 0

    def release(self) -> None:
        self.released += 1


@pytest.mark.parametrize(("lacks", "status", "released"), [(0, "ok", 0), (1, "ok", 1), (2, "machine_fault", 1)])
def test_where_memory_runs_out_the_schedule_has_one_more_attempt_without_what_is_kept(
    lacks: int, status: str, released: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    left: Iterator[int] = iter(range(lacks))

    def answer(bench: Any, request: Any) -> dict[str, Any]:
        if next(left, None) is not None:
            raise torch.OutOfMemoryError("CUDA out of memory.")
        return {"status": "ok"}

    bench = Shrinking()
    monkeypatch.setattr(measure_process, "answer", answer)
    monkeypatch.setattr(measure_process, "_context_lost", lambda: "")
    found = measure_process.answered(bench, "{}")  # type: ignore[arg-type]
    assert found["status"] == status
    assert "fatal" not in found
    assert bench.released == released


def started(folder: Path | None, arguments: list[str], **environment: str) -> tuple[int, dict[str, Any]]:
    path = os.pathsep.join(str(place) for place in (folder, ROOT) if place)
    command = [sys.executable, "-m", "tuner.measure_start", *arguments]
    ran = subprocess.run(
        command, cwd=ROOT, env=os.environ | {"PYTHONPATH": path} | environment, stdin=subprocess.DEVNULL, capture_output=True, check=False
    )
    return ran.returncode, json.loads(ran.stdout.splitlines()[0])


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("raise OSError('libcudart.so.13: cannot open shared object file')", "OSError: libcudart.so.13: cannot open shared object file"),
        ("raise ImportError('cannot import name x')", "ImportError: cannot import name x"),
    ],
)
@pytest.mark.parametrize("arguments", [["--wait"], ["--problem", "{}", "--sms", "1"]])
def test_a_broken_import_is_the_first_line(source: str, message: str, arguments: list[str], tmp_path: Path) -> None:
    (tmp_path / "torch.py").write_text(source)
    assert started(tmp_path, arguments) == (1, {"status": "machine_fault", "message": message})


def test_a_device_that_cannot_be_had_is_the_first_line() -> None:
    problem = '{"m": 64, "n": 64, "k": 64}'
    code, said = started(None, ["--problem", problem, "--sms", "132"], CUDA_VISIBLE_DEVICES="-1")
    assert (code, said["status"]) == (1, "machine_fault")
    assert said["message"]
