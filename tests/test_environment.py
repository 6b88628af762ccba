"""What the driver says of the machine, and what is made of a driver that says less: the driver is a stand-in."""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pynvml
import pytest

from search_spaces.errors import MachineFault
from tuner import cuda_driver
from tuner import environment as machine
from tuner.environment import (
    DeviceInfo,
    device_present,
    environment,
    load_warnings,
    require_sound_driver,
    why_no_device,
)

GIB = 2**30


class Driver:
    """Two cards, by index; the second can be in MIG mode, with one slice in place 1."""

    def __init__(self) -> None:
        self.names = {0: "NVIDIA H200", 1: "NVIDIA A100-SXM4-40GB", "slice": "NVIDIA A100-SXM4-40GB MIG 3g.20gb"}
        self.uuids = {0: "GPU-aaaa", 1: "GPU-bbbb", "slice": "MIG-cccc"}
        self.count = 2
        self.capability = (9, 0)
        self.free: dict[Any, int] = {}
        self.mig = False
        self.sliced = True
        self.processes: list[int] = []
        self.busy = 0
        self.silent: set[str] = set()  # queries that are not supported
        self.failing: dict[str, int] = {}  # queries that fail otherwise, and NVML's number for how

    def __getattr__(self, name: str) -> Any:
        return getattr(pynvml, name)  # constants and exceptions

    def refuse(self, name: str) -> None:
        if name in self.silent:
            raise pynvml.NVMLError(pynvml.NVML_ERROR_NOT_SUPPORTED)
        if name in self.failing:
            raise pynvml.NVMLError(self.failing[name])

    def nvmlInit(self) -> None:
        self.refuse("nvmlInit")

    def nvmlDeviceGetCount(self) -> int:
        self.refuse("nvmlDeviceGetCount")
        return self.count

    def nvmlDeviceGetHandleByIndex(self, index: int) -> Any:
        self.refuse("nvmlDeviceGetHandleByIndex")
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

    def nvmlDeviceGetGpuInstanceId(self, handle: Any) -> int:
        return 3

    def nvmlDeviceGetComputeInstanceId(self, handle: Any) -> int:
        return 0

    def nvmlDeviceGetAttributes(self, handle: Any) -> Any:
        if handle != "slice":
            raise pynvml.NVMLError(pynvml.NVML_ERROR_NOT_SUPPORTED)
        return SimpleNamespace(multiprocessorCount=42)

    def _whole(self, handle: Any) -> None:
        if handle == "slice":
            raise pynvml.NVMLError(pynvml.NVML_ERROR_NOT_SUPPORTED)

    def nvmlDeviceGetCudaComputeCapability(self, handle: Any) -> tuple[int, int]:
        self._whole(handle)
        self.refuse("nvmlDeviceGetCudaComputeCapability")
        return self.capability if handle == 0 else (8, 0)

    def nvmlDeviceGetNumGpuCores(self, handle: Any) -> int:
        self._whole(handle)
        self.refuse("nvmlDeviceGetNumGpuCores")
        return 16896 if handle == 0 else 6912

    def nvmlSystemGetCudaDriverVersion_v2(self) -> int:
        return 13000

    def nvmlSystemGetDriverVersion(self) -> str:
        self.refuse("nvmlSystemGetDriverVersion")
        return "580.159.04"

    def nvmlDeviceGetName(self, handle: Any) -> str:
        return self.names[handle]

    def nvmlDeviceGetUUID(self, handle: Any) -> str:
        return self.uuids[handle]

    def nvmlDeviceGetMemoryInfo(self, handle: Any) -> Any:
        self.refuse("nvmlDeviceGetMemoryInfo")
        total = {0: 140 * GIB, 1: 40 * GIB, "slice": 20 * GIB}[handle]
        return SimpleNamespace(total=total, free=self.free.get(handle, total))

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
    monkeypatch.setattr(cuda_driver, "LIBRARY", "libcuda-that-is-not-here.so")
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
        memory_free_bytes=140 * GIB,
    )


