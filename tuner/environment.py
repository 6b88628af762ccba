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
from search_spaces.errors import MachineFault
from search_spaces.gpu_files import gpu_names, load_gpu
from search_spaces.hardware import Hardware
from search_spaces.plain_text import shown
from tuner.code_version import code_version
from tuner.cuda_driver import CudaFigures, CudaSilent, cuda_figures
from tuner.visible_devices import names_slices, visible_cards, visible_slices

# CUDA cores of an SM by compute capability; NVML counts cores, not SMs (CUDA programming guide, arithmetic instructions)
CORES_PER_SM = {(6, 0): 64, (6, 1): 128, (7, 0): 64, (7, 2): 64, (7, 5): 64, (8, 0): 64, (8, 6): 128, (8, 7): 128, (8, 9): 128}
CORES_PER_SM |= {(9, 0): 128, (10, 0): 128, (10, 3): 128, (11, 0): 128, (12, 0): 128, (12, 1): 128}
BUSY_PERCENT = 10  # utilisation over this, before anything of ours runs, is said
LITTLE_FREE = 0.5  # of the device's memory, before anything of ours runs
NOTHING_THERE = "no GPU is present"

T = TypeVar("T")


@dataclass(frozen=True, kw_only=True)
class DeviceInfo:
    """A GPU as its driver describes it; of a MIG slice, name, UUID, SMs and memory are the slice's.

    others: processes of other programs that use it now. busy_percent: of the time lately, a kernel ran on it. memory_free_bytes: None
    where the driver does not tell, as where the host's memory is shared.
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
    memory_free_bytes: int | None = None


@dataclass(frozen=True)
class _Absence:
    """Why there is no device to measure on, as a clause. is_fault: a GPU is there, and its driver does not say what measuring needs."""

    reason: str
    is_fault: bool = False


class _Silent(Exception):
    """The driver did not answer a query: its name, and how it failed."""


@cache
def device_present() -> DeviceInfo | None:
    """The GPU that CUDA uses first when it counts as the PCI bus does, CUDA_VISIBLE_DEVICES respected; None without one.

    Needs no CUDA context.
    """
    found = _look()
    return found if isinstance(found, DeviceInfo) else None


def why_no_device() -> str:
    """Why `device_present` found none, as a clause: no GPU, none that is visible, or a driver that does not answer."""
    found = _look()
    return found.reason if isinstance(found, _Absence) else NOTHING_THERE


def require_sound_driver() -> None:
    """For whoever wants to measure. Raises MachineFault where a GPU is there and cannot be used until its driver is seen to."""
    found = _look()
    if isinstance(found, _Absence) and found.is_fault:
        raise MachineFault(f"cannot measure: {found.reason}; mend that, or leave measuring out with --no-measure")


def _look() -> DeviceInfo | _Absence:
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError as error:
        return _without_driver(error)
    try:
        found = _first_visible(os.environ.get("CUDA_VISIBLE_DEVICES"))
        return found if isinstance(found, _Absence) else _describe(found)
    except _Silent as silent:
        return _Absence(f"a GPU is present whose driver does not say what has to be known of it ({silent})", is_fault=True)


def _without_driver(error: pynvml.NVMLError) -> _Absence:
    code = getattr(error, "value", None)
    if code == pynvml.NVML_ERROR_LIBRARY_NOT_FOUND:
        return _Absence(NOTHING_THERE)
    if code == pynvml.NVML_ERROR_DRIVER_NOT_LOADED:
        return _Absence(f"{NOTHING_THERE}, or its driver is not loaded")
    if code == pynvml.NVML_ERROR_LIB_RM_VERSION_MISMATCH:
        return _Absence("the NVIDIA driver in the kernel is of another version than its libraries: reboot, or load it anew", is_fault=True)
    if code == pynvml.NVML_ERROR_NO_PERMISSION:
        return _Absence("this user may not use the GPU that is present: see the mode of /dev/nvidia*", is_fault=True)
    return _Absence(f"the NVIDIA driver does not answer (nvmlInit: {error})", is_fault=True)


def _ask(query: str, *arguments: Any) -> Any:
    """The driver's answer to a query of NVML by its name. Raises _Silent."""
    try:
        return getattr(pynvml, query)(*arguments)
    except pynvml.NVMLError as error:
        raise _Silent(f"{query}: {error}") from None


