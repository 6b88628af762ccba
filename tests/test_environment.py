"""What the driver says of the machine, and what is made of a driver that says less: the driver is a stand-in."""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pynvml
import pytest

from tuner import environment as machine
from tuner.environment import DeviceInfo, device_present, environment, load_warnings

GIB = 2**30


class Driver:
    """Two cards, by index; the second can be in MIG mode, with one slice in place 1."""

    def __init__(self) -> None:
        self.names = {0: "NVIDIA H200", 1: "NVIDIA A100-SXM4-40GB", "slice": "NVIDIA A100-SXM4-40GB MIG 3g.20gb"}
        self.uuids = {0: "GPU-aaaa", 1: "GPU-bbbb", "slice": "MIG-cccc"}
        self.mig = False
        self.sliced = True
        self.processes: list[int] = []
        self.busy = 0
        self.silent: set[str] = set()

    def __getattr__(self, name: str) -> Any:
        return getattr(pynvml, name)  # constants and exceptions

    def refuse(self, name: str) -> None:
        if name in self.silent:
            raise pynvml.NVMLError(pynvml.NVML_ERROR_NOT_SUPPORTED)

    def nvmlInit(self) -> None:
        self.refuse("nvmlInit")

    def nvmlDeviceGetCount(self) -> int:
        return 2

    def nvmlDeviceGetHandleByIndex(self, index: int) -> Any:
        if index not in (0, 1):
            raise pynvml.NVMLError(pynvml.NVML_ERROR_INVALID_ARGUMENT)
        return index

    def nvmlDeviceGetHandleByUUID(self, uuid: str) -> Any:
        for handle, known in self.uuids.items():
            if known == uuid:
                return handle
        raise pynvml.NVMLError(pynvml.NVML_ERROR_NOT_FOUND)

    def nvmlDeviceGetMigMode(self, handle: Any) -> list[int]:
        if handle != 1:
            raise pynvml.NVMLError(pynvml.NVML_ERROR_NOT_SUPPORTED)
        return [int(self.mig), int(self.mig)]

    def nvmlDeviceGetMaxMigDeviceCount(self, handle: Any) -> int:
        return 7

    def nvmlDeviceGetMigDeviceHandleByIndex(self, handle: Any, index: int) -> Any:
        if index != 1 or not self.sliced:
            raise pynvml.NVMLError(pynvml.NVML_ERROR_NOT_FOUND)
        return "slice"

    def nvmlDeviceGetDeviceHandleFromMigDeviceHandle(self, handle: Any) -> Any:
        if handle != "slice":
            raise pynvml.NVMLError(pynvml.NVML_ERROR_INVALID_ARGUMENT)
        return 1

    def nvmlDeviceGetAttributes(self, handle: Any) -> Any:
        if handle != "slice":
            raise pynvml.NVMLError(pynvml.NVML_ERROR_NOT_SUPPORTED)
        return SimpleNamespace(multiprocessorCount=42)

    def _whole(self, handle: Any) -> None:
        if handle == "slice":
            raise pynvml.NVMLError(pynvml.NVML_ERROR_NOT_SUPPORTED)

    def nvmlDeviceGetCudaComputeCapability(self, handle: Any) -> tuple[int, int]:
        self._whole(handle)
        return (9, 0) if handle == 0 else (8, 0)

    def nvmlDeviceGetNumGpuCores(self, handle: Any) -> int:
        self._whole(handle)
        return 16896 if handle == 0 else 6912

    def nvmlSystemGetCudaDriverVersion_v2(self) -> int:
        return 13000

    def nvmlSystemGetDriverVersion(self) -> str:
        return "580.159.04"

    def nvmlDeviceGetName(self, handle: Any) -> str:
        return self.names[handle]

    def nvmlDeviceGetUUID(self, handle: Any) -> str:
        return self.uuids[handle]

    def nvmlDeviceGetMemoryInfo(self, handle: Any) -> Any:
        return SimpleNamespace(total={0: 140 * GIB, 1: 40 * GIB, "slice": 20 * GIB}[handle])

    def nvmlDeviceGetClockInfo(self, handle: Any, kind: int) -> int:
        self._whole(handle)
        self.refuse("clocks")
        return 1980 if kind == pynvml.NVML_CLOCK_SM else 3201

    def nvmlDeviceGetEnforcedPowerLimit(self, handle: Any) -> int:
        self._whole(handle)
        self.refuse("power")
        return 700_000

    def nvmlDeviceGetUtilizationRates(self, handle: Any) -> Any:
        self._whole(handle)
        self.refuse("load")
        return SimpleNamespace(gpu=self.busy)

    def nvmlDeviceGetComputeRunningProcesses(self, handle: Any) -> list[int]:
        self.refuse("processes")
        return self.processes


