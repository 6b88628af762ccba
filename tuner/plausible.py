"""Can this machine have taken so short a time? What beats the peak was not timed right, whoever says so."""

from __future__ import annotations

from cost_models.roofline import beyond_l2_bytes, fastest_flops, shortest_seconds
from search_spaces.hardware import Hardware
from search_spaces.problem import Problem


def beyond_peak(us: float, problem: Problem, hardware: Hardware | None) -> str:
    """Why a product cannot have taken so many microseconds, with both numbers; empty where it can, or where the peak is not known."""
    shortest = shortest_seconds(problem, hardware) if hardware else None
    if hardware is None or shortest is None or us * 1e-6 >= shortest:
        return ""
    flops, fastest = problem.flops / (us * 1e-6), fastest_flops(problem.dtype, hardware)
    assert fastest is not None, "there is a shortest time"
    if flops > fastest:
        peak = hardware.peak_flops[problem.dtype]
        highest = f" ({_tera(fastest)} at its highest clock)" if fastest > peak else ""
        return f"{_time(us)} us is {_tera(flops)} TFLOP/s, {hardware.name}'s peak is {_tera(peak)}{highest}"
    rate = beyond_l2_bytes(problem, hardware) / (us * 1e-6)
    return (
        f"{_time(us)} us is {_tera(rate)} TB/s of what L2 cannot hold, {hardware.name}'s DRAM has {_tera(hardware.dram_bytes_per_second)}"
    )


def _tera(value: float) -> str:
    tera = value / 1e12
    return f"{tera:.0f}" if tera >= 100 else f"{tera:.3g}"


def _time(us: float) -> str:
    return f"{us:.2f}" if us >= 1 else f"{us:.3g}"
