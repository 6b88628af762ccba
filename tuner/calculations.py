"""The hand calculations as text: the roofline of a product and the occupancy of a CTA, for any GPU file."""

from __future__ import annotations

from cost_models.roofline import on_chip_bytes, roofline
from search_spaces.errors import UserError
from search_spaces.gpu_files import readable_gpus
from search_spaces.hardware import Hardware
from search_spaces.occupancy import occupancy
from search_spaces.plain_text import shown, whole_number
from search_spaces.problem import MAX_EXTENT, Problem
from search_spaces.schedule import LARGEST_VALUE, Tile
from tuner.report import table


def parse_tile(text: str) -> Tile | None:
    if not text:
        return None
    words = text.split("x")
    if len(words) != 3:
        raise UserError(f"tile {shown(text)} is not MxNxK; for example 128x128x32")
    m, n, k = (whole_number(word, f"tile {shown(text)}: {name}", least=1, most=MAX_EXTENT) for name, word in zip("MNK", words, strict=True))
    return Tile(m, n, k)


def roofline_facts(problem: Problem, hardware: Hardware, tile: str) -> dict[str, float | str]:
    """FLOPs, bytes, FLOP/B, seconds."""
    cta = parse_tile(tile)
    roof = roofline(problem, hardware, cta)
    facts: dict[str, float | str] = {
        "flops": roof.flops,
        "dram_bytes": roof.dram_bytes,
        "intensity": roof.intensity,
        "ridge": roof.ridge,
        "attainable_flops": roof.attainable_flops,
        "compute_seconds": roof.compute_seconds,
        "memory_seconds": roof.memory_seconds,
        "lower_bound_seconds": roof.lower_bound_seconds,
        "upper_bound_seconds": roof.upper_bound_seconds,
        "limiter": roof.limiter,
    }
    if cta is not None:
        facts["operand_buffer_bytes"], facts["accumulator_bytes"] = on_chip_bytes(cta, problem.element_bytes)
    return facts


def roofline_text(problem: Problem, hardware: Hardware, tile: str) -> str:
    facts = roofline_facts(problem, hardware, tile)
    rows = [(name, value if isinstance(value, str) else f"{value:.6g}") for name, value in facts.items()]
    how = f"CTA tile {tile}, no reuse between tiles" if tile else "every element read once"
    return table(("figure", ">value"), rows, title=f"{problem.shape} {problem.dtype} on {hardware.name}: {how}")


def occupancy_facts(hardware: Hardware, warps: int, registers: int, shared_memory_bytes: int) -> dict[str, float]:
    given = {"warps": warps, "registers": registers, "bytes of shared memory": shared_memory_bytes}
    for what, value in given.items():
        if value > LARGEST_VALUE:
            raise UserError(f"{value} {what} are over the {LARGEST_VALUE} that are reckoned with; no CTA has as many")
    found = occupancy(hardware, warps=warps, registers_per_thread=registers, shared_memory_bytes=shared_memory_bytes)
    return {
        "Block Limit SM": int(found.limit_ctas),
        "Block Limit Registers": int(found.limit_registers),
        "Block Limit Shared Mem": int(found.limit_shared_memory),
        "Block Limit Warps": int(found.limit_warps),
        "Theoretical Active Warps per SM": int(found.warps_per_sm),
        "Theoretical Occupancy": round(100 * float(found.theoretical), 2),
    }


def occupancy_text(hardware: Hardware, warps: int, registers: int, shared_memory_bytes: int) -> str:
    """Laid out as the Occupancy section of Nsight Compute."""
    facts = occupancy_facts(hardware, warps, registers, shared_memory_bytes)
    units = {"Theoretical Occupancy": "%", "Theoretical Active Warps per SM": "warp"}
    rows = [(name, units.get(name, "block"), value) for name, value in facts.items()]
    title = f"{hardware.name}: {warps} warps, {registers} registers a thread, {shared_memory_bytes} B of shared memory"
    return table(("Metric Name", "Metric Unit", ">Metric Value"), rows, title=title)


def gpus_text() -> str:
    """The GPU files with the figures that decide most, `-` where no public source gives one; then a line for each that cannot be read."""
    rows = []
    readable, faults = readable_gpus()
    for hardware in readable:
        major, minor = hardware.compute_capability
        peak = hardware.peak_flops.get("bf16") or hardware.peak_flops.get("fp16") or 0
        l2 = f"{hardware.l2_bytes / 2**20:.0f}" if hardware.l2_bytes else "-"
        figures = (hardware.sms or "-", f"{peak / 1e12:.0f}", f"{hardware.dram_bytes_per_second / 1e9:.0f}", l2)
        rows.append((hardware.name, f"{major}.{minor}", *figures, hardware.title))
    listed = table(("name", ">cc", ">SMs", ">TFLOP/s", ">GB/s", ">L2 MiB", "GPU"), rows)
    return "\n".join([listed, *(f"not readable: {fault}" for fault in faults)])
