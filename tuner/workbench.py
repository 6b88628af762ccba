"""What a search works with: the compile workers and, where there is a GPU to measure on, the process that measures. Both take seconds to
get ready, so they are started before anything else is thought about."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path

from search_spaces.hardware import Hardware
from search_spaces.problem import Problem
from search_spaces.schedule import Schedule
from tuner.compiling import CompileJob, CompilePool
from tuner.measuring import MeasureSettings, MeasuringProcess, Standby
from tuner.resources import compile_workers
from tuner.temporary import temporary_folder

COMPILE_LIMIT_SECONDS = 60.0


@dataclass(frozen=True, kw_only=True)
class Workbench:
    """process: None where nothing is measured."""

    pool: CompilePool
    workers: int
    cache_dir: Path
    process: MeasuringProcess | None


class Workshop:
    """Compile workers and the compiler's cache, which any number of searches use one after the other; and, where another one is to come, a
    process that gets ready for its measuring meanwhile."""

    def __init__(self, pool: CompilePool, workers: int, cache: Path, settings: MeasureSettings) -> None:
        self.cache = cache
        self._pool, self._workers, self._settings = pool, workers, settings
        self._standby: Standby | None = None

    def bench(self, process: MeasuringProcess | None) -> Workbench:
        return Workbench(pool=self._pool, workers=self._workers, cache_dir=self.cache, process=process)

    @contextmanager
    def measuring_bench(self, problem: Problem, hardware: Hardware, wait: Callable[[str], None], *, more: bool) -> Iterator[Workbench]:
        """What one search works with. more: another one follows."""
        with MeasuringProcess(problem, hardware, self._settings, cache_dir=self.cache, wait=wait, standby=self._standby) as process:
            self._standby = Standby(self._settings, self.cache) if more else None
            yield self.bench(process)

    def close(self) -> None:
        if self._standby:
            self._standby.close()


@contextmanager
def open_workshop(settings: MeasureSettings | None = None) -> Iterator[Workshop]:
    workers = compile_workers()
    with temporary_folder() as folder, CompilePool(workers, COMPILE_LIMIT_SECONDS, folder) as pool:
        workshop = Workshop(pool, workers, folder, settings or MeasureSettings())
        try:
            yield workshop
        finally:
            workshop.close()


@contextmanager
def open_workbench(measuring: Callable[[Path], MeasuringProcess] | None) -> Iterator[Workbench]:
    """Both at work until the end of the block, and the compiler's cache for as long. `measuring` makes the measuring process, given that
    cache."""
    with open_workshop() as workshop, measuring(workshop.cache) if measuring else nullcontext() as process:
        yield workshop.bench(process)


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
