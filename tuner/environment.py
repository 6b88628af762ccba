"""The machine on the day: which GPU is there, what drives it, which versions are at work. The only module that looks at the machine."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import pynvml

from db.records import Environment

# CUDA cores of an SM by compute capability; NVML counts cores, not SMs (CUDA programming guide, arithmetic instructions)
CORES_PER_SM = {(7, 0): 64, (7, 5): 64, (8, 0): 64, (8, 6): 128, (8, 9): 128, (9, 0): 128, (10, 0): 128, (12, 0): 128}


@dataclass(frozen=True, kw_only=True)
class DeviceInfo:
    """A GPU as its driver describes it. `others`: processes of other programs that use it now."""

    name: str
    uuid: str
    sms: int
    memory_bytes: int
    compute_capability: tuple[int, int]
    driver: str
    cuda: str
    sm_clock_mhz: float
    memory_clock_mhz: float
    power_limit_w: float | None
    others: int


@cache
def device_present() -> DeviceInfo | None:
    """The GPU that CUDA would use first, CUDA_VISIBLE_DEVICES respected; None without one. Needs no CUDA context."""
    try:
        pynvml.nvmlInit()
        handle = _first_visible(os.environ.get("CUDA_VISIBLE_DEVICES"))
        return None if handle is None else _describe(handle)
    except pynvml.NVMLError:
        return None


def _first_visible(visible: str | None) -> Any:
    if visible is None:
        return pynvml.nvmlDeviceGetHandleByIndex(0) if pynvml.nvmlDeviceGetCount() else None
    first = visible.split(",")[0].strip()
    if not first or first == "-1":
        return None
    return pynvml.nvmlDeviceGetHandleByIndex(int(first)) if first.isdigit() else pynvml.nvmlDeviceGetHandleByUUID(first)


def _describe(handle: Any) -> DeviceInfo:
    capability = tuple(pynvml.nvmlDeviceGetCudaComputeCapability(handle))
    cuda = pynvml.nvmlSystemGetCudaDriverVersion_v2()
    return DeviceInfo(
        name=_text(pynvml.nvmlDeviceGetName(handle)),
        uuid=_text(pynvml.nvmlDeviceGetUUID(handle)),
        sms=_sms(handle, (capability[0], capability[1])),
        memory_bytes=int(pynvml.nvmlDeviceGetMemoryInfo(handle).total),
        compute_capability=(capability[0], capability[1]),
        driver=_text(pynvml.nvmlSystemGetDriverVersion()),
        cuda=f"{cuda // 1000}.{cuda % 1000 // 10}",
        sm_clock_mhz=float(pynvml.nvmlDeviceGetClockInfo(handle, pynvml.NVML_CLOCK_SM)),
        memory_clock_mhz=float(pynvml.nvmlDeviceGetClockInfo(handle, pynvml.NVML_CLOCK_MEM)),
        power_limit_w=_power_limit(handle),
        others=len(pynvml.nvmlDeviceGetComputeRunningProcesses(handle)),
    )


def _sms(handle: Any, capability: tuple[int, int]) -> int:
    """SMs of a card by its cores; of a MIG slice by its attributes."""
    try:
        return int(pynvml.nvmlDeviceGetAttributes(handle).multiprocessorCount)
    except pynvml.NVMLError:
        return int(pynvml.nvmlDeviceGetNumGpuCores(handle)) // CORES_PER_SM.get(capability, 128)


def _power_limit(handle: Any) -> float | None:
    try:
        return float(pynvml.nvmlDeviceGetEnforcedPowerLimit(handle)) / 1000
    except pynvml.NVMLError:
        return None


def _text(value: str | bytes) -> str:
    return value.decode() if isinstance(value, bytes) else value


def environment(gpu: str, device: DeviceInfo | None) -> Environment:
    """What a run is recorded under. `gpu`: the hardware asked for; `device` None where nothing is measured."""
    measured: dict[str, Any] = {}
    if device is not None:
        major, minor = device.compute_capability
        measured = {
            "device_name": device.name,
            "device_uuid": device.uuid,
            "sms": device.sms,
            "device_memory_bytes": device.memory_bytes,
            "compute_capability": f"{major}.{minor}",
            "driver": device.driver,
            "cuda": device.cuda,
            "sm_clock_mhz": device.sm_clock_mhz,
            "memory_clock_mhz": device.memory_clock_mhz,
            "power_limit_w": device.power_limit_w,
        }
    return Environment(
        gpu=gpu,
        triton=_version("triton") or "missing",
        torch=_version("torch"),
        python=platform.python_version(),
        code_version=code_version(),
        **measured,
    )


def _version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def code_version() -> str:
    """The package's version; from a checkout also its commit, and `dirty` where files differ from it."""
    version = _version("tuner") or "uninstalled"
    commit = _git("rev-parse", "--short", "HEAD")
    return f"{version}+{commit}{'.dirty' if _git('status', '--porcelain') else ''}" if commit else version


def _git(*arguments: str) -> str:
    root = Path(__file__).parent.parent
    if not (root / ".git").exists():
        return ""
    try:
        ran = subprocess.run(["git", *arguments], cwd=root, capture_output=True, text=True, timeout=5, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return ran.stdout.strip() if ran.returncode == 0 else ""


def load_warnings(device: DeviceInfo) -> Sequence[str]:
    """What else works the GPU, in sentences."""
    if device.others == 0:
        return ()
    return (f"{device.others} other process{'es' if device.others > 1 else ''} on {device.name}: times may be longer than they need be",)
