"""What the database knows, as text and as plain data. Imports neither numpy nor SQLAlchemy, so that `tuner best` answers within a blink."""

from __future__ import annotations

import shlex
from collections.abc import Callable
from dataclasses import asdict
from typing import Any

from db.best import Scope
from db.reading import keep_silent, open_reader
from db.records import BestAnswer, Stats
from db.urls import printable_location
from search_spaces.hardware import Hardware
from search_spaces.problem import Problem

DEFAULTS = Problem(m=1, n=1, k=1)
MOST_NEAR = 3  # tuned problems that a message names


def best_answer(
    problem: Problem, location: str | None, scope: Scope, say: Callable[[str], None] = keep_silent
) -> tuple[BestAnswer | None, tuple[Problem, ...]]:
    """What is known for exactly this problem, and where nothing is measured, the tuned problems that one might have meant. say: is told
    what was left out as damaged."""
    with open_reader(location, say) as reader:
        found = reader.best(problem, scope)
        return found, () if found and found.measured else reader.nearest(problem, scope)


def options(problem: Problem) -> str:
    """The options of the command line that name this problem."""
    plain = Problem(m=problem.m, n=problem.n, k=problem.k, dtype=problem.dtype, layout=problem.layout)
    given = [f"--shape {problem.shape}"]
    given += [f"--dtype {problem.dtype}"] if problem.dtype != DEFAULTS.dtype else []
    given += [f"--out-dtype {problem.out_dtype}"] if problem.out_dtype != problem.dtype else []
    given += [f"--layout {problem.layout}"] if problem.layout != DEFAULTS.layout else []
    leading = [getattr(problem, name) if getattr(problem, name) != getattr(plain, name) else 0 for name in ("lda", "ldb", "ldc")]
    given += [f"--ld {','.join(map(str, leading))}"] if any(leading) else []
    given += [f"--alignment {problem.alignment_bytes}"] if problem.alignment_bytes != DEFAULTS.alignment_bytes else []
    return " ".join(given)


def search_command(problem: Problem, hardware: Hardware, location: str | None) -> str:
    """What to type to find an answer where it was looked for."""
    where = f" --db {shlex.quote(printable_location(location))}" if location else ""
    return f"tuner search {options(problem)} --gpu {hardware.name}{where}"


def best_text(problem: Problem, hardware: Hardware, answer: BestAnswer | None, near: tuple[Problem, ...], location: str | None) -> str:
    what = f"{problem.text} on {hardware.name}"
    tuned = f"; tuned are {'; '.join(p.text for p in near[:MOST_NEAR])}" if near else ""
    if answer is None:
        return f"{what}: nothing is known{tuned}; find out with: {search_command(problem, hardware, location)}"
    record = answer.record
    lines = (
        _measured_lines(what, answer)
        if answer.measured
        else [
            f"{what}: not measured; of what compiles, the {record.model} model expects least of {record.schedule}",
            f"predicted {record.estimate.seconds * 1e6:.4g} us, limited by {record.estimate.limiter}{tuned}",
        ]
    )
    if answer.differs:
        lines.append(f"measured elsewhere ({'; '.join(answer.differs)}): `{search_command(problem, hardware, location)}` measures it here")
    if answer.stale:
        lines.append("the kernel's source has changed since: search again before relying on it")
    if record.measurement.spill_slots:
        lines.append(f"it keeps {record.measurement.spill_slots} words a thread in local memory")
    return "\n".join(lines)


def _measured_lines(what: str, answer: BestAnswer) -> list[str]:
    record, place = answer.record, answer.record.environment
    day = f", {record.recorded:%Y-%m-%d}" if record.recorded else ""
    lines = [
        f"{what}: {record.schedule}",
        _times(answer),
        f"warp tile {record.warp_tile}, MMA tile {record.mma_tile}, {record.measurement.mma_instruction or 'instruction unknown'}",
        f"measured on {place.device_name}, driver {place.driver}, Triton {place.triton}, torch {place.torch}{day}",
    ]
    return lines + (["too close to call: " + "; ".join(map(str, answer.ties))] if answer.ties else [])


def _times(answer: BestAnswer) -> str:
    us = answer.finalist.median_us if answer.finalist else answer.record.measurement.median_us
    text = f"{us:.2f} us, {answer.record.problem.flops / us * 1e-6:.0f} TFLOP/s" if us else ""
    if answer.finalist:
        f = answer.finalist
        text += f", {f.ratio:.3f}x cuBLAS [{f.ratio_low:.3f}, {f.ratio_high:.3f}]"
    return text


def best_json(answer: BestAnswer | None, near: tuple[Problem, ...]) -> dict[str, Any]:
    if answer is None:
        return {"found": False, "nearest": [_near_json(p) for p in near]}
    record = answer.record
    return {
        "found": True,
        "measured": answer.measured,
        "stale": answer.stale,
        "differs": list(answer.differs),
        "model": record.model,
        "nearest": [_near_json(p) for p in near],
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


def _near_json(problem: Problem) -> dict[str, Any]:
    return {"text": problem.text, "options": options(problem), **asdict(problem)}


def stats(location: str | None, say: Callable[[str], None] = keep_silent) -> tuple[str, Stats]:
    """(where the database is, how much is in it)."""
    with open_reader(location, say) as reader:
        return reader.location, reader.stats()


def stats_json(found: Stats) -> dict[str, Any]:
    shapes = [{"gpu": gpu, "problem": problem, "trials": count} for (gpu, problem), count in found.shapes.items()]
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
    lines += [f"  {gpu} {problem}: {count}" for (gpu, problem), count in found.shapes.items()]
    return "\n".join(lines)
