"""What a search works with: the compile workers and, where there is a GPU to measure on, the process that measures. Both take seconds to
get ready, so they are started before anything else is thought about."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path

from search_spaces.hardware import Hardware
from search_spaces.problem import Problem
from search_spaces.schedule import Schedule
from tuner.compiling import CompileJob, CompilePool
from tuner.measuring import MeasuringProcess
from tuner.resources import compile_workers

COMPILE_LIMIT_SECONDS = 60.0


@dataclass(frozen=True, kw_only=True)
class Workbench:
    """process: None where nothing is measured."""

    pool: CompilePool
    workers: int
    process: MeasuringProcess | None


@contextmanager
def open_workbench(measuring: Callable[[Path], MeasuringProcess] | None) -> Iterator[Workbench]:
    """Both at work until the end of the block, and the compiler's cache for as long. `measuring` makes the measuring process, given that
    cache."""
    workers = compile_workers()
    with tempfile.TemporaryDirectory(prefix="tuner-") as folder:
        cache = Path(folder)
        with measuring(cache) if measuring else nullcontext() as process, CompilePool(workers, COMPILE_LIMIT_SECONDS, cache) as pool:
            yield Workbench(pool=pool, workers=workers, process=process)


def compile_job(schedule: Schedule, problem: Problem, hardware: Hardware) -> CompileJob:
    """What the compile workers are told: they know chips by number, not by file."""
    major, minor = hardware.compute_capability
    return CompileJob(
        problem=problem,
        schedule=schedule,
        capability=10 * major + minor,
        sms=int(hardware.need("sms")),
        shared_memory_limit_bytes=hardware.shared_memory_per_cta_bytes,
    )
