"""The process that measures: it holds the operands of one problem and answers requests, one JSON line each, until its stdin closes.

It may die of what it runs: the parent takes that as an answer. After a CUDA error that sticks to the context it says so and leaves by
itself.
"""

from __future__ import annotations

import argparse
import ctypes
import importlib
import json
import math
import os
import signal
import sys
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import torch

from search_spaces.problem import Problem
from search_spaces.schedule import Schedule
from tuner.checking import POISON, Guarded, Reference, guarded, guarded_random
from tuner.kernels import family_module
from tuner.kernels.launch import Call, launch
from tuner.kernels.partition import is_unordered
from tuner.kernels.specialise import compile_call, cuda_target, run_compiled
from tuner.operands import scratch_outline, view_of, views
from tuner.timing import Clock, Graph, Run, full_graph, in_turn, rough_us, samples_us, timing_events

DEVICE = "cuda"
# A schedule so many times slower than the best is timed by one launch, once warm. What that reads depends on a clock that may dip and on
# operands that L2 may hold, together by less than twice: three leaves no doubt, and how slow exactly is of no use to a search.
SLOW_FACTOR = 3.0
LAUNCH_US = 20.0  # what launching a graph of one call may add to it
MOST_SETS = 64
L2_SHARE = 3.0  # operand sets together are so many times L2
WARM_UP_SECONDS = 0.4
LEAST_ROUNDS = 20
REPEATS = 2  # runs of a split that must agree bit for bit
EAGER_CALLS, EAGER_US = 10, 100_000.0  # plain launches that are timed: so many, or fewer if they take longer
PR_SET_PDEATHSIG = 1  # of Linux's prctl


class Room(NamedTuple):
    """Scratch on the device, between guard zones."""

    memory: Guarded
    zeroed: bool  # it is zero before each launch and after it


