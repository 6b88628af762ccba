"""What the measuring process answers, from request to line, with stand-ins for CUDA: kernels are Python functions, and graphs run them at
once."""

from __future__ import annotations

import io
import json
from collections.abc import Callable, Iterator
from dataclasses import asdict
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from search_spaces.errors import MachineFault
from search_spaces.problem import Problem
from search_spaces.schedule import Schedule
from tuner import device_bench, measure_process, timing
from tuner.device_bench import Bench
from tuner.kernels.launch import Call
from tuner.measure_protocol import read_answer, read_finals, read_hello, read_rounds

PROBLEM = Problem(m=32, n=32, k=64)
GOOD, THIRD, LATE, RAISES = 1, 2, 4, 8
CALL_US, EAGER_US = 100.0, 130.0  # of each, in a graph and launched alone
LAUNCHES: dict[int, int] = {}


class Kernel:
    """Runs as Triton's do, compiled or not."""

    def __init__(self, kind: int) -> None:
        self.kind = kind

    def __getitem__(self, grid: tuple[int, int, int]) -> Callable[..., None]:
        Event.clock_us += EAGER_US
        return self.run

    def run(self, a: torch.Tensor, b: torch.Tensor, c: torch.Tensor, **options: Any) -> None:
        LAUNCHES[self.kind] = LAUNCHES.get(self.kind, 0) + 1
        if self.kind == RAISES:
            raise torch.OutOfMemoryError("CUDA out of memory.")
        c.copy_(a.float() @ b.float())
        if LAUNCHES[self.kind] >= {THIRD: 3, LATE: 300}.get(self.kind, 10**9):
            c[5, 5] += 100.0


def calls(a: torch.Tensor, b: torch.Tensor, c: torch.Tensor, schedule: Schedule, sms: int, scratch: dict[str, Any]) -> list[Call]:
    return [Call(Kernel(schedule.group_m), (1, 1, 1), {"a": a, "b": b, "c": c}, {}, 1, 1)]


class Event:
    clock_us = 0.0

    def record(self) -> None:
        self.at = Event.clock_us

    def synchronize(self) -> None: ...

    def elapsed_time(self, end: Event) -> float:
        return (end.at - self.at) * 1e-3


class Replayed:
    """A graph."""

    def __init__(self, run: Callable[[int], None], sets: int, calls: int) -> None:
        self.run, self.sets, self.calls = run, sets, calls

    def replay(self) -> None:
        for call in range(self.calls):
            self.run(call % self.sets)
        Event.clock_us += CALL_US * self.calls


@pytest.fixture(autouse=True)
def no_cuda(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    LAUNCHES.clear()
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    properties = SimpleNamespace(multi_processor_count=66, major=9, minor=0, uuid="none", L2_cache_size=2**16)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda index: properties)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)
    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: None)
    for module in (device_bench, measure_process):
        monkeypatch.setattr(module, "DEVICE", "cpu")
    monkeypatch.setattr(device_bench, "free_bytes", lambda: 2**30)
    monkeypatch.setattr(device_bench, "WARM_UP_SECONDS", 1e-3)
    monkeypatch.setattr(device_bench, "compile_call", lambda call, target, alignment_bytes: call)
    monkeypatch.setattr(device_bench, "run_compiled", lambda compiled, call: call.kernel.run(**call.arguments))
    monkeypatch.setattr(timing, "timing_events", lambda: (Event(), Event()))
    monkeypatch.setattr(device_bench, "timing_events", lambda: (Event(), Event()))
    monkeypatch.setattr(timing, "capture", lambda run, sets, calls: timing.Graph(Replayed(run, sets, calls), calls))  # type: ignore[arg-type]
    monkeypatch.setattr(timing, "GRAPH_US", 200.0)
    monkeypatch.setattr(measure_process, "_context_lost", lambda: "")
    yield
    torch.set_num_threads(threads)


def bench(sms: int = 132, problem: Problem = PROBLEM) -> Bench:
    made = Bench(problem, sms, calls)
    made.warm_up()
    return made


def schedule(kind: int) -> Schedule:
    return Schedule(family="pointer", cta_m=64, cta_n=64, cta_k=32, warps=4, stages=2, group_m=kind)