def _told(query: str, *arguments: Any) -> Any:
    """The driver's answer; None where it has none for this device or in this container."""
    try:
        return _ask(query, *arguments)
    except _Silent:
        return None


def _first_visible(visible: str | None) -> Any:
    """The handle of the device, or why there is none."""
    count = int(_ask("nvmlDeviceGetCount"))
    if not count:
        return _Absence(NOTHING_THERE)
    if visible is None:
        return _first_slice(_ask("nvmlDeviceGetHandleByIndex", 0))
    if names_slices(visible):
        slices = [part for card in range(count) for part in _slices(_told("nvmlDeviceGetHandleByIndex", card))]
        chosen = visible_slices(visible, [_slice_names(part) for part in slices])
        if chosen:
            return slices[chosen[0]]
    else:
        chosen = visible_cards(visible, [_card_uuid(index) for index in range(count)])
        if chosen:
            return _first_slice(_ask("nvmlDeviceGetHandleByIndex", chosen[0]))
    devices = f"{count} GPU{'s' if count > 1 else ''} that {'are' if count > 1 else 'is'} present"
    return _Absence(f"no GPU is visible: CUDA_VISIBLE_DEVICES is {shown(visible)}, which leaves none of the {devices}")


def _card_uuid(index: int) -> str:
    """Empty of a card that the driver has lost: it keeps its place."""
    handle = _told("nvmlDeviceGetHandleByIndex", index)
    return _text(_told("nvmlDeviceGetUUID", handle) or "") if handle is not None else ""


def _first_slice(handle: Any) -> Any:
    """Of a card in MIG mode CUDA uses the first slice."""
    if not _is_cut(handle):
        return handle
    found = _slices(handle)
    return found[0] if found else _Absence("no GPU is usable: the card present is in MIG mode, and no slice of it has been made")


def _is_cut(handle: Any) -> bool:
    """A card in MIG mode."""
    mode = _told("nvmlDeviceGetMigMode", handle)
    return mode is not None and mode[0] == pynvml.NVML_DEVICE_MIG_ENABLE


def _slices(card: Any) -> list[Any]:
    """The MIG slices that a card has been cut into."""
    if card is None or not _is_cut(card):
        return []
    found = (
        _told("nvmlDeviceGetMigDeviceHandleByIndex", card, index) for index in range(_told("nvmlDeviceGetMaxMigDeviceCount", card) or 0)
    )
    return [part for part in found if part is not None]


def _slice_names(part: Any) -> tuple[str, str]:
    """Its UUID, and what drivers before 470 called it."""
    card = _told("nvmlDeviceGetDeviceHandleFromMigDeviceHandle", part)
    places = (_told("nvmlDeviceGetGpuInstanceId", part), _told("nvmlDeviceGetComputeInstanceId", part))
    return _text(_told("nvmlDeviceGetUUID", part) or ""), f"MIG-{_text(_told('nvmlDeviceGetUUID', card) or '')}/{places[0]}/{places[1]}"


def _describe(handle: Any) -> DeviceInfo:
    above = _told("nvmlDeviceGetDeviceHandleFromMigDeviceHandle", handle)
    card = handle if above is None else above  # slices know no clocks
    name, uuid = _text(_ask("nvmlDeviceGetName", handle)), _text(_ask("nvmlDeviceGetUUID", handle))
    figures = _figures(handle, card, name, uuid)
    cuda = int(_ask("nvmlSystemGetCudaDriverVersion_v2"))
    power_mw, load = _told("nvmlDeviceGetEnforcedPowerLimit", card), _told("nvmlDeviceGetUtilizationRates", card)
    clocks = (_told("nvmlDeviceGetClockInfo", card, kind) for kind in (pynvml.NVML_CLOCK_SM, pynvml.NVML_CLOCK_MEM))
    sm_clock, memory_clock = (None if mhz is None else float(mhz) for mhz in clocks)
    return DeviceInfo(
        name=name,
        uuid=uuid,
        sms=figures.sms,
        memory_bytes=figures.memory_bytes,
        memory_free_bytes=getattr(_told("nvmlDeviceGetMemoryInfo", handle), "free", None),
        compute_capability=figures.compute_capability,
        driver=_text(_ask("nvmlSystemGetDriverVersion")),
        cuda=f"{cuda // 1000}.{cuda % 1000 // 10}",
        sm_clock_mhz=sm_clock,
        memory_clock_mhz=memory_clock,
        power_limit_w=None if power_mw is None else power_mw / 1000,
        others=len(_told("nvmlDeviceGetComputeRunningProcesses", handle) or ()),
        busy_percent=0 if load is None else int(load.gpu),
    )


