"""The machine on the day: which GPU is there, what drives it, which versions are at work. The only module that looks at the machine."""

from __future__ import annotations

import importlib.metadata
import os
import platform
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, TypeVar

import pynvml

from db.records import Environment
from tuner.code_version import code_version

# CUDA cores of an SM by compute capability; NVML counts cores, not SMs (CUDA programming guide, arithmetic instructions)
CORES_PER_SM = {(7, 0): 64, (7, 5): 64, (8, 0): 64, (8, 6): 128, (8, 9): 128, (9, 0): 128, (10, 0): 128, (12, 0): 128}
BUSY_PERCENT = 10  # utilisation over this, before anything of ours runs, is said

T = TypeVar("T")


@dataclass(frozen=True, kw_only=True)
class DeviceInfo:
    """A GPU as its driver describes it; of a MIG slice, name, UUID, SMs and memory are the slice's.

    others: processes of other programs that use it now. busy_percent: of the time lately, a kernel ran on it.
    """

    name: str
    uuid: str
    sms: int
    memory_bytes: int
    compute_capability: tuple[int, int]
    driver: str
    cuda: str
    sm_clock_mhz: float | None
    memory_clock_mhz: float | None
    power_limit_w: float | None
    others: int
    busy_percent: int


@cache
def device_present() -> DeviceInfo | None:
    """The GPU that CUDA uses first when it counts as the PCI bus does, CUDA_VISIBLE_DEVICES respected; None without one.

    Needs no CUDA context.
    """
    try:
        pynvml.nvmlInit()
        handle = _first_visible(os.environ.get("CUDA_VISIBLE_DEVICES"))
        return None if handle is None else _describe(handle)
    except pynvml.NVMLError:
        return None


def _first_visible(visible: str | None) -> Any:
    if visible is None:
        return _first_slice(pynvml.nvmlDeviceGetHandleByIndex(0)) if pynvml.nvmlDeviceGetCount() else None
    first = visible.split(",")[0].strip()
    if not first or first == "-1":
        return None
    return _first_slice(pynvml.nvmlDeviceGetHandleByIndex(int(first)) if first.isdigit() else pynvml.nvmlDeviceGetHandleByUUID(first))


def _told(question: Callable[[], T]) -> T | None:
    """The driver's answer; None where it has none for this device or in this container."""
    try:
        return question()
    except pynvml.NVMLError:
        return None


def _first_slice(handle: Any) -> Any:
    """Of a card in MIG mode CUDA uses the first slice; None if it has been cut into none."""
    mode = _told(lambda: pynvml.nvmlDeviceGetMigMode(handle))
    if mode is None or mode[0] != pynvml.NVML_DEVICE_MIG_ENABLE or _is_slice(handle):
        return handle
    for index in range(pynvml.nvmlDeviceGetMaxMigDeviceCount(handle)):
        found = _told(lambda index=index: pynvml.nvmlDeviceGetMigDeviceHandleByIndex(handle, index))  # type: ignore[misc]
        if found is not None:
            return found
    return None


def _is_slice(handle: Any) -> bool:
    return _told(lambda: pynvml.nvmlDeviceGetDeviceHandleFromMigDeviceHandle(handle)) is not None


def _describe(handle: Any) -> DeviceInfo:
    card = _told(lambda: pynvml.nvmlDeviceGetDeviceHandleFromMigDeviceHandle(handle)) or handle  # slices know no clocks
    major, minor = pynvml.nvmlDeviceGetCudaComputeCapability(card)
    cuda = pynvml.nvmlSystemGetCudaDriverVersion_v2()
    power_mw = _told(lambda: pynvml.nvmlDeviceGetEnforcedPowerLimit(card))
    load = _told(lambda: pynvml.nvmlDeviceGetUtilizationRates(card))
    return DeviceInfo(
        name=_text(pynvml.nvmlDeviceGetName(handle)),
        uuid=_text(pynvml.nvmlDeviceGetUUID(handle)),
        sms=_sms(handle, (major, minor)),
        memory_bytes=int(pynvml.nvmlDeviceGetMemoryInfo(handle).total),
        compute_capability=(major, minor),
        driver=_text(pynvml.nvmlSystemGetDriverVersion()),
        cuda=f"{cuda // 1000}.{cuda % 1000 // 10}",
        sm_clock_mhz=_told(lambda: float(pynvml.nvmlDeviceGetClockInfo(card, pynvml.NVML_CLOCK_SM))),
        memory_clock_mhz=_told(lambda: float(pynvml.nvmlDeviceGetClockInfo(card, pynvml.NVML_CLOCK_MEM))),
        power_limit_w=None if power_mw is None else power_mw / 1000,
        others=len(_told(lambda: pynvml.nvmlDeviceGetComputeRunningProcesses(handle)) or ()),
        busy_percent=0 if load is None else int(load.gpu),
    )


def _sms(handle: Any, capability: tuple[int, int]) -> int:
    """SMs of a card by its cores; of a MIG slice by its attributes."""
    attributes = _told(lambda: pynvml.nvmlDeviceGetAttributes(handle))
    if attributes is not None:
        return int(attributes.multiprocessorCount)
    return int(pynvml.nvmlDeviceGetNumGpuCores(handle)) // CORES_PER_SM.get(capability, 128)


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


def load_warnings(device: DeviceInfo) -> Sequence[str]:
    """What else works the GPU, in sentences."""
    if device.others:
        who = f"{device.others} other process{'es' if device.others > 1 else ''} on {device.name}"
    elif device.busy_percent > BUSY_PERCENT:
        who = f"{device.name} was busy {device.busy_percent} % of the time before anything was started"
    else:
        return ()
    return (f"{who}: times may be longer than they need be",)
