"""What a chip can do, as an argument: one `Hardware` a GPU, every figure with its source. `gpu_files` reads them and finds them by name."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from search_spaces.errors import UserError

# figures that a GPU's file gives in a unit people read: field -> its key in the file, and how many of ours one of the file's is
FILE_UNITS: Mapping[str, tuple[str, float]] = {
    "memory_bytes": ("memory_gib", 2**30),
    "dram_bytes_per_second": ("dram_gb_per_second", 1e9),
    "l2_bytes": ("l2_mib", 2**20),
    "peak_flops": ("peak_tflops", 1e12),
    "shared_memory_per_sm_bytes": ("shared_memory_per_sm_kib", 1024),
    "shared_memory_per_cta_bytes": ("shared_memory_per_cta_kib", 1024),
}


@dataclass(frozen=True, kw_only=True)
class Hardware:
    """One GPU. A figure without a public source is None, and `need` says so to whoever asks for it.

    Clocks in MHz, memory in bytes, rates per second unless the name says per clock.
    """

    name: str
    title: str
    compute_capability: tuple[int, int]
    sms: int | None
    peak_clock_mhz: float | None  # the clock that the published tensor peak is computed at
    max_clock_mhz: float | None  # the highest published; left out for boards that go beyond their boost clock
    memory_bytes: int
    dram_bytes_per_second: float
    l2_bytes: int | None
    power_w: float | None
    # dense, fp32 accumulation; fp16 and bf16 on the tensor cores, fp32 on the CUDA cores; a dtype that is absent is not supported
    fma_per_sm_per_clock: Mapping[str, float]
    peak_flops: Mapping[str, float]  # dense, as published, per dtype
    max_warps_per_sm: int
    max_ctas_per_sm: int
    max_threads_per_cta: int
    shared_memory_per_sm_bytes: int
    shared_memory_per_cta_bytes: int
    reserved_shared_memory_per_cta_bytes: int
    shared_memory_granularity_bytes: int
    registers_per_sm: int
    max_registers_per_thread: int
    register_allocation_unit: int  # registers, per warp
    subpartitions_per_sm: int
    has_cp_async: bool
    has_tma: bool
    has_triton_mma: bool  # False where current Triton lowers tl.dot to FMAs (before sm_80)
    device_names: tuple[str, ...]  # what the driver calls it
    sources: Mapping[str, str]  # figure -> where it comes from
    figures_hash: str = ""  # of what the file says, as it was read; another file of the same name has another one

    def need(self, figure: str) -> float:
        """The figure, or a sentence for the user when no public source gives it."""
        value = getattr(self, figure)
        if value is None:
            key = FILE_UNITS.get(figure, (figure, 1.0))[0]
            what = f"gpu {self.name} has no published figure for {figure}"
            raise UserError(f"{what}; copy its YAML file, add {key}, and pass it as --gpu FILE.yaml")
        return float(value)

    @property
    def clock_hz(self) -> float:
        return self.need("peak_clock_mhz") * 1e6
