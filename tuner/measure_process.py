"""The process that measures: it holds the operands of one problem and answers requests, one JSON line each, until its stdin closes.

It may die of what it runs: the parent takes that as an answer. After a CUDA error that sticks to the context it says so and leaves by
itself; what keeps it from starting is its first line.
"""

from __future__ import annotations

import argparse
import ctypes
import importlib
import json
import os
import signal
import sys
from typing import Any

import torch

from search_spaces.problem import Problem
from search_spaces.schedule import Schedule
from tuner.device_bench import DEVICE, Bench, median
from tuner.kernels.partition import is_unordered
from tuner.launch_failures import is_lack_of_memory, message_of, status_of
from tuner.timing import few_rounds, full_graph, in_turn, rough_us, samples_us

# A schedule so many times slower than the best is timed by one launch, once warm. What that reads depends on a clock that may dip and on
# operands that L2 may hold, together by less than twice: three leaves no doubt, and how slow exactly is of no use to a search.
SLOW_FACTOR = 3.0
LAUNCH_US = 20.0  # what launching a graph of one call may add to it
LEAST_ROUNDS = 20
PR_SET_PDEATHSIG = 1  # of Linux's prctl


def measure(bench: Bench, schedule: Schedule, best_us: float | None) -> dict[str, Any]:
    """Check one schedule, time it, and check what it answered after all that."""
    if refusal := bench.refusal(schedule):
        return {"status": "refused", "message": refusal}
    scratch, unordered = bench.scratch(schedule), is_unordered(schedule)
    run = bench.runner(schedule, scratch)
    alone = bench.judge.alone(run, scratch, unordered)
    if alone.status:
        return alone.as_answer()
    rough = rough_us(run)
    if best_us is not None and rough > SLOW_FACTOR * best_us + LAUNCH_US:
        message = f"over {SLOW_FACTOR:g} times the best"
        return {"status": "slow", "message": message, "samples_us": [rough], "median_us": rough, **alone.facts}
    graph = bench.cold_graph(run, rough)
    samples = samples_us(graph)
    mhz, reasons = bench.clock.read()
    visited = min(graph.calls, bench.plan.count)
    in_the_end = bench.judge.back_to_back(run, graph.graph.replay, visited, scratch, alone.prints, unordered)
    if in_the_end.status:
        return {**alone.facts, **in_the_end.as_answer()}
    times = {"samples_us": samples, "median_us": median(samples), "sm_clock_mhz": mhz, "throttle_reasons": reasons}
    return {"status": "ok", "message": "", **times, **alone.facts}


def finals(bench: Bench, schedules: list[Schedule], seconds: float) -> dict[str, Any]:
    """Time the leaders and the library in turn; then each with hot operands, and as production launches it. `wrong`: of each, what was
    wrong with its answers before or after all that."""
    scratch = [bench.scratch(schedule) for schedule in schedules]
    unordered = [is_unordered(schedule) for schedule in schedules]
    runs = [bench.runner(schedule, rooms) for schedule, rooms in zip(schedules, scratch, strict=True)]
    alone = [bench.judge.alone(run, rooms, loose) for run, rooms, loose in zip(runs, scratch, unordered, strict=True)]
    rough = [rough_us(run) for run in runs]
    graphs = [bench.cold_graph(run, us) for run, us in zip(runs, rough, strict=True)]
    rounds = in_turn([bench.library_graph(), *graphs], seconds, LEAST_ROUNDS)
    wrong = [judgement.message for judgement in alone]
    for i, graph in enumerate(graphs):
        if not wrong[i]:
            visited = min(graph.calls, bench.plan.count)
            wrong[i] = bench.judge.back_to_back(runs[i], graph.graph.replay, visited, scratch[i], alone[i].prints, unordered[i]).message
    hot = [median(samples_us(full_graph(run, 1, us))) for run, us in zip(runs, rough, strict=True)]
    eager = [bench.eager_us(schedule, us) for schedule, us in zip(schedules, rough, strict=True)]
    return {"rounds": rounds, "hot_l2_us": hot, "eager_us": eager, "wrong": wrong}


def first_rounds(bench: Bench, schedules: list[Schedule], count: int) -> dict[str, Any]:
    """So many rounds of many contestants, all of which were found right before: only to tell who goes on to the finals."""
    runs = [bench.runner(schedule, bench.scratch(schedule)) for schedule in schedules]
    for run in runs:
        run(0)
    torch.cuda.synchronize()
    graphs = [bench.cold_graph(run, rough_us(run)) for run in runs]
    return {"rounds": few_rounds([bench.library_graph(), *graphs], count)}


def answer(bench: Bench, request: dict[str, Any]) -> dict[str, Any]:
    if request["op"] == "measure":
        return measure(bench, Schedule(**request["schedule"]), request["best_us"])
    if request["op"] == "finals":
        return finals(bench, [Schedule(**schedule) for schedule in request["schedules"]], request["seconds"])
    if request["op"] == "rounds":
        return first_rounds(bench, [Schedule(**schedule) for schedule in request["schedules"]], request["rounds"])
    return {"library_us": median(samples_us(bench.library_graph()))}


def answered(bench: Bench, line: str) -> dict[str, Any]:
    """The answer to a request; where memory ran out, after one more attempt without what can be done without."""
    for can_shrink in (True, False):
        try:
            return answer(bench, json.loads(line))
        except Exception as error:  # the boundary where a launch's failure becomes a value
            content = failed(error)
            if not can_shrink or not is_lack_of_memory(error) or content.get("fatal"):
                return content
        bench.release()
    raise AssertionError("the second attempt returns")


def failed(error: Exception) -> dict[str, Any]:
    """A launch that raised: `fatal` where the context is lost with it, as after an illegal access."""
    lost = _context_lost()
    status, message = status_of(error, lost), message_of(error)
    return {"status": status, "message": f"{message} ({lost})", "fatal": True} if lost else {"status": status, "message": message}


def _context_lost() -> str:
    """What the context says to anything that is asked of it; nothing where it works."""
    try:
        torch.cuda.synchronize()
        torch.empty(1, device=DEVICE).fill_(0)
        torch.cuda.synchronize()
    except Exception as error:  # any error but one means that the context is gone
        return "" if is_lack_of_memory(error) else str(error).splitlines()[0][:120]
    return ""


def say(answers: Any, content: dict[str, Any]) -> None:
    answers.write(json.dumps(content) + "\n")
    answers.flush()


def greeting(bench: Bench) -> dict[str, Any]:
    """sms: those that this process may use. check_seconds: about what checking a schedule takes."""
    plan = bench.plan
    sets = {"sets": plan.count, "operands": bench.operands, "operands_over_l2": plan.over_l2}
    device = {"l2_bytes": bench.l2_bytes, "sms": bench.device_sms}
    return {"op": "hello", "library_us": bench.library_us, "check_seconds": bench.check_seconds, **sets, **device}


def serve(bench: Bench, requests: Any, answers: Any) -> None:
    """Answer each line; returns when the input ends or the context is lost."""
    say(answers, greeting(bench))
    for line in requests:
        content = answered(bench, line)
        say(answers, content)
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
    try:
        bench = Bench(Problem(**json.loads(given.problem)), given.sms, stub)
        bench.warm_up()
    except Exception as error:  # nothing was asked yet, so no schedule is to blame
        say(answers, {"status": "machine_fault", "message": message_of(error)})
        os._exit(1)  # an orderly exit might touch a context that is lost
    serve(bench, sys.stdin, answers)


if __name__ == "__main__":
    main(sys.argv[1:])