@pytest.mark.parametrize(
    ("visible", "name"),
    [
        ("GPU-b", "A100"),
        ("GPU-BBBB", "A100"),
        ("1,7", "A100"),
        ("1gpu", "A100"),
        ("1", "A100"),
        ("1,0", "A100"),
        ("GPU-bbbb", "A100"),
        ("0", "H200"),
        (" 0 ,1", "H200"),
    ],
)
def test_the_first_visible_card_counts(driver: Driver, monkeypatch: pytest.MonkeyPatch, visible: str, name: str) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    assert name in present().name


@pytest.mark.parametrize("visible", ["", "-1", "-1,0", "7", "GPU-none", "nonsense"])
def test_nothing_visible_is_no_gpu(driver: Driver, monkeypatch: pytest.MonkeyPatch, visible: str) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    assert device_present() is None


@pytest.mark.parametrize("visible", ["7", "0,0", "GPU-", "GPU-none", "MIG-cccc", ""])
def test_what_hides_every_gpu_is_said(driver: Driver, monkeypatch: pytest.MonkeyPatch, visible: str) -> None:
    """It may be meant so: whoever asks for a search without a GPU gets one."""
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    words = f"no GPU is visible: CUDA_VISIBLE_DEVICES is '{visible}', which leaves none of the 2 GPUs that are present"
    assert why_no_device() == words
    require_sound_driver()


def test_no_driver_is_no_gpu(driver: Driver) -> None:
    driver.silent = {"nvmlInit"}
    assert device_present() is None


@pytest.mark.parametrize(
    ("code", "reason", "is_fault"),
    [
        (pynvml.NVML_ERROR_LIBRARY_NOT_FOUND, "no GPU is present", False),
        (pynvml.NVML_ERROR_DRIVER_NOT_LOADED, "no GPU is present, or its driver is not loaded", False),
        (pynvml.NVML_ERROR_LIB_RM_VERSION_MISMATCH, "the NVIDIA driver in the kernel is of another version than its libraries", True),
        (pynvml.NVML_ERROR_NO_PERMISSION, "this user may not use the GPU that is present", True),
        (pynvml.NVML_ERROR_UNKNOWN, "the NVIDIA driver does not answer (nvmlInit: Unknown Error)", True),
        (pynvml.NVML_ERROR_TIMEOUT, "the NVIDIA driver does not answer (nvmlInit: Timeout)", True),
    ],
)
def test_a_driver_that_is_not_ready_is_no_lack_of_a_gpu(driver: Driver, code: int, reason: str, is_fault: bool) -> None:
    driver.failing = {"nvmlInit": code}
    assert device_present() is None
    assert why_no_device().startswith(reason)
    if is_fault:
        with pytest.raises(MachineFault, match=r"^cannot measure: .*; mend that, or leave measuring out with --no-measure$"):
            require_sound_driver()
    else:
        require_sound_driver()


def test_a_machine_without_cards_has_no_gpu(driver: Driver) -> None:
    driver.count = 0
    assert (device_present(), why_no_device()) == (None, "no GPU is present")
    require_sound_driver()


@pytest.mark.parametrize("query", ["nvmlDeviceGetCount", "nvmlDeviceGetHandleByIndex", "nvmlSystemGetDriverVersion"])
def test_a_gpu_that_the_driver_says_too_little_of_is_a_fault_that_names_the_query(driver: Driver, query: str) -> None:
    driver.failing = {query: pynvml.NVML_ERROR_GPU_IS_LOST}
    assert device_present() is None
    assert why_no_device() == f"a GPU is present whose driver does not say what has to be known of it ({query}: GPU is lost)"
    with pytest.raises(MachineFault, match=query):
        require_sound_driver()


def test_a_lost_card_keeps_its_place(driver: Driver, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "GPU-bbbb")
    driver.uuids[0] = None  # type: ignore[assignment]
    assert present().uuid == "GPU-bbbb"


class FakeCuda:
    """CUDA's driver as ctypes sees it: one GB10, by its own account."""

    def __init__(self, uuid: str) -> None:
        self.uuid = bytes.fromhex(uuid)

    def cuInit(self, flags: int) -> int:
        return 0

    def cuDeviceGetCount(self, count: Any) -> int:
        count._obj.value = 1
        return 0

    def cuDeviceGetUuid_v2(self, found: Any, device: int) -> int:
        found[:] = self.uuid
        return 0

    def cuDeviceTotalMem_v2(self, found: Any, device: int) -> int:
        found._obj.value = 119 * GIB
        return 0

    def cuDeviceGetAttribute(self, found: Any, which: int, device: int) -> int:
        found._obj.value = {16: 48, 75: 12, 76: 1}[which]
        return 0


