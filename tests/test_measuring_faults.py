"""What goes wrong around measuring: answers that are none, finals that are lost, a moving clock, and two tuners on one GPU."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

from search_spaces.hardware import Hardware
from search_spaces.problem import Problem
from search_spaces.schedule import Schedule
from tuner.measuring import Lost, MeasureSettings, MeasuringProcess

SCHEDULE = Schedule(family="pointer", cta_m=64, cta_n=64, cta_k=32, warps=4, stages=3)
OK = '{"status": "ok", "samples_us": [5.0], "median_us": 5.0}'
ROOT = Path(__file__).parent.parent
Make = Callable[..., MeasuringProcess]

ANSWERS_IN_TURN = """
import sys
for answer in sys.argv[1 : sys.argv.index("--problem")]:
    print(answer, flush=True)
    if not sys.stdin.readline():
        break
"""


@pytest.fixture
def make(h200: Hardware, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Make:
    """A process that says what it is told to, one line a request; its lock is this test's own."""
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))

    def made(*answers: str, wait: Callable[[str], None] | None = None, anchor_every: int = 16) -> MeasuringProcess:
        command = (sys.executable, "-c", ANSWERS_IN_TURN, '{"library_us": 100.0}', *answers)
        settings = MeasureSettings(command=command, start_seconds=30, candidate_seconds=30, finals_seconds=30, anchor_every=anchor_every)
        return MeasuringProcess(Problem(m=64, n=64, k=64), h200, settings, cache_dir=tmp_path, wait=wait)

    return made


@pytest.mark.parametrize("answer", ["{}", "[1]", "null", "1e999", '{"median_us": 5.0}', '{"library_us": 5.0}', ""])
def test_a_line_without_a_status_is_no_answer(make: Make, answer: str) -> None:
    with make(answer) as process:
        found = process.measure(SCHEDULE, None)
        assert found.status == "crashed"
        assert found.message.startswith("the measuring process answered ")
        assert process.pid is None


@pytest.mark.parametrize(
    ("answer", "why"),
    [
        ("{}", "the measuring process answered"),
        ("garbage", "the measuring process answered b'garbage'"),
        ('{"status": "out_of_resources", "message": "CUDA out of memory"}', "CUDA out of memory"),
    ],
)
def test_lost_finals_end_the_process_and_say_why(make: Make, answer: str, why: str) -> None:
    with make(answer) as process:
        with pytest.raises(Lost, match=why):
            process.finals([SCHEDULE], 1.0)
        assert process.pid is None


def test_the_anchor_tells_of_a_clock_that_moved(make: Make) -> None:
    with make(OK, '{"library_us": 107.0}', OK, '{"library_us": 101.0}', anchor_every=1) as process:
        assert process.measure(SCHEDULE, None).status == "ok"
        assert process.measure(SCHEDULE, None).status == "ok"
        assert process.notes == ("cuBLAS moved by 7.0% between 100.00 and 107.00 us during the run",)


def test_a_steady_clock_is_not_worth_a_word(make: Make) -> None:
    with make(OK, '{"library_us": 102.0}', anchor_every=1) as process:
        assert process.measure(SCHEDULE, None).status == "ok"
        assert process.notes == ()


def test_an_anchor_that_fails_costs_no_schedule(make: Make) -> None:
    with make(OK, '{"status": "launch_failed"}', anchor_every=1) as process:
        assert [process.measure(SCHEDULE, None).status for _ in range(2)] == ["ok", "ok"]


def test_two_tuners_on_one_gpu_take_turns(make: Make) -> None:
    said, second_measured = [], threading.Event()
    first = make(OK)

    def wait_in_line() -> None:
        with make(OK, wait=said.append) as second:
            assert second.measure(SCHEDULE, None).status == "ok"
        second_measured.set()

    line = threading.Thread(target=wait_in_line)
    line.start()
    while not said:
        time.sleep(0.01)
    assert first.measure(SCHEDULE, None).status == "ok"
    assert not second_measured.is_set()
    first.close()
    line.join(timeout=60)
    assert second_measured.is_set()
    assert said == ["another tuner measures on this GPU; waiting for it"]


def test_a_lock_file_of_another_user_is_enough(make: Make, tmp_path: Path) -> None:
    lock = tmp_path / "tuner-gpu-none.lock"
    lock.touch()
    lock.chmod(0o444)
    with make(OK) as process:
        assert process.measure(SCHEDULE, None).status == "ok"


def test_a_measuring_process_dies_with_its_parent(tmp_path: Path) -> None:
    """Also one that is stuck in a kernel and reads no more of its stdin."""
    child = "import time, tuner.measure_process as m; m.die_with_parent(); print('up', flush=True); time.sleep(600)"
    start = f"c = subprocess.Popen([sys.executable, '-c', {child!r}], start_new_session=True)"
    code = f"import subprocess, sys; {start}; print(c.pid, flush=True); c.wait()"
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True, cwd=ROOT) as parent:
        assert parent.stdout is not None
        pid = int(parent.stdout.readline())
        assert parent.stdout.readline() == "up\n"
        os.kill(parent.pid, signal.SIGKILL)
    _, alive = psutil.wait_procs([psutil.Process(pid)] if psutil.pid_exists(pid) else [], timeout=30)
    assert not alive
