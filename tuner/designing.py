"""What is measured to fit a GPU's constants to: a few products that wait for different things, and on each a designed sample of
schedules."""

from __future__ import annotations

import time
from collections.abc import Callable

from search_spaces.errors import MachineFault, UserError
from search_spaces.gpu_files import on_device
from search_spaces.hardware import Hardware
from search_spaces.problem import Problem
from tuner.environment import DeviceInfo, device_present, require_sound_driver, why_no_device
from tuner.search import Progress
from tuner.searching import SearchWish, run_search

SCHEDULES = 60  # measured of each shape
LEAST_SECONDS = 12.0  # for one shape: five to seven are gone before anything is measured, and sixty schedules take three
DEFAULT_BUDGET_SECONDS = 120.0
SHAPES = (
    (4096, 6144, 4096),  # tensor cores
    (2048, 4096, 8192),
    (16, 8192, 8192),  # DRAM
    (128, 28672, 4096),
    (64, 4096, 14336),  # split-K
    (256, 1024, 16384),
    (512, 2048, 2048),  # fewer tiles than SMs
    (256, 512, 1024),  # latency
)


def designed_problems(hardware: Hardware) -> tuple[Problem, ...]:
    """The shapes in the 16-bit type that this GPU's tensor cores take."""
    dtype = "bf16" if "bf16" in hardware.fma_per_sm_per_clock else "fp16"
    return tuple(Problem(m=m, n=n, k=k, dtype=dtype) for m, n, k in SHAPES)


def require_present(hardware: Hardware, device: DeviceInfo | None) -> None:
    """Refuse to measure where this GPU is not."""
    stored = "without --measure, what is stored of it is used"
    if device is None:
        raise UserError(f"--measure needs {hardware.name}, and {why_no_device()}; {stored}")
    place = {"sms": device.sms, "memory_bytes": device.memory_bytes, "compute_capability": device.compute_capability}
    present = on_device(hardware, device.name, **place)  # type: ignore[arg-type]
    if present is None or present.name != hardware.name:
        raise UserError(f"--measure needs {hardware.name}, and the GPU present is {device.name}; {stored}")


def measure(
    hardware: Hardware, location: str | None, budget_seconds: float, say: Callable[[str], None], report: Callable[[Progress], None]
) -> None:
    """Measure the designed sample into the store; what is there already is not measured again. The budget is shared out
    evenly, but a shape that is measured at all gets what that takes."""
    require_sound_driver()
    require_present(hardware, device_present())
    problems = designed_problems(hardware)
    give_up = time.monotonic() + budget_seconds
    for done, problem in enumerate(problems):
        left = give_up - time.monotonic()
        if left < LEAST_SECONDS:
            say(f"the budget of {budget_seconds:.0f} s allows for {done} of {len(problems)} shapes")
            return
        share = max(left / (len(problems) - done), LEAST_SECONDS)
        result = run_search(_wish(problem, hardware, location, share), say, report)
        if result.fault:
            raise MachineFault(f"{problem.text}: {result.fault}")


def _wish(problem: Problem, hardware: Hardware, location: str | None, seconds: float) -> SearchWish:
    return SearchWish(
        problem=problem,
        hardware=hardware,
        space="default",
        families=(),
        model="hierarchy",
        strategy="spread",
        trials=SCHEDULES,
        budget=f"{seconds:.1f}s",
        seed=0,
        measure=True,
        measure_anyway=False,
        location=location,
    )
