"""What goes wrong around measuring: answers that are none, finals that are lost, a moving clock, and two tuners on one GPU."""

from __future__ import annotations

import json
import os
import resource
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import psutil
import pytest

from search_spaces.errors import MachineFault
from search_spaces.gpu_files import load_gpu
from search_spaces.hardware import Hardware
from search_spaces.problem import Problem
from search_spaces.schedule import Schedule
from tuner import device_lock
from tuner.device_words import signal_name, status_of, status_of_signal
from tuner.environment import DeviceInfo
from tuner.measuring import Lost, MeasureSettings, MeasuringProcess, Standby

SCHEDULE = Schedule(family="pointer", cta_m=64, cta_n=64, cta_k=32, warps=4, stages=3)
OK = '{"status": "ok", "samples_us": [5.0], "median_us": 5.0}'
SMALL = Problem(m=64, n=64, k=64)
LARGE = Problem(m=1024, n=1024, k=512)  # 1.07 GFLOP: at the 989.5 TFLOP/s of an H200 1.085 us, at its highest clock 1.003
ROOT = Path(__file__).parent.parent
DEVICE = DeviceInfo(
    name="NVIDIA H200",
    uuid="GPU-0",
    sms=132,
    memory_bytes=150_754_820_096,
    compute_capability=(9, 0),
    driver="570",
    cuda="12.8",
    sm_clock_mhz=1980.0,
    memory_clock_mhz=3201.0,
    power_limit_w=700.0,
    others=0,
    busy_percent=0,
)
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
    monkeypatch.setattr(device_lock, "PLACES", (tmp_path,))

    def made(
        *answers: str,
        wait: Callable[[str], None] | None = None,
        anchor_every: int = 16,
        hello: str = '{"library_us": 100.0}',
        problem: Problem = SMALL,
        hardware: Hardware = h200,
    ) -> MeasuringProcess:
        command = (sys.executable, "-c", ANSWERS_IN_TURN, hello, *answers)
        settings = MeasureSettings(command=command, start_seconds=30, candidate_seconds=30, finals_seconds=30, anchor_every=anchor_every)
        return MeasuringProcess(problem, hardware, settings, cache_dir=tmp_path, wait=wait)

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


@pytest.mark.parametrize("anchor", ['{"status": "launch_failed"}', '{"library_us": 0}', '{"library_us": NaN}', '{"library_us": null}'])
def test_an_anchor_that_fails_costs_no_schedule(make: Make, anchor: str) -> None:
    with make(OK, anchor, anchor_every=1) as process:
        assert [process.measure(SCHEDULE, None).status for _ in range(2)] == ["ok", "ok"]
        assert process.library_seconds == pytest.approx(100e-6)
        assert process.notes == ()


@pytest.mark.parametrize("us", ["0", "-3.5", "NaN", "Infinity", "null", '"5.0"', "true", "[5.0]"])
def test_a_time_that_is_none_is_one_failed_candidate(make: Make, us: str) -> None:
    wrong = f'{{"status": "ok", "samples_us": [5.0], "median_us": {us}}}'
    with make(wrong) as process:
        found = process.measure(SCHEDULE, None)
        assert (found.status, found.median_us, found.samples_us) == ("crashed", None, ())
        assert found.message.startswith("the measuring process answered ")


@pytest.mark.parametrize("library_us", ["0", "NaN", "-1.0", "null", '"fast"'])
def test_a_library_without_a_time_cannot_be_measured_beside(make: Make, library_us: str) -> None:
    with make(OK, hello=f'{{"library_us": {library_us}}}') as process:
        with pytest.raises(MachineFault, match=r"^cannot measure: the measuring process answered library_us = "):
            process.measure(SCHEDULE, None)
        assert process.library_seconds is None
        assert process.notes == ()


def test_what_is_said_unasked_is_not_the_answer_to_the_next_question(make: Make) -> None:
    """Or every schedule after it would get the time of the one before."""
    other = '{"status": "ok", "samples_us": [7.0], "median_us": 7.0}'
    with make(f"{OK}\n{other}", OK) as process:
        assert process.measure(SCHEDULE, None).median_us == 5.0
        assert process.measure(SCHEDULE, None).median_us == 5.0  # of a fresh process


def faster_than_light(us: float) -> str:
    return f'{{"status": "ok", "samples_us": [{us}, 9.0, 9.0], "median_us": 9.0}}'


