"""Whose measurements may answer on this machine, today: the scope that `best`, `export`, `bench` and warm starts ask the store with."""

from __future__ import annotations

from typing import Any

from db.best import Scope
from db.records import Environment
from search_spaces.gpu_files import on_device
from search_spaces.hardware import Hardware
from tuner.environment import device_present, environment
from tuner.kernels import kernel_hashes
from tuner.request import DEFAULT_MODEL


def scope_of(hardware: Hardware, *, model: str = "", **narrowed: Any) -> Scope:
    """Of this GPU, today's kernels first, and this machine's environment where the GPU is here. narrowed: fields of `Scope`. model: whose
    predictions answer where nothing is measured; the default model's unless named."""
    return Scope(
        gpu=hardware.name,
        sms=hardware.sms,
        device_names=hardware.device_names,
        here=environment_here(hardware),
        kernel_hashes=kernel_hashes(),
        models=(model or DEFAULT_MODEL,),
        **narrowed,
    )


def environment_here(hardware: Hardware) -> Environment | None:
    """This machine's environment, where its GPU is the one that is meant."""
    device = device_present()
    if device is None:
        return None
    place = {"sms": device.sms, "memory_bytes": device.memory_bytes, "compute_capability": device.compute_capability}
    present = on_device(hardware, device.name, **place)  # type: ignore[arg-type]
    return environment(hardware.name, device) if present is not None and present.name == hardware.name else None
