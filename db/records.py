"""What was seen: a schedule's measurement, the machine it was taken on, and the answers the store gives. Nothing here knows of SQL."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Literal, NamedTuple

from search_spaces.problem import Problem
from search_spaces.schedule import Schedule, Tile

Status = Literal[
    "ok",
    "slow",  # right, but so far behind that it was timed by one launch only
    "compiled",  # not measured
    "duplicate",  # the same binary as another schedule
    # the schedule's own doing: it would be the same again
    "wrong_answer",
    "unstable",  # the splits add up differently from run to run
    "refused",  # by the compiler, which says why
    "out_of_resources",  # compiled to more registers or shared memory than a CTA has
    "faulted",  # the kernel broke a rule of the device (an illegal address, a trap) in a process of its own
    # the moment's: it says nothing about the schedule
    "compile_failed",  # for want of something that a compiler needs, or for a reason that it did not say
    "compile_timeout",
    "launch_failed",
    "timeout",
    "crashed",  # the process died, and not of a fault that the device named
    "killed",  # ended from outside
    "machine_fault",  # disk, memory, open files, driver
    "implausible",  # a time that the machine cannot have taken
]
RunStatus = Literal["running", "finished", "interrupted"]
TIMED: tuple[Status, ...] = ("ok", "slow")
SCHEDULES_OWN: tuple[Status, ...] = ("wrong_answer", "unstable", "refused", "out_of_resources", "faulted")
REMEMBERED: tuple[Status, ...] = (*TIMED, "compiled", "duplicate", *SCHEDULES_OWN)  # may answer in place of another attempt
ROUNDING = 1e-9  # of what was computed from numbers, and is checked against them


def is_moments(status: str) -> bool:
    """Whether an attempt failed for a reason that has nothing to do with its schedule, so that it is to be made again."""
    return status not in REMEMBERED


class MeasuredOn(NamedTuple):
    """What has to agree for a measurement to stand in for another one. A MIG slice reports fewer SMs and less memory than the card."""

    gpu: str
    device_name: str | None
    sms: int | None
    device_memory_bytes: int | None
    compute_capability: str | None
    triton: str


@dataclass(frozen=True, kw_only=True)
class Environment:
    """The machine on the day. `gpu` is the GPU asked for; the device_ fields are what the driver says, None where it was compiled for only.

    sms: those that the measuring process may use, which can be fewer than the card has. code_version: the package's version, with the
    commit and whether it was dirty where that is known. gpu_figures: `Hardware.figures_hash` of the file that the GPU was named by.
    """

    gpu: str
    triton: str
    python: str
    code_version: str
    device_name: str | None = None
    device_uuid: str | None = None
    sms: int | None = None
    device_memory_bytes: int | None = None
    compute_capability: str | None = None
    driver: str | None = None
    cuda: str | None = None
    torch: str | None = None
    sm_clock_mhz: float | None = None
    memory_clock_mhz: float | None = None
    power_limit_w: float | None = None
    gpu_figures: str | None = None


@dataclass(frozen=True, kw_only=True)
class Measurement:
    """What became of one attempt. Only the statuses in TIMED have a time, and they always have one.

    median_us: cold operands in a graph. spill_slots: 32-bit words of local memory a thread
    has, which need not be spills. sm_clock_mhz: as seen while timing. operands: how their values were drawn, with the seeds.
    operand_sets, operands_over_l2: how many sets were gone round, and the bytes that they touch over those of L2; under 1 they are not
    cold. compile_log: what the compiler said, where it failed.
    """

    status: Status
    message: str = ""
    samples_us: tuple[float, ...] = ()
    median_us: float | None = None
    relative_error: float | None = None
    error_bound: float | None = None
    registers: int | None = None
    spill_slots: int | None = None
    shared_memory_bytes: int | None = None
    mma_instruction: str | None = None
    binary_hash: str | None = None
    compile_seconds: float | None = None
    sm_clock_mhz: float | None = None
    throttle_reasons: str | None = None
    operands: str | None = None
    operand_sets: int | None = None
    operands_over_l2: float | None = None
    compile_log: str | None = None

    def __post_init__(self) -> None:
        times = (*self.samples_us, *(() if self.median_us is None else (self.median_us,)))
        if self.status in TIMED and self.median_us is None:
            raise ValueError(f"status {self.status} without a median")
        if self.status not in TIMED and times:
            raise ValueError(f"status {self.status} with a time of {times[0]} us")
        if not all(math.isfinite(us) and us > 0 for us in times):
            raise ValueError(f"times {times} us: not all above 0 and finite")
        if self.relative_error is not None and math.isnan(self.relative_error):
            object.__setattr__(self, "relative_error", math.inf)  # SQL has no NaN; an output with NaN is off by any bound


@dataclass(frozen=True, kw_only=True)
class Estimated:
    """What the model said beforehand, in seconds; `terms` are the seconds that each resource is busy on its own."""

    seconds: float
    limiter: str
    registers: int | None = None
    shared_memory_bytes: int | None = None
    waves: float | None = None
    terms: Mapping[str, float]


@dataclass(frozen=True, kw_only=True)
class Record:
    """One attempt at one schedule. The store fills in the last three.

    kernel_hash: of the kernel's source with all it depends on. protocol: the rules of timing, with their version.
    """

    problem: Problem
    gpu: str
    schedule: Schedule
    warp_tile: Tile
    mma_tile: Tile
    estimate: Estimated
    environment: Environment
    measurement: Measurement
    kernel_hash: str
    protocol: str
    strategy: str
    model: str
    trial_id: int | None = None
    run_id: int | None = None
    recorded: datetime | None = None


@dataclass(frozen=True, kw_only=True)
class Finalist:
    """One of the leaders, timed in turn with the library. ratio: library time / candidate time, over 1 where the candidate is faster.

    hot_l2_us: on one operand set, which may stay in L2. eager_us: launched one by one through Triton's own launcher, host included.
    """

    trial_id: int
    rank: int
    ratio: float
    ratio_low: float
    ratio_high: float
    median_us: float
    library_us: float
    tied: bool
    winner: bool
    hot_l2_us: float | None = None
    eager_us: float | None = None

    def __post_init__(self) -> None:
        others = tuple(us for us in (self.hot_l2_us, self.eager_us) if us is not None)
        numbers = (self.ratio, self.ratio_low, self.ratio_high, self.median_us, self.library_us, *others)
        if not all(math.isfinite(number) and number > 0 for number in numbers):
            raise ValueError(f"ratios and times {numbers}: not all above 0 and finite")
        if self.rank < 1 or not self.ratio_low * (1 - ROUNDING) <= self.ratio <= self.ratio_high * (1 + ROUNDING):
            raise ValueError(f"rank {self.rank}, ratio {self.ratio} in an interval from {self.ratio_low} to {self.ratio_high}")


@dataclass(frozen=True, kw_only=True)
class RunInfo:
    """One search. request: JSON text of what was asked. host, pid, process_started: of the process that searches, where the schema that it
    was written under had them; process_started in seconds since 1970. A run whose process is gone is `interrupted` at the next start."""

    id: int
    request: str
    status: RunStatus
    started: datetime
    finished: datetime | None = None
    host: str | None = None
    pid: int | None = None
    process_started: float | None = None


@dataclass(frozen=True, kw_only=True)
class BestAnswer:
    """What is known to be best for exactly one problem.

    measured: False where schedules were only ranked and compiled; the record is then the least prediction of its model and has no time.
    finalist, finals_run: its place beside the library in the finals of that run, None where it was in none. ties: schedules too close to
    tell apart from it. stale: the kernel's source has changed since. differs: in what the environment that it was measured in differs from
    this machine's, in words; empty where it does not, or where the GPU is not here.
    """

    record: Record
    measured: bool
    finalist: Finalist | None = None
    finals_run: int | None = None
    ties: tuple[Schedule, ...] = ()
    stale: bool = False
    differs: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Landscape:
    """The measured times of one problem that can be compared: one place (GPU, driver, libraries), one protocol.

    median_us: the newest time of each schedule, those of a single launch (`slow`) included. recorded: when the newest was stored.
    """

    problem: Problem
    environment: Environment
    protocol: str
    median_us: Mapping[Schedule, float]
    recorded: datetime


@dataclass(frozen=True, kw_only=True)
class Stats:
    """How much there is. shapes: (gpu, `Problem.text`) -> attempts."""

    runs: Mapping[str, int]
    trials: Mapping[str, int]
    shapes: Mapping[tuple[str, str], int]
    finalists: int
    environments: int