def test_a_time_beyond_the_peak_is_a_fault_and_no_winner(make: Make) -> None:
    """One sample is enough: a clock that was wrong once is not to be trusted the other times."""
    with make(faster_than_light(1.0), faster_than_light(1.01), problem=LARGE) as process:
        found = process.measure(SCHEDULE, None)
        assert (found.status, found.median_us, found.samples_us) == ("implausible", None, ())
        assert found.message == "1.00 us is 1074 TFLOP/s, h200-sxm-141gb's peak is 990 (1071 at its highest clock)"
        assert process.measure(SCHEDULE, None).status == "ok"  # 1063 TFLOP/s


def test_where_no_peak_is_known_no_time_is_judged(make: Make, h200: Hardware) -> None:
    with make(faster_than_light(0.001), problem=LARGE, hardware=replace(h200, peak_flops={})) as process:
        assert process.measure(SCHEDULE, None).status == "ok"


def test_a_peak_is_that_of_the_gpu_present_though_another_one_was_named(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    """What was named may be slower by far: an H200 is no wonder because an H20 was named."""
    h20 = load_gpu("h20")
    assert h20.peak_flops["bf16"] < 0.2 * 989.5e12
    with make(faster_than_light(4.0), problem=LARGE, hardware=h20) as process:
        assert process.measure(SCHEDULE, None).status == "implausible"
    monkeypatch.setattr("tuner.measuring.device_present", lambda: DEVICE)
    with make(faster_than_light(4.0), problem=LARGE, hardware=h20) as process:
        assert process.measure(SCHEDULE, None).status == "ok"
    monkeypatch.setattr("tuner.measuring.device_present", lambda: replace(DEVICE, name="NVIDIA unheard of"))
    with make(faster_than_light(0.1), problem=LARGE, hardware=h20) as process:
        assert process.measure(SCHEDULE, None).status == "ok"


FAULT = '{"status": "faulted", "message": "an illegal memory access was encountered", "fatal": true}'


def test_a_fault_of_the_device_is_the_schedule_s_own_in_a_process_that_none_used_before(make: Make) -> None:
    with make(FAULT) as process:
        found = process.measure(SCHEDULE, None)
        assert (found.status, found.message) == ("faulted", "an illegal memory access was encountered")
    with make(OK, FAULT) as process:  # the fault may be that of the one before: alone it does well
        assert [process.measure(SCHEDULE, None).status for _ in range(2)] == ["ok", "ok"]


def finals(library: float, *times: float) -> str:
    values = list(times)
    return json.dumps({"rounds": [[library, *values]] * 3, "hot_l2_us": values, "eager_us": values})


def test_a_finalist_beyond_the_peak_is_marked(make: Make) -> None:
    with make(finals(3.0, 2.0, 1.0, 2.5), problem=LARGE) as process:
        samples = process.finals([SCHEDULE] * 3, 1.0)
    assert samples.wrong == ("", "1.00 us is 1074 TFLOP/s, h200-sxm-141gb's peak is 990 (1071 at its highest clock)", "")
    assert samples.implausible == {1}


def test_a_finalist_that_is_wrong_anyway_is_wrong(make: Make) -> None:
    with make(f'{finals(3.0, 1.0)[:-1]}, "wrong": ["C holds NaN"]}}', problem=LARGE) as process:
        samples = process.finals([SCHEDULE], 1.0)
    assert (samples.wrong, samples.implausible) == (("C holds NaN",), frozenset())


def test_a_library_beyond_the_peak_loses_the_finals(make: Make) -> None:
    with make(finals(1.0, 2.0), problem=LARGE) as process:
        with pytest.raises(Lost, match=r"^of the library, 1\.00 us is 1074 TFLOP/s") as lost:
            process.finals([SCHEDULE], 1.0)
        assert lost.value.status == "implausible"


def test_an_anchor_beyond_the_peak_is_left_out(make: Make) -> None:
    with make(faster_than_light(9.0), hello='{"library_us": 0.5}', problem=LARGE) as process:
        assert process.measure(SCHEDULE, None).status == "ok"
        assert process.library_seconds is None
        assert process.notes == (
            "a time of cuBLAS was left out: 0.5 us is 2147 TFLOP/s, h200-sxm-141gb's peak is 990 (1071 at its highest clock)",
        )


HELLO = '{"op": "hello", "library_us": 100.0, "sets": 64, "l2_bytes": 52428800, "sms": 66, "operands": "normal, seed 0",'


def test_what_the_process_may_use_and_how_its_operands_were_made_is_told(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    """Under MPS it can be half of the card."""
    monkeypatch.setattr("tuner.measuring.device_present", lambda: DEVICE)
    with make(OK, hello=f'{HELLO} "operands_over_l2": 0.4}}') as process:
        assert process.sms is None
        found = process.measure(SCHEDULE, None)
        assert process.sms == 66
        assert (found.operands, found.operand_sets, found.operands_over_l2) == ("normal, seed 0", 64, 0.4)
        assert process.notes == (
            "measured on 66 of the 132 SMs of NVIDIA H200: no more are given to this process",
            "timed with operands that L2 may hold: all sets together touch 0.40 of it",
        )


def test_the_whole_card_and_cold_operands_are_not_worth_a_word(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tuner.measuring.device_present", lambda: replace(DEVICE, sms=66))
    with make(OK, hello=f'{HELLO} "operands_over_l2": 1.0}}') as process:
        assert process.measure(SCHEDULE, None).status == "ok"
        assert process.notes == ()


@pytest.mark.parametrize(
    ("words", "status"),
    [
        ("torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.", "machine_fault"),
        ("MemoryError", "machine_fault"),
        ("OSError: [Errno 28] No space left on device: '/tmp/x'", "machine_fault"),
        ("OSError: [Errno 24] Too many open files", "machine_fault"),
        ("RuntimeError: No CUDA GPUs are available", "machine_fault"),
        ("CUDA error: no CUDA-capable device is detected", "machine_fault"),
        ("CUDA error: system not yet initialized", "machine_fault"),
        ("CUDA error: all CUDA-capable devices are busy or unavailable", "machine_fault"),
        ("CUDA error: uncorrectable ECC error encountered", "machine_fault"),
        ("ImportError: libtriton.so: cannot open shared object file", "machine_fault"),
        ("RuntimeError: Triton Error [CUDA]: an illegal memory access was encountered", "faulted"),
        ("CUDA error: misaligned address", "faulted"),
        ("CUDA_ERROR_ILLEGAL_INSTRUCTION", "faulted"),
        ("CUDA error: unspecified launch failure", "faulted"),
        ("KeyError: 'wgmma'", "crashed"),
        ("", "crashed"),
    ],
)
def test_last_words_say_whose_doing_a_death_is(words: str, status: str) -> None:
    assert status_of(words) == status


def test_signals_say_whose_doing_a_death_is() -> None:
    found = {name: status_of_signal(getattr(signal, name)) for name in ("SIGKILL", "SIGTERM", "SIGHUP", "SIGBUS", "SIGSEGV", "SIGFPE")}
    assert list(found.values()) == ["killed", "killed", "killed", "machine_fault", "crashed", "crashed"]
    assert (signal_name(11), signal_name(40)) == ("SIGSEGV", "signal 40")


def dies(words: str) -> str:
    """A process that is ready, and dies of what it is asked first."""
    return f"import sys; print('{{\"library_us\": 100.0}}', flush=True); sys.stdin.readline(); sys.exit({words!r})"


@pytest.mark.parametrize(
    ("words", "status"), [("CUDA out of memory", "machine_fault"), ("an illegal memory access", "faulted"), ("?", "crashed")]
)
def test_a_death_is_laid_to_whom_its_last_words_name(make: Make, h200: Hardware, tmp_path: Path, words: str, status: str) -> None:
    settings = MeasureSettings(command=(sys.executable, "-c", dies(words)))
    with MeasuringProcess(SMALL, h200, settings, cache_dir=tmp_path) as process:
        found = process.measure(SCHEDULE, None)
    assert (found.status, found.message) == (status, f"the measuring process left with exit code 1: {words}")


def test_no_room_for_one_more_process_is_the_machine_s_fault(make: Make, h200: Hardware, tmp_path: Path) -> None:
    settings = MeasureSettings(command=(str(tmp_path / "no python here"),))
    with pytest.raises(MachineFault, match=r"^the measuring process cannot be started: No such file or directory$"):
        MeasuringProcess(SMALL, h200, settings, cache_dir=tmp_path)
    standby = Standby(settings, tmp_path)  # it only saves time: that it cannot be had is found by whoever measures
    started = MeasuringProcess(SMALL, h200, settings, cache_dir=tmp_path, standby=standby)
    with started as process, pytest.raises(MachineFault, match="cannot be started"):
        process.measure(SCHEDULE, None)
    standby.close()


def test_a_full_folder_for_temporary_files_is_no_reason_not_to_measure(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TMPDIR", "/dev/full")
    monkeypatch.setattr("tempfile.tempdir", "/dev/full")
    with make(OK) as process:
        assert process.measure(SCHEDULE, None).status == "ok"


def test_few_open_files_are_no_fault_of_a_schedule(make: Make) -> None:
    """The process is there; to go on asking it takes no more files."""
    with make(OK, OK) as process:
        process.wait_until_ready()
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (3, hard))
        try:
            found = process.measure(SCHEDULE, None)
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        assert found.status == "ok"


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