class Bench:
    """The operands of one problem, in as many sets as keep them out of L2, and the reference."""

    def __init__(self, problem: Problem, sms: int, calls: Callable[..., list[Call]] | None) -> None:
        torch.backends.cuda.matmul.allow_tf32 = False
        self.problem, self.sms, self._stub = problem, sms, calls
        properties = torch.cuda.get_device_properties(0)
        self.capability = 10 * properties.major + properties.minor
        self.clock = Clock(f"GPU-{properties.uuid}")
        self.l2_bytes = properties.L2_cache_size
        generator = torch.Generator(DEVICE).manual_seed(0)
        self.sets = [self._operands(generator) for _ in range(self._set_count())]
        a, b, c = self.sets[0]
        self.reference = Reference(a.matrix, b.matrix, c.matrix.dtype)
        self.library_us = 0.0

    def _set_count(self) -> int:
        free, _ = torch.cuda.mem_get_info()
        by_memory = int(0.5 * free / max(self.problem.buffer_bytes, 1))
        wanted = math.ceil(L2_SHARE * self.l2_bytes / max(self.problem.least_bytes, 1)) + 1
        return max(min(wanted, MOST_SETS, by_memory), 1)

    def _operands(self, generator: torch.Generator) -> tuple[Guarded, Guarded, Guarded]:
        a, b, c = views(self.problem)
        off = self.problem.alignment_bytes
        shift = [off // view.dtype.itemsize if off < 16 else 0 for view in (a, b, c)]
        first = guarded_random(a, DEVICE, generator, shift_elements=shift[0])
        second = guarded_random(b, DEVICE, generator, shift_elements=shift[1])
        return first, second, guarded(c, DEVICE, shift_elements=shift[2])

    def scratch(self, schedule: Schedule) -> dict[str, Room]:
        """What the schedule needs besides its operands, one for all operand sets; clear as before a first launch."""
        operands = (operand.matrix for operand in self.sets[0])
        needed = {} if self._stub else family_module(schedule.family).scratch(*operands, schedule, self.sms)
        made = {name: Room(guarded(view_of(scratch_outline(part)), DEVICE), part.zeroed) for name, part in needed.items()}
        clear(made)
        return made

    def calls(self, schedule: Schedule, index: int, scratch: Mapping[str, Room]) -> list[Call]:
        a, b, c = (operand.matrix for operand in self.sets[index])
        calls = self._stub or family_module(schedule.family).calls
        return calls(a, b, c, schedule, self.sms, {name: room.memory.matrix for name, room in scratch.items()})

    def runner(self, schedule: Schedule, scratch: Mapping[str, Room]) -> Run:
        """Launches the binaries that were compiled, and no others, on operand set i."""
        target = cuda_target(self.capability)
        sets = [self.calls(schedule, index, scratch) for index in range(len(self.sets))]
        binaries = [compile_call(call, target, alignment_bytes=self.problem.alignment_bytes) for call in sets[0]]

        def run(index: int) -> None:
            for compiled, call in zip(binaries, sets[index], strict=True):
                run_compiled(compiled, call)

        return run

    def library(self, index: int) -> None:
        a, b, c = (operand.matrix for operand in self.sets[index])
        if c.dtype == a.dtype:
            torch.matmul(a, b, out=c)
        else:
            torch.ops.aten.mm.dtype_out(a, b, c.dtype, out=c)  # 16-bit operands, fp32 out

    def library_graph(self) -> Graph:
        self.library(0)
        torch.cuda.synchronize()
        return full_graph(self.library, len(self.sets), rough_us(self.library))

    def warm_up(self) -> None:
        """Bring the clock to where it stays under this load, and time the library once."""
        graph = self.library_graph()
        for _ in range(max(int(WARM_UP_SECONDS * 1e6 / (graph.replay_us() * graph.calls)), 1)):
            graph.graph.replay()
        torch.cuda.synchronize()
        self.library_us = _median(samples_us(graph))


def _median(values: list[float]) -> float:
    return sorted(values)[len(values) // 2]


def clear(scratch: Mapping[str, Room]) -> None:
    """Partial sums start as NaN; counters, and sums that are added to, as zero."""
    for room in scratch.values():
        room.memory.poison(0 if room.zeroed else POISON)


def misused(scratch: Mapping[str, Room]) -> str:
    """What a launch did to its scratch that it must not; nothing where it did not."""
    for name, room in scratch.items():
        if room.memory.overwritten():
            return f"{room.memory.overwritten()} elements outside the scratch {name!r} were overwritten"
        if room.zeroed and bool(room.memory.matrix.any()):
            return f"{int(room.memory.matrix.count_nonzero())} elements of the scratch {name!r} were not left at zero"
    return ""


def measure(bench: Bench, schedule: Schedule, best_us: float | None) -> dict[str, Any]:
    """Check one schedule, then time it."""
    scratch = bench.scratch(schedule)
    run = bench.runner(schedule, scratch)
    answers, output = [], bench.sets[0][2]
    for _ in range(REPEATS if scratch else 1):
        output.poison()
        clear(scratch)
        run(0)
        torch.cuda.synchronize()
        verdict = bench.reference.check(output)
        facts = {"relative_error": verdict.relative_error, "error_bound": verdict.error_bound}
        if not verdict.right:
            return {"status": "wrong_answer", "message": verdict.message, **facts}
        complaint = misused(scratch)
        if complaint:
            return {"status": "wrong_answer", "message": complaint, **facts}
        answers.append(output.matrix.clone())
    if not is_unordered(schedule) and not all(torch.equal(answers[0], answer) for answer in answers[1:]):
        return {"status": "unstable", "message": "two runs on the same operands gave different bits", **facts}
    rough = rough_us(run)
    if best_us is not None and rough > SLOW_FACTOR * best_us + LAUNCH_US:
        return {"status": "slow", "message": f"over {SLOW_FACTOR:g} times the best", "samples_us": [rough], "median_us": rough, **facts}
    samples = samples_us(full_graph(run, len(bench.sets), rough))
    mhz, reasons = bench.clock.read()
    if is_unordered(schedule) and not bench.reference.check(output).right:
        return {"status": "wrong_answer", "message": "launches back to back gave a wrong answer, one alone did not", **facts}
    if not is_unordered(schedule) and not torch.equal(output.matrix, answers[0]):
        return {"status": "unstable", "message": "launches back to back gave other bits than one alone", **facts}
    times = {"samples_us": samples, "median_us": _median(samples), "sm_clock_mhz": mhz, "throttle_reasons": reasons}
    return {"status": "ok", "message": "", **times, **facts}


def finals(bench: Bench, schedules: list[Schedule], seconds: float) -> dict[str, Any]:
    """Time the leaders and the library in turn; then each with hot operands, and as production launches it."""
    runs = [bench.runner(schedule, bench.scratch(schedule)) for schedule in schedules]
    for run in runs:
        run(0)
    torch.cuda.synchronize()
    rough = [rough_us(run) for run in runs]
    graphs = [full_graph(run, len(bench.sets), us) for run, us in zip(runs, rough, strict=True)]
    rounds = in_turn([bench.library_graph(), *graphs], seconds, LEAST_ROUNDS)
    hot = [_median(samples_us(full_graph(run, 1, us))) for run, us in zip(runs, rough, strict=True)]
    eager = [_eager_us(bench, schedule, us) for schedule, us in zip(schedules, rough, strict=True)]
    return {"rounds": rounds, "hot_l2_us": hot, "eager_us": eager}


def _eager_us(bench: Bench, schedule: Schedule, rough: float) -> float:
    """Microseconds of a call through Triton's own launcher, host included, over rotating operands."""
    scratch = bench.scratch(schedule)

    def run(index: int) -> None:
        for call in bench.calls(schedule, index % len(bench.sets), scratch):
            launch(call)

    run(0)
    torch.cuda.synchronize()
    count = max(min(EAGER_CALLS, int(EAGER_US / rough)), 1)
    start, end = timing_events()
    start.record()
    for index in range(count):
        run(index)
    end.record()
    end.synchronize()
    return float(start.elapsed_time(end)) * 1e3 / count


def answer(bench: Bench, request: dict[str, Any]) -> dict[str, Any]:
    if request["op"] == "measure":
        return measure(bench, Schedule(**request["schedule"]), request["best_us"])
    if request["op"] == "finals":
        return finals(bench, [Schedule(**schedule) for schedule in request["schedules"]], request["seconds"])
    return {"library_us": _median(samples_us(bench.library_graph()))}


def failed(error: Exception) -> dict[str, Any]:
    """A launch that raised: `fatal` where the context is lost with it, as after an illegal access."""
    message = f"{type(error).__name__}: {error}".splitlines()[0][:300]
    try:
        torch.cuda.synchronize()
        torch.empty(1, device=DEVICE).fill_(0)
        torch.cuda.synchronize()
    except Exception as lost:  # any error here means that the context is gone
        return {"status": "crashed", "message": f"{message} ({str(lost).splitlines()[0][:120]})", "fatal": True}
    resources = type(error).__name__ == "OutOfResources" or isinstance(error, torch.cuda.OutOfMemoryError)
    return {"status": "out_of_resources" if resources else "launch_failed", "message": message}


def serve(bench: Bench, requests: Any, answers: Any) -> None:
    """Answer each line; returns when the input ends or the context is lost."""

    def say(content: dict[str, Any]) -> None:
        answers.write(json.dumps(content) + "\n")
        answers.flush()

    properties = torch.cuda.get_device_properties(0)
    about = {"sets": len(bench.sets), "l2_bytes": bench.l2_bytes, "sms": properties.multi_processor_count}
    say({"op": "hello", "library_us": bench.library_us, **about})
    for line in requests:
        try:
            content = answer(bench, json.loads(line))
        except Exception as error:  # the boundary where a launch's failure becomes a value
            content = failed(error)
        say(content)
        if content.get("fatal"):
            os._exit(3)  # an orderly exit would touch the lost context


def die_with_parent() -> None:
    """A parent that is killed closes our stdin, which a process stuck in a kernel would never notice."""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


def main(arguments: list[str]) -> None:
    die_with_parent()
    parser = argparse.ArgumentParser()
    parser.add_argument("--problem", required=True, help="JSON of the problem's fields")
    parser.add_argument("--sms", type=int, required=True, help="SMs that a persistent grid counts on")
    parser.add_argument("--calls", default="", help="module:function in place of the family's calls; tests put faulty kernels here")
    given = parser.parse_args(arguments)
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # whatever a library prints must not look like an answer
    stub = None
    if given.calls:
        module, _, name = given.calls.partition(":")
        stub = getattr(importlib.import_module(module), name)
    bench = Bench(Problem(**json.loads(given.problem)), given.sms, stub)
    bench.warm_up()
    serve(bench, sys.stdin, answers)


if __name__ == "__main__":
    main(sys.argv[1:])