@pytest.fixture
def driver(monkeypatch: pytest.MonkeyPatch) -> Iterator[Driver]:
    made = Driver()
    monkeypatch.setattr(machine, "pynvml", made)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    device_present.cache_clear()
    yield made
    device_present.cache_clear()


def present() -> DeviceInfo:
    found = device_present()
    assert found is not None
    return found


def test_a_card_is_described(driver: Driver) -> None:
    assert present() == DeviceInfo(
        name="NVIDIA H200",
        uuid="GPU-aaaa",
        sms=132,
        memory_bytes=140 * GIB,
        compute_capability=(9, 0),
        driver="580.159.04",
        cuda="13.0",
        sm_clock_mhz=1980.0,
        memory_clock_mhz=3201.0,
        power_limit_w=700.0,
        others=0,
        busy_percent=0,
    )


@pytest.mark.parametrize(("visible", "name"), [("1", "A100"), ("1,0", "A100"), ("GPU-bbbb", "A100"), ("0", "H200"), (" 0 ,1", "H200")])
def test_the_first_visible_card_counts(driver: Driver, monkeypatch: pytest.MonkeyPatch, visible: str, name: str) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    assert name in present().name


@pytest.mark.parametrize("visible", ["", "-1", "-1,0", "7", "GPU-none", "nonsense"])
def test_nothing_visible_is_no_gpu(driver: Driver, monkeypatch: pytest.MonkeyPatch, visible: str) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    assert device_present() is None


def test_no_driver_is_no_gpu(driver: Driver) -> None:
    driver.silent = {"nvmlInit"}
    assert device_present() is None


@pytest.mark.parametrize("visible", ["1", "GPU-bbbb", "MIG-cccc"])
def test_a_mig_slice_is_not_the_card(driver: Driver, monkeypatch: pytest.MonkeyPatch, visible: str) -> None:
    driver.mig = True
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    found = present()
    assert (found.name, found.uuid, found.sms) == ("NVIDIA A100-SXM4-40GB MIG 3g.20gb", "MIG-cccc", 42)
    assert (found.memory_bytes, found.compute_capability, found.sm_clock_mhz) == (20 * GIB, (8, 0), 1980.0)


def test_mig_mode_without_a_slice_leaves_nothing_to_run_on(driver: Driver, monkeypatch: pytest.MonkeyPatch) -> None:
    driver.mig, driver.sliced = True, False
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1")
    assert device_present() is None


def test_a_driver_that_says_little_still_shows_its_card(driver: Driver) -> None:
    driver.silent = {"clocks", "power", "load", "processes"}
    found = present()
    assert (found.sm_clock_mhz, found.memory_clock_mhz, found.power_limit_w) == (None, None, None)
    assert load_warnings(found) == ()


def test_others_on_the_card_are_told(driver: Driver) -> None:
    driver.processes = [17, 18]
    assert load_warnings(present()) == ("2 other processes on NVIDIA H200: times may be longer than they need be",)


def test_load_without_a_visible_process_is_told(driver: Driver) -> None:
    """A container does not show the processes of another one."""
    driver.busy = 64
    (warning,) = load_warnings(present())
    assert warning.startswith("NVIDIA H200 was busy 64 % of the time before anything was started")


def test_environment_of_a_measurement(driver: Driver) -> None:
    found = environment("h200", present())
    assert (found.gpu, found.device_name, found.sms, found.compute_capability) == ("h200", "NVIDIA H200", 132, "9.0")
    assert (found.driver, found.cuda) == ("580.159.04", "13.0")
    assert found.triton[0].isdigit()


def test_environment_without_a_device() -> None:
    found = environment("h100", None)
    assert (found.gpu, found.device_name, found.sms, found.driver) == ("h100", None, None, None)