def _figures(handle: Any, card: Any, name: str, uuid: str) -> CudaFigures:
    """What has to be known of a device, from NVML; what that does not tell, from CUDA, or else from the file of this GPU."""
    missing: list[str] = []

    def asked(query: Callable[[], T]) -> T | None:
        try:
            return query()
        except _Silent as silent:
            missing.append(str(silent))
            return None

    capability = asked(lambda: tuple(_ask("nvmlDeviceGetCudaComputeCapability", card)))
    sms = asked(lambda: _sms(handle, capability))
    memory = asked(lambda: int(_ask("nvmlDeviceGetMemoryInfo", handle).total))
    if capability and sms and memory:
        return CudaFigures(sms=sms, memory_bytes=memory, compute_capability=(capability[0], capability[1]))
    try:
        other = cuda_figures(uuid)
    except CudaSilent as silent:
        file = _file_of(name, capability)
        if file is None or file.sms is None:
            raise _Silent("; ".join((*missing, str(silent)))) from None
        other = CudaFigures(sms=file.sms, memory_bytes=file.memory_bytes, compute_capability=file.compute_capability)
    return CudaFigures(
        sms=sms or other.sms,
        memory_bytes=memory or other.memory_bytes,
        compute_capability=(capability[0], capability[1]) if capability else other.compute_capability,
    )


def _sms(handle: Any, capability: tuple[int, ...] | None) -> int:
    """SMs of a card by its cores; of a MIG slice by its attributes."""
    attributes = _told("nvmlDeviceGetAttributes", handle)
    if attributes is not None:
        return int(attributes.multiprocessorCount)
    cores = int(_ask("nvmlDeviceGetNumGpuCores", handle))
    of_an_sm = CORES_PER_SM.get((capability[0], capability[1])) if capability else None
    if of_an_sm is None:
        raise _Silent(f"nvmlDeviceGetNumGpuCores: {cores}, of compute capability {capability}, whose cores an SM are not known")
    return cores // of_an_sm


def _file_of(name: str, capability: tuple[int, ...] | None) -> Hardware | None:
    """The GPU whose file names this device, if only one does."""
    files = [gpu for gpu in map(load_gpu, gpu_names()) if name in gpu.device_names and capability in (None, gpu.compute_capability)]
    return files[0] if len(files) == 1 else None


def _text(value: str | bytes) -> str:
    return value.decode(errors="replace") if isinstance(value, bytes) else value


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
    """What else works the GPU or holds its memory, in sentences."""
    return tuple(filter(None, (_load_warning(device), _memory_warning(device))))


def _load_warning(device: DeviceInfo) -> str:
    if device.others:
        who = f"{device.others} other process{'es' if device.others > 1 else ''} on {device.name}"
    elif device.busy_percent > BUSY_PERCENT:
        who = f"{device.name} was busy {device.busy_percent} % of the time before anything was started"
    else:
        return ""
    return f"{who}: times may be longer than they need be"


def _memory_warning(device: DeviceInfo) -> str:
    free, total = device.memory_free_bytes, device.memory_bytes
    if free is None or free >= LITTLE_FREE * total:
        return ""
    return f"{free / 2**30:.1f} of the {total / 2**30:.1f} GiB of {device.name} are free: what needs more cannot be measured"
