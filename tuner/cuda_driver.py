"""What CUDA's driver says of a device where NVML says nothing, as on chips that share the memory of their host (GB10, Jetson, Thor). Makes
no context."""

from __future__ import annotations

import ctypes
from dataclasses import dataclass
from typing import Any

LIBRARY = "libcuda.so.1"
MULTIPROCESSORS, MAJOR, MINOR = 16, 75, 76  # of CUdevice_attribute


class CudaSilent(Exception):
    """The name of the query that failed, and how."""


@dataclass(frozen=True, kw_only=True)
class CudaFigures:
    sms: int
    memory_bytes: int
    compute_capability: tuple[int, int]


def cuda_figures(uuid: str) -> CudaFigures:
    """Of the visible device with this UUID, as NVML writes it. Raises CudaSilent."""
    try:
        cuda = ctypes.CDLL(LIBRARY)
    except OSError:
        raise CudaSilent(f"{LIBRARY} is missing") from None
    _call(cuda, "cuInit", 0)
    count = ctypes.c_int()
    _call(cuda, "cuDeviceGetCount", ctypes.byref(count))
    for device in range(count.value):
        found = (ctypes.c_ubyte * 16)()
        _call(cuda, "cuDeviceGetUuid_v2", found, device)
        if bytes(found).hex() == uuid.lower().removeprefix("gpu-").removeprefix("mig-").replace("-", ""):
            return _figures(cuda, device)
    raise CudaSilent(f"cuDeviceGetUuid_v2: none of {count.value} devices is {uuid}")


def _figures(cuda: Any, device: int) -> CudaFigures:
    def attribute(which: int) -> int:
        value = ctypes.c_int()
        _call(cuda, "cuDeviceGetAttribute", ctypes.byref(value), which, device)
        return value.value

    memory = ctypes.c_size_t()
    _call(cuda, "cuDeviceTotalMem_v2", ctypes.byref(memory), device)
    capability = (attribute(MAJOR), attribute(MINOR))
    return CudaFigures(sms=attribute(MULTIPROCESSORS), memory_bytes=memory.value, compute_capability=capability)


def _call(cuda: Any, query: str, *arguments: Any) -> None:
    try:
        code = getattr(cuda, query)(*arguments)
    except AttributeError:
        raise CudaSilent(f"{query}: not in this driver") from None
    if code:
        raise CudaSilent(f"{query}: error {code}")
