"""The GPU with the operands of one problem on it: launches schedules and the library on them, and knows how to tell right from wrong."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any

import torch

from search_spaces.errors import MachineFault
from search_spaces.problem import Problem
from search_spaces.schedule import Schedule
from tuner.checking import Reference, guarded
from tuner.judging import Judge, Room, Run, clear
from tuner.kernels import family_module
from tuner.kernels.launch import Call, launch
from tuner.kernels.specialise import compile_call, cuda_target, run_compiled
from tuner.memory_plan import gibibytes, plan_references, plan_sets
from tuner.operand_sets import SEEDS, how_drawn, make_operands
from tuner.operands import scratch_outline, view_of
from tuner.timing import Clock, Graph, full_graph, rough_us, samples_us, timing_events

DEVICE = "cuda"
WARM_UP_SECONDS = 0.4
EAGER_CALLS, EAGER_US = 10, 100_000.0  # plain launches that are timed: so many, or fewer if they take longer


def median(values: list[float]) -> float:
    return sorted(values)[len(values) // 2]


class Bench:
    """Raises MachineFault where the device has not the memory for one set of operands and its checking.

    sms: those that a persistent grid counts on, or what this process may use where that is fewer. calls: in place of the families'.
    """

    def __init__(self, problem: Problem, sms: int, calls: Callable[..., list[Call]] | None) -> None:
        torch.backends.cuda.matmul.allow_tf32 = False
        properties = torch.cuda.get_device_properties(0)
        self.problem, self._stub = problem, calls
        self.device_sms = properties.multi_processor_count
        self.sms = min(sms, self.device_sms)
        self._target = cuda_target(10 * properties.major + properties.minor)
        self.clock = Clock(f"GPU-{properties.uuid}")
        self.l2_bytes = properties.L2_cache_size
        free = free_bytes()
        self.plan = plan_sets(problem, self.l2_bytes, free)
        if self.plan.needed_bytes > free:
            raise MachineFault(f"needs {gibibytes(self.plan.needed_bytes)} of device memory, {gibibytes(free)} are free")
        self.a, self.b, self.c = make_operands(problem, self.plan.count, DEVICE)
        self._flush = torch.empty(self.plan.flush_bytes, dtype=torch.uint8, device=DEVICE) if self.plan.flush_bytes else None
        self.judge = Judge(self.c, self._references())
        self._binaries: dict[Schedule, list[Any]] = {}
        self.library_us = 0.0
        self.check_seconds = 0.0

    def _references(self) -> tuple[Reference, ...]:
        """Of the sets that differ in their data."""
        kinds = min(len(SEEDS), self.plan.count)
        keeps, budget = plan_references(self.problem.m * self.problem.n, kinds, free_bytes())
        dtype = self.c.matrices.dtype
        return tuple(
            Reference(self.a.matrices[i], self.b.matrices[i], dtype, keep=keep, budget_bytes=budget) for i, keep in enumerate(keeps)
        )

    @property
    def operands(self) -> str:
        return how_drawn(self._flush is not None)

    def release(self) -> None:
        """Give back what can be done without."""
        for reference in self.judge.references:
            reference.release()
        torch.cuda.empty_cache()

    def _operands(self, index: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        return self.a.copies[index].matrix, self.b.copies[index].matrix, self.c.copies[index].matrix

    def refusal(self, schedule: Schedule) -> str:
        """Why its family does not run the schedule on these operands; nothing where it does."""
        return "" if self._stub else family_module(schedule.family).supports(*self._operands(0), schedule) or ""

    def scratch(self, schedule: Schedule) -> dict[str, Room]:
        """What the schedule needs besides its operands, one for all operand sets; clear as before a first launch."""
        needed = {} if self._stub else family_module(schedule.family).scratch(*self._operands(0), schedule, self.sms)
        made = {name: Room(guarded(view_of(scratch_outline(part)), DEVICE), part.zeroed) for name, part in needed.items()}
        clear(made)
        return made

    def calls(self, schedule: Schedule, index: int, scratch: Mapping[str, Room]) -> list[Call]:
        calls = self._stub or family_module(schedule.family).calls
        return calls(*self._operands(index), schedule, self.sms, {name: room.memory.matrix for name, room in scratch.items()})

    def runner(self, schedule: Schedule, scratch: Mapping[str, Room]) -> Run:
        """Launches the binaries that were compiled, and no others, on operand set i."""
        sets = {0: self.calls(schedule, 0, scratch)}
        if schedule not in self._binaries:
            alignment = self.problem.alignment_bytes
            self._binaries[schedule] = [compile_call(call, self._target, alignment_bytes=alignment) for call in sets[0]]
        binaries = self._binaries[schedule]

        def run(index: int) -> None:
            if index not in sets:  # a slow schedule comes to few of them
                sets[index] = self.calls(schedule, index, scratch)
            for compiled, call in zip(binaries, sets[index], strict=True):
                run_compiled(compiled, call)

        return run

    def library(self, index: int) -> None:
        a, b, c = self._operands(index)
        if c.dtype == a.dtype:
            torch.matmul(a, b, out=c)
        else:
            torch.ops.aten.mm.dtype_out(a, b, c.dtype, out=c)  # 16-bit operands, fp32 out

    def cold_graph(self, run: Run, rough: float) -> Graph:
        return full_graph(run, self.plan.count, rough, self._flush)

    def library_graph(self) -> Graph:
        self.library(0)
        torch.cuda.synchronize()
        return self.cold_graph(self.library, rough_us(self.library))

    def warm_up(self) -> None:
        """Bring the clock to where it stays under this load, and time the library once, and the checks of a schedule."""
        graph = self.library_graph()
        for _ in range(max(int(WARM_UP_SECONDS * 1e6 / (graph.replay_us() * graph.calls)), 1)):
            graph.graph.replay()
        torch.cuda.synchronize()
        self.library_us = median(samples_us(graph))
        for _ in range(2):  # once to make the references that are kept
            begin = time.monotonic()
            self.judge.alone(self.library, {}, True)
            self.check_seconds = time.monotonic() - begin

    def eager_us(self, schedule: Schedule, rough: float) -> float:
        """Microseconds of a call through Triton's own launcher, host included, over rotating operands."""
        scratch = self.scratch(schedule)

        def run(index: int) -> None:
            for call in self.calls(schedule, index % self.plan.count, scratch):
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


def free_bytes() -> int:
    """Device memory that an allocation can still have."""
    return int(torch.cuda.mem_get_info()[0]) + torch.cuda.memory_reserved() - torch.cuda.memory_allocated()