UNIFIED = [
    ({"nvmlDeviceGetMemoryInfo"}, (132, 119 * GIB, (9, 0))),
    ({"nvmlDeviceGetNumGpuCores"}, (48, 140 * GIB, (9, 0))),
    ({"nvmlDeviceGetNumGpuCores", "nvmlDeviceGetMemoryInfo"}, (48, 119 * GIB, (9, 0))),
    ({"nvmlDeviceGetNumGpuCores", "nvmlDeviceGetMemoryInfo", "nvmlDeviceGetCudaComputeCapability"}, (48, 119 * GIB, (12, 1))),
]


@pytest.mark.parametrize(("silent", "figures"), UNIFIED)
def test_what_nvml_does_not_tell_cuda_does(
    driver: Driver, monkeypatch: pytest.MonkeyPatch, silent: set[str], figures: tuple[int, int, tuple[int, int]]
) -> None:
    driver.silent, driver.uuids[0] = silent, "GPU-3f81a4dc-7511-5193-52a3-d1a6eb5ae227"
    monkeypatch.setattr("ctypes.CDLL", lambda name: FakeCuda("3f81a4dc7511519352a3d1a6eb5ae227"))
    found = present()
    assert (found.sms, found.memory_bytes, found.compute_capability) == figures
    assert load_warnings(found) == ()


def test_what_neither_tells_is_in_the_gpu_s_file(driver: Driver) -> None:
    driver.silent = {"nvmlDeviceGetNumGpuCores", "nvmlDeviceGetMemoryInfo"}
    found = present()
    assert (found.sms, found.memory_bytes, found.memory_free_bytes) == (132, 141 * GIB, None)


def test_what_nobody_tells_is_a_sentence_that_names_every_query(driver: Driver) -> None:
    driver.silent, driver.names[0] = {"nvmlDeviceGetNumGpuCores", "nvmlDeviceGetMemoryInfo"}, "NVIDIA GB10"
    assert device_present() is None
    assert why_no_device() == (
        "a GPU is present whose driver does not say what has to be known of it (nvmlDeviceGetNumGpuCores: Not Supported;"
        " nvmlDeviceGetMemoryInfo: Not Supported; libcuda-that-is-not-here.so is missing)"
    )


def test_cores_of_a_chip_that_is_not_known_are_not_guessed_at(driver: Driver) -> None:
    driver.capability, driver.names[0] = (14, 2), "NVIDIA of tomorrow"
    assert device_present() is None
    assert "nvmlDeviceGetNumGpuCores: 16896, of compute capability (14, 2), whose cores an SM are not known" in why_no_device()


@pytest.mark.parametrize("visible", ["1", "GPU-bbbb", "MIG-cccc", "MIG-c", "MIG-GPU-bbbb/3/0"])
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
    assert why_no_device() == "no GPU is usable: the card present is in MIG mode, and no slice of it has been made"


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


def test_little_free_memory_is_told(driver: Driver) -> None:
    driver.free = {0: 12 * GIB}
    words = "12.0 of the 140.0 GiB of NVIDIA H200 are free: what needs more cannot be measured"
    assert load_warnings(present()) == (words,)
    driver.free, driver.processes = {0: 70 * GIB - 1}, [17]
    device_present.cache_clear()
    assert [warning.split(":")[0] for warning in load_warnings(present())] == [
        "1 other process on NVIDIA H200",
        "70.0 of the 140.0 GiB of NVIDIA H200 are free",
    ]


def test_half_of_the_memory_is_enough(driver: Driver) -> None:
    driver.free = {0: 70 * GIB}
    assert load_warnings(present()) == ()


def test_environment_of_a_measurement(driver: Driver) -> None:
    found = environment("h200", present())
    assert (found.gpu, found.device_name, found.sms, found.compute_capability) == ("h200", "NVIDIA H200", 132, "9.0")
    assert (found.driver, found.cuda) == ("580.159.04", "13.0")
    assert found.triton[0].isdigit()


def test_environment_without_a_device() -> None:
    found = environment("h100", None)
    assert (found.gpu, found.device_name, found.sms, found.driver) == ("h100", None, None, None)