def said(*requests: dict[str, Any]) -> list[dict[str, Any]]:
    """All that it says: hello first."""
    answers = io.StringIO()
    measure_process.serve(bench(), [json.dumps(request) for request in requests], answers)
    return [json.loads(line) for line in answers.getvalue().splitlines()]


def asked(kind: int, best_us: float | None = None) -> dict[str, Any]:
    return {"op": "measure", "schedule": asdict(schedule(kind)), "best_us": best_us}


def test_hello_tells_of_the_sets_and_of_the_sms_that_there_are() -> None:
    """A set of 32x32x64 in bf16 takes 10240 bytes, and L2 here has 65536."""
    hello = read_hello(said()[0])
    assert (hello.sets, hello.l2_bytes, hello.sms) == (21, 65536, 66)
    assert hello.operands == "normal, seeds 0 1 2"
    assert hello.operands_over_l2 == pytest.approx(21 * 10240 / 65536)


@pytest.mark.parametrize(("given", "counted"), [(132, 66), (66, 66), (40, 40)])
def test_a_grid_counts_on_no_more_sms_than_the_process_may_use(given: int, counted: int) -> None:
    assert bench(given).sms == counted


def test_a_right_schedule_is_timed_and_a_racy_one_is_not() -> None:
    _, good, racy = said(asked(GOOD), asked(THIRD))
    measured = read_answer(good).measurement
    assert (measured.status, measured.median_us, len(measured.samples_us)) == ("ok", 100.0, 7)
    assert measured.relative_error is not None
    assert read_answer(racy).measurement.status == "wrong_answer"
    assert "median_us" not in racy


@pytest.mark.parametrize(("best_us", "status", "samples"), [(90.0, "ok", 7), (27.0, "ok", 7), (26.0, "slow", 1), (None, "ok", 7)])
def test_one_over_three_times_as_slow_as_the_best_is_timed_once(best_us: float | None, status: str, samples: int) -> None:
    """Launching a graph of one call may add 20 us."""
    measured = read_answer(said(asked(GOOD, best_us))[1]).measurement
    assert (measured.status, measured.samples_us) == (status, (100.0,) * samples)


def test_memory_that_runs_out_is_the_machine_s_fault_after_one_more_attempt() -> None:
    answer = read_answer(said(asked(RAISES))[1])
    assert (answer.measurement.status, answer.fatal) == ("machine_fault", False)
    assert LAUNCHES[RAISES] == 2


def test_finals_name_who_was_wrong_in_the_end() -> None:
    """It is right for 300 launches: 216 when it is measured, and then some rounds."""
    contestants = [asdict(schedule(kind)) for kind in (GOOD, LATE)]
    _, late, finals = said(asked(LATE), {"op": "finals", "schedules": contestants, "seconds": 1e-9})
    assert read_answer(late).measurement.status == "ok"
    samples = read_finals(finals, contestants=2)
    assert samples.times_us.shape[1] == 2
    assert samples.wrong[0] == ""
    assert samples.wrong[1].startswith("launches back to back gave a wrong answer, one alone did not: ")
    assert (samples.hot_l2_us, samples.eager_us) == ((100.0, 100.0), (130.0, 130.0))


def test_first_rounds_are_rounds_and_nothing_else() -> None:
    contestants = [asdict(schedule(GOOD))] * 3
    samples = read_rounds(said({"op": "rounds", "schedules": contestants, "rounds": 4})[1], contestants=3)
    assert samples.times_us.tolist() == [[100.0] * 3] * 4


def test_what_a_family_refuses_is_not_launched(monkeypatch: pytest.MonkeyPatch) -> None:
    made = bench()
    monkeypatch.setattr(made, "_stub", None)
    refused = Schedule(family="pointer", cta_m=64, cta_n=64, cta_k=32, warps=4, stages=2, split_k=2, swap_ab=1)
    answer = measure_process.measure(made, refused, None)
    assert answer["status"] == "refused"
    assert "swap_ab with split_k needs fused_reduction" in answer["message"]


def test_what_cannot_fit_is_said_in_gibibytes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(device_bench, "free_bytes", lambda: 12 * 2**30)
    problem = Problem(m=65536, n=131072, k=65536, out_dtype="fp32")
    with pytest.raises(MachineFault, match=r"^needs 56\.3 GiB of device memory, 12\.0 GiB are free$"):
        Bench(problem, 132, calls)
