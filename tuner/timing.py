"""How long does it take, on a CUDA device: graphs of calls over rotating operand sets, timed by events; and what the clock did
meanwhile."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache

import pynvml
import torch

from tuner.judging import Run

GRAPH_US = 1500.0  # of work in one graph, so that its launch does not show
MOST_CALLS = 64  # in one graph, unless there are more operand sets: it goes once round them
TIMED_REPLAYS = 7
LONG_US = 100_000.0  # a graph over this is replayed LONG_REPLAYS times only
LONG_REPLAYS = 3
PATIENCE = 10.0  # the least rounds may take so many times the seconds that were given; then
FEWEST_ROUNDS = 5  # these will do


def timing_events() -> tuple[torch.cuda.Event, torch.cuda.Event]:
    """To record before and after."""
    return torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)


@dataclass(frozen=True)
class Graph:
    """A captured graph of `calls` calls over rotating operand sets. flush: what is written before each replay, so that nothing else is
    left in L2."""

    graph: torch.cuda.CUDAGraph
    calls: int
    flush: torch.Tensor | None = None

    def replay_us(self) -> float:
        """Microseconds of one call, from one replay."""
        start, end = timing_events()
        if self.flush is not None:
            self.flush.zero_()
        start.record()
        self.graph.replay()
        end.record()
        end.synchronize()
        return float(start.elapsed_time(end)) * 1e3 / self.calls


@cache
def _capture_stream() -> torch.cuda.Stream:
    """One for all captures: the library keeps a workspace for every stream it has seen."""
    return torch.cuda.Stream()


def capture(run: Run, sets: int, calls: int) -> Graph:
    """Capture `calls` calls, going round the operand sets. The work must have run once before, so that nothing is loaded in the capture."""
    graph, stream = torch.cuda.CUDAGraph(), _capture_stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        graph.capture_begin()
        try:
            for call in range(calls):
                run(call % sets)
        finally:
            graph.capture_end()
    torch.cuda.current_stream().wait_stream(stream)
    return Graph(graph, calls)


def rough_us(run: Run) -> float:
    """One call, timed once in a graph of its own: good to tell a slow schedule, and to size the graph of a proper timing."""
    graph = capture(run, 1, 1)
    graph.graph.replay()
    return graph.replay_us()


def graph_calls(sets: int, rough: float) -> int:
    """Enough calls to fill GRAPH_US and, unless they are long, to go once round the operand sets."""
    fill = math.ceil(GRAPH_US / max(rough, 1.0))
    return min(max(fill, sets if rough < GRAPH_US else 1), max(MOST_CALLS, sets))


def full_graph(run: Run, sets: int, rough: float, flush: torch.Tensor | None = None) -> Graph:
    """The graph that is timed. Where L2 is flushed before it, no set is used twice in it."""
    calls = graph_calls(sets, rough)
    graph = capture(run, sets, calls if flush is None else min(calls, sets))
    return replace(graph, flush=flush)


def samples_us(graph: Graph) -> list[float]:
    """Microseconds of one call, once per replay, after warm ones."""
    is_long = graph.replay_us() * graph.calls > LONG_US
    if not is_long:
        graph.graph.replay()
    return [graph.replay_us() for _ in range(LONG_REPLAYS if is_long else TIMED_REPLAYS)]


def in_turn(graphs: Sequence[Graph], seconds: float, least_rounds: int) -> list[list[float]]:
    """rounds[round][contestant] in microseconds: each round replays every graph once, beginning with another one each time.

    Goes on for the seconds given and at least for the least rounds, if those can be had in PATIENCE times that.
    """
    _warm(graphs)
    begin, rounds = time.monotonic(), list[list[float]]()

    def enough() -> bool:
        spent = time.monotonic() - begin
        return (spent >= seconds and len(rounds) >= least_rounds) or (spent >= PATIENCE * seconds and len(rounds) >= FEWEST_ROUNDS)

    while not enough():
        rounds.append(_round(graphs, len(rounds)))
    return rounds


def few_rounds(graphs: Sequence[Graph], count: int) -> list[list[float]]:
    """As `in_turn`, but exactly so many."""
    _warm(graphs)
    return [_round(graphs, first) for first in range(count)]


def _warm(graphs: Sequence[Graph]) -> None:
    for graph in graphs:
        graph.graph.replay()
    torch.cuda.synchronize()


def _round(graphs: Sequence[Graph], first: int) -> list[float]:
    times = [0.0] * len(graphs)
    for place in range(len(graphs)):
        i = (place + first) % len(graphs)
        times[i] = graphs[i].replay_us()
    return times


class Clock:
    """The device's SM clock and what holds it back, by NVML; silent where NVML cannot say."""

    def __init__(self, uuid: str) -> None:
        self._handle = None
        try:
            pynvml.nvmlInit()
            self._handle = pynvml.nvmlDeviceGetHandleByUUID(uuid)
        except pynvml.NVMLError:
            pass  # a container without NVML measures all the same

    def read(self) -> tuple[float | None, str | None]:
        """(SM clock in MHz, names of the reasons that hold it back)."""
        if self._handle is None:
            return None, None
        try:
            mhz = float(pynvml.nvmlDeviceGetClockInfo(self._handle, pynvml.NVML_CLOCK_SM))
            bits = pynvml.nvmlDeviceGetCurrentClocksThrottleReasons(self._handle)
        except pynvml.NVMLError:
            return None, None
        return mhz, ", ".join(name for name, bit in _REASONS.items() if bits & bit)


_REASONS = {
    "power cap": pynvml.nvmlClocksThrottleReasonSwPowerCap,
    "hardware slowdown": pynvml.nvmlClocksThrottleReasonHwSlowdown,
    "thermal": pynvml.nvmlClocksThrottleReasonSwThermalSlowdown | pynvml.nvmlClocksThrottleReasonHwThermalSlowdown,
    "power brake": pynvml.nvmlClocksThrottleReasonHwPowerBrakeSlowdown,
    "application clocks": pynvml.nvmlClocksThrottleReasonApplicationsClocksSetting,
}
