"""Records for the tests of the store: one of everything, with plausible but made-up figures."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from db.records import Environment, Estimated, Finalist, Measurement, Record
from db.store import Store
from search_spaces.problem import Problem
from search_spaces.schedule import Schedule, Tile

PROBLEM = Problem(m=4096, n=4096, k=4096)
SCHEDULE = Schedule(family="tma", cta_m=128, cta_n=256, cta_k=64, warps=8, stages=3, group_m=8, persistent_ctas_per_sm=1, flatten=1)
PROTOCOL = "graph-1"
HASHES = {"tma": "aaaa", "pointer": "bbbb"}
ENVIRONMENT = Environment(
    gpu="h200-sxm-141gb",
    device_name="NVIDIA H200",
    device_uuid="GPU-0",
    sms=132,
    device_memory_bytes=150_754_820_096,
    compute_capability="9.0",
    driver="570.1",
    cuda="12.8",
    triton="3.6.0",
    torch="2.11.0",
    python="3.12.3",
    sm_clock_mhz=1980.0,
    memory_clock_mhz=3201.0,
    power_limit_w=700.0,
    code_version="0.1.0",
)
SLICE = replace(ENVIRONMENT, device_name="NVIDIA H200 MIG 1g.18gb", sms=16, device_memory_bytes=17_179_869_184)
NO_GPU = Environment(gpu="h200-sxm-141gb", sms=132, compute_capability="9.0", triton="3.6.0", python="3.12.3", code_version="0.1.0")
COMPILED = Measurement(status="compiled", registers=168, spill_slots=0, shared_memory_bytes=196_632, binary_hash="ff", compile_seconds=1.5)
CRASHED = Measurement(status="crashed", message="the measuring process ended with signal 11")


def timed(median_us: float) -> Measurement:
    samples = (median_us - 0.5, median_us, median_us + 0.5)
    return replace(COMPILED, status="ok", samples_us=samples, median_us=median_us, relative_error=1e-3, error_bound=1e-2)


def record(measurement: Measurement, **changes: Any) -> Record:
    """What a search would store; the arguments replace fields of the record."""
    terms = {"tensor_core": 1.9e-4, "dram": 3.5e-5}
    estimate = Estimated(seconds=2e-4, limiter="tensor_core", registers=168, shared_memory_bytes=196_632, waves=3.88, terms=terms)
    made = Record(
        problem=PROBLEM,
        gpu=ENVIRONMENT.gpu,
        schedule=SCHEDULE,
        warp_tile=Tile(16, 256, 64),
        mma_tile=Tile(64, 256, 16),
        estimate=estimate,
        environment=ENVIRONMENT,
        measurement=measurement,
        kernel_hash=HASHES["tma"],
        protocol=PROTOCOL,
        strategy="ranked",
        model="hierarchy",
    )
    return replace(made, **changes)


def finalist(trial_id: int, rank: int, ratio: float, *, tied: bool) -> Finalist:
    return Finalist(
        trial_id=trial_id,
        rank=rank,
        ratio=ratio,
        ratio_low=ratio - 0.01,
        ratio_high=ratio + 0.01,
        median_us=200.0 / ratio,
        library_us=200.0,
        tied=tied,
        winner=rank == 1,
    )


def run_with(store: Store, *records: Record, status: str = "finished") -> tuple[int, list[int]]:
    run_id = store.begin_run(records[0].environment, "{}")
    ids = [store.add(run_id, each) for each in records]
    store.finish_run(run_id, status)
    return run_id, ids


def finals(store: Store, *records: Record, status: str = "finished") -> list[int]:
    """A run whose records are its finalists in this order, the second one tied."""
    run_id, ids = run_with(store, *records, status=status)
    store.add_finalists(run_id, [finalist(trial_id, i + 1, 1.05 - i / 100, tied=i == 1) for i, trial_id in enumerate(ids)])
    return ids
