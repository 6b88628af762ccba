"""What the database knows, as text and as plain data. Imports neither numpy nor SQLAlchemy, so that `tuner best` answers within a blink."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from db.reading import Reader, open_reader
from db.records import BestAnswer, Stats
from search_spaces.hardware import Hardware
from search_spaces.problem import Problem
from tuner.kernels import kernel_hashes


def best_answer(
    problem: Problem, hardware: Hardware, location: str | None, *, unordered: bool = False
) -> tuple[BestAnswer | None, tuple[Problem, ...]]:
    """What is known for exactly this problem, and where nothing is, the nearest problems that are tuned."""
    with open_reader(location) as reader:
        found = reader.best(problem, hardware.name, sms=hardware.sms, kernel_hashes=kernel_hashes(), unordered=unordered)
        near = () if found and found.measured else _nearest(reader, problem, hardware)
    return found, near


def _nearest(reader: Reader, problem: Problem, hardware: Hardware) -> tuple[Problem, ...]:
    return reader.nearest(problem, hardware.name, sms=hardware.sms)


def best_text(problem: Problem, hardware: Hardware, answer: BestAnswer | None, near: tuple[Problem, ...]) -> str:
    what = f"{problem.shape} {problem.dtype} {problem.layout} on {hardware.name}"
    tuned = f"; tuned with the same N and K: {', '.join(p.shape for p in near[:3])}" if near else ""
    if answer is None:
        return f"{what}: nothing is known{tuned}; find out with: tuner search --shape {problem.shape} --gpu {hardware.name}"
    record, lines = answer.record, []
    if answer.measured:
        lines.append(f"{what}: {record.schedule}")
        lines.append(_times(answer))
        lines.append(
            f"warp tile {record.warp_tile}, MMA tile {record.mma_tile}, {record.measurement.mma_instruction or 'instruction unknown'}"
        )
        env = record.environment
        lines.append(
            f"measured on {env.device_name}, driver {env.driver}, Triton {env.triton}, torch {env.torch}, {record.recorded:%Y-%m-%d}"
        )
        if answer.ties:
            lines.append("too close to call: " + "; ".join(map(str, answer.ties)))
    else:
        lines.append(f"{what}: not measured; the model's first choice that compiles is {record.schedule}")
        lines.append(f"predicted {record.estimate.seconds * 1e6:.4g} us, limited by {record.estimate.limiter}{tuned}")
    if answer.stale:
        lines.append("the kernel's source has changed since: search again before relying on it")
    if record.measurement.spill_slots:
        lines.append(f"it keeps {record.measurement.spill_slots} words a thread in local memory")
    return "\n".join(lines)


def _times(answer: BestAnswer) -> str:
    us = answer.finalist.median_us if answer.finalist else answer.record.measurement.median_us
    text = f"{us:.2f} us, {answer.record.problem.flops / us * 1e-6:.0f} TFLOP/s" if us else ""
    if answer.finalist:
        f = answer.finalist
        text += f", {f.ratio:.3f}x cuBLAS [{f.ratio_low:.3f}, {f.ratio_high:.3f}]"
    return text


def best_json(answer: BestAnswer | None, near: tuple[Problem, ...]) -> dict[str, Any]:
    if answer is None:
        return {"found": False, "nearest": [p.shape for p in near]}
    record = answer.record
    return {
        "found": True,
        "measured": answer.measured,
        "stale": answer.stale,
        "schedule": str(record.schedule),
        "family": record.schedule.family,
        **{axis: value for axis, value in asdict(record.schedule).items() if axis != "family"},
        "warp_tile": list(record.warp_tile),
        "mma_tile": list(record.mma_tile),
        "median_us": record.measurement.median_us,
        "predicted_us": record.estimate.seconds * 1e6,
        "finalist": asdict(answer.finalist) if answer.finalist else None,
        "ties": [str(schedule) for schedule in answer.ties],
        "measurement": asdict(record.measurement),
        "environment": asdict(record.environment),
        "trial_id": record.trial_id,
    }


def stats(location: str | None) -> tuple[str, Stats]:
    """(where the database is, how much is in it)."""
    with open_reader(location) as reader:
        return reader.location, reader.stats()


def stats_json(found: Stats) -> dict[str, Any]:
    shapes = [{"gpu": gpu, "shape": shape, "trials": count} for (gpu, shape), count in found.shapes.items()]
    return {
        "runs": dict(found.runs),
        "trials": dict(found.trials),
        "shapes": shapes,
        "finalists": found.finalists,
        "environments": found.environments,
    }


def stats_text(location: str, found: Stats) -> str:
    def counts(items: Any) -> str:
        return ", ".join(f"{count} {name}" for name, count in items) or "none"

    lines = [location, f"runs: {counts(found.runs.items())}", f"trials: {counts(found.trials.items())}"]
    lines += [f"  {gpu} {shape}: {count}" for (gpu, shape), count in found.shapes.items()]
    return "\n".join(lines)
