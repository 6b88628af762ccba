"""What others would propose for the same problem: Triton's former performance model, and NVIDIA's nvMatmulHeuristics where it is
installed. Neither is a dependency of the package."""

from __future__ import annotations

import importlib
import importlib.metadata
import importlib.util

import numpy as np
from numpy.typing import NDArray

from search_spaces.hardware import Hardware
from search_spaces.lowering import cdiv
from search_spaces.problem import Problem
from search_spaces.table import ScheduleTable

# of the former model: an A100's tensor cores, and the CTAs at which it thought DRAM saturated
FLOP_PER_SUBPARTITION_CLOCK = 512.0
BUSY_CTAS, ALL_CTAS = 32.0, 108.0
L2_SHARE, STORE_SHARE = 0.8, 0.6

NVMMH_MODULE = "nvMatmulHeuristics"
NVMMH_TARGETS = ("TRITON", "CUTLASS3", "GENERIC")
NVMMH_PRECISIONS = {"bf16": "TST", "fp16": "HSH"}
NVMMH_GPUS = {"h200-sxm-141gb": "H200_SXM", "h100-sxm-80gb": "H100_SXM", "h100-pcie-80gb": "H100_PCIE", "b200-180gb": "B200"}
NVMMH_ASKED = 256  # configurations, of which several differ only in what Triton derives


def triton_former_model(table: ScheduleTable, problem: Problem, hardware: Hardware) -> NDArray[np.float64]:
    """Seconds by the formulas of the model that Triton carried until 2024 (`matmul_perf_model`): compute beside loads of which 80 % hit
    L2, plus stores. Stages, raster and family do not enter, so that many schedules tie."""
    m, n, k, size = float(problem.m), float(problem.n), float(problem.k), problem.element_bytes
    tiles_m, tiles_n = cdiv(problem.m, table.cta_m).astype(float), cdiv(problem.n, table.cta_n).astype(float)
    ctas = tiles_m * tiles_n * table.split_k
    subpartitions = 4 * hardware.need("sms")
    peak = FLOP_PER_SUBPARTITION_CLOCK * subpartitions * hardware.clock_hz
    compute = 2 * m * n * k / (peak * np.minimum(subpartitions, ctas * np.minimum(table.warps, 4)) / subpartitions)
    reach = 0.95 * np.minimum(1, ctas / BUSY_CTAS) + 0.05 * np.clip((ctas - BUSY_CTAS) / (ALL_CTAS - BUSY_CTAS), 0, 1)
    dram = hardware.dram_bytes_per_second * reach
    again_a, again_b = m * k * size * (tiles_n - 1), n * k * size * (tiles_m - 1)
    from_dram = (m * k + n * k) * size + (1 - L2_SHARE) * (again_a + again_b)
    load = from_dram / dram + L2_SHARE * (again_a + again_b) / (4 * dram)
    split = table.split_k.astype(float)
    store = (m * n * problem.out_bytes * split + np.where(split > 1, m * n * 2, 0)) / (STORE_SHARE * dram)
    return np.asarray(np.maximum(compute, load) + store)


def nvmmh_is_installed() -> bool:
    return importlib.util.find_spec(NVMMH_MODULE) is not None


def nvmmh_version() -> str:
    return importlib.metadata.version("nvidia-matmul-heuristics")


def nvmmh_proposals(target: str, problem: Problem, hardware: Hardware) -> list[tuple[int, int, int, int]]:
    """(cta_m, cta_n, cta_k, split_k), the least estimated time first; each once. Empty where it knows no such GPU or type."""
    gpu, precision = NVMMH_GPUS.get(hardware.name), NVMMH_PRECISIONS.get(problem.dtype)
    if gpu is None or precision is None:
        return []
    library = importlib.import_module(NVMMH_MODULE)
    layout = library.NvMatmulHeuristicsMatmulLayout[f"{problem.layout.upper()}_ROW_MAJOR"]
    asked = library.NvMatmulHeuristicsInterfaceEx(
        backend=library.NvMatmulHeuristicsTarget[target], gpu=library.NvMatmulHeuristicsNvidiaGpu[gpu]
    )
    found = asked.get(asked.makeNvMatmulHeuristicsProblem(problem.m, problem.n, problem.k, layout), NVMMH_ASKED, precision)
    ordered = sorted(found, key=lambda item: float(item["runtime"]))
    return [*dict.fromkeys(_axes(item["kernel"]) for item in ordered)]


def _axes(kernel: object) -> tuple[int, int, int, int]:
    return (*(int(getattr(kernel, f"cta_tile_{axis}")) for axis in "mnk"), int(kernel.split_k))  # type: ignore[return-value,attr-defined]


def best_of_proposals(proposals: list[tuple[int, int, int, int]], table: ScheduleTable, seconds: NDArray[np.float64]) -> list[float]:
    """Of each proposal that was recorded, the time of its best schedule: all that it leaves open is chosen for it."""
    best: dict[tuple[int, int, int, int], float] = {}
    keys = zip(table.cta_m.tolist(), table.cta_n.tolist(), table.cta_k.tolist(), table.split_k.tolist(), strict=True)
    for key, value in zip(keys, seconds.tolist(), strict=True):
        best[key] = min(best.get(key, value), value)
    return [best[proposal] for proposal in proposals if proposal in best]
