"""What this machine has for tuning: GPU, versions, compile workers, database. A line each, with what to do where something is missing."""

from __future__ import annotations

import sys
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from db.faults import check_file, resolve
from db.reading import open_reader
from search_spaces.gpu_files import match_device
from search_spaces.plain_text import visible
from tuner.environment import device_present, why_no_device
from tuner.resources import compile_workers

PACKAGES = ("tuner", "torch", "triton", "numpy", "sqlalchemy", "optuna")


def diagnosis(location: str | None) -> str:
    return "\n".join([_gpu_line(), _versions_line(), f"compile workers: {compile_workers()}", _database_line(location)])


def _gpu_line() -> str:
    device = device_present()
    if device is None:
        return f"gpu: {why_no_device()}; searches rank and compile, and do not measure"
    capability = device.compute_capability
    file = match_device(device.name, sms=device.sms, memory_bytes=device.memory_bytes, compute_capability=capability)
    known = f"is {file.name}" if file else "has no file; write one and pass it as --gpu FILE"
    return f"gpu: {device.name}, {device.sms} SMs, driver {device.driver}: {known}"


def _versions_line() -> str:
    found = []
    for package in PACKAGES:
        try:
            found.append(f"{package} {version(package)}")
        except PackageNotFoundError:
            found.append(f"{package} missing")
    return f"python {sys.version.split()[0]}, " + ", ".join(found)


def _database_line(location: str | None) -> str:
    found = resolve(location)
    if isinstance(found, Path) and not check_file(found):
        return f"database: {visible(str(found))}, not there yet; the first search makes it"
    with open_reader(location) as reader:
        trials = sum(reader.stats().trials.values())
        left_out = f", {reader.damaged_rows} left out" if reader.damaged_rows else ""
        return f"database: {reader.location}, {trials} trials{left_out}"
