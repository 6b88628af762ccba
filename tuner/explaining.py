"""Why each schedule fell or ranked where it did: reasons, the model's terms, and predicted against compiled and measured. As text and as
plain data."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from db.faults import check_file, resolve
from db.reading import open_reader
from db.records import Record
from search_spaces.checks import Facts
from search_spaces.constraints import CONSTRAINTS
from search_spaces.hardware import Hardware
from search_spaces.lowering import lower
from search_spaces.problem import Problem
from search_spaces.schedule import Schedule
from search_spaces.space import Space, why_not
from search_spaces.table import ScheduleTable
from tuner.bank_report import placed_facts, placed_text
from tuner.compiling import Compiled, CompilePool
from tuner.ranking import Ranking, pieces, tiles
from tuner.report import microseconds, pruning_text, table
from tuner.resources import compile_workers
from tuner.temporary import temporary_folder
from tuner.workbench import COMPILE_LIMIT_SECONDS, compile_job

NEAR_SHARE = 1.05  # a reject within 5 % of the limit is worth compiling to see whether the arithmetic was too strict


def known_records(problem: Problem, hardware: Hardware, location: str | None, say: Callable[[str], None]) -> list[Record]:
    """All that is stored of this problem on this GPU; nothing where there is no database yet."""
    found = resolve(location)
    if isinstance(found, Path) and not check_file(found):
        return []
    with open_reader(location, say) as reader:
        return list(reader.records(problem=problem, gpu=hardware.name))


@dataclass(frozen=True)
class Agreement:
    """How prediction and compiler agreed on what fits."""

    compiled: int
    false_accepts: tuple[str, ...]  # predicted to fit, refused by the compiler
    false_rejects: tuple[str, ...]  # pruned for shared memory, yet they compile and fit
    exact_shared_memory: int
    register_error: float  # median of |predicted - compiled|


def agreement(records: Sequence[Record], rejected: dict[Schedule, Compiled]) -> Agreement:
    """Predicted against compiled, over stored records and over rejects compiled on purpose."""
    compiled = [r for r in records if r.measurement.shared_memory_bytes is not None]
    register_errors = [
        abs(r.estimate.registers - r.measurement.registers) for r in compiled if r.estimate.registers and r.measurement.registers
    ]
    return Agreement(
        compiled=len(compiled),
        false_accepts=tuple(str(r.schedule) for r in records if r.measurement.status == "out_of_resources"),
        false_rejects=tuple(str(schedule) for schedule, result in rejected.items() if result.status == "ok"),
        exact_shared_memory=sum(r.estimate.shared_memory_bytes == r.measurement.shared_memory_bytes for r in compiled),
        register_error=float(np.median(register_errors)) if register_errors else 0.0,
    )


def nearest_rejects(space: Space, problem: Problem, hardware: Hardware, count: int) -> list[Schedule]:
    """The schedules that fell to shared memory alone by the least, nearest first."""
    found: list[tuple[int, Schedule]] = []
    for piece in pieces(space) if count else ():
        with np.errstate(divide="ignore", invalid="ignore"):
            near = _nearly_fits(piece, problem, hardware)
        need = lower(near, problem, hardware).shared_memory_bytes
        first = np.argsort(need, kind="stable")[:count]
        found += zip(need[first].tolist(), near.take(first).schedules(), strict=True)
    return [schedule for _, schedule in sorted(found, key=lambda pair: pair[0])[:count]]


def _nearly_fits(table: ScheduleTable, problem: Problem, hardware: Hardware) -> ScheduleTable:
    need, limit = lower(table, problem, hardware).shared_memory_bytes, hardware.shared_memory_per_cta_bytes
    near = table.take(np.flatnonzero(np.broadcast_to((need > limit) & (need <= limit * NEAR_SHARE), table.shape)))
    facts, others = Facts(near, problem, hardware, lower(near, problem, hardware)), np.ones(len(near), dtype=bool)
    for rule in CONSTRAINTS:
        if rule.name != "shared_memory":
            others &= rule.check(facts).passes()
    return near.take(others)


def compile_rejects(schedules: Sequence[Schedule], problem: Problem, hardware: Hardware) -> dict[Schedule, Compiled]:
    if not schedules:
        return {}
    with temporary_folder() as folder, CompilePool(compile_workers(), COMPILE_LIMIT_SECONDS, folder) as pool:
        pool.submit([compile_job(schedule, problem, hardware) for schedule in schedules])
        return {job.schedule: compiled for job, compiled in pool.results()}


def schedule_text(schedule: Schedule, ranking: Ranking) -> str:
    """One schedule in full: its three tiles, what it needs, and every term of the model."""
    row = ranking.row_of(schedule)
    if row is None:
        return f"'{schedule}' {_unranked(schedule, ranking)}"
    estimate, below = ranking.estimate(row), tiles(ranking.lowering, row, schedule)
    all_of_it = ", all that a CTA can have" if below.shared_memory_bytes == ranking.hardware.shared_memory_per_cta_bytes else ""
    lines = [
        f"'{schedule}' ranks {row + 1} of {ranking.pruning.survived}",
        f"CTA tile {schedule.cta}, warp tile {below.warp}, MMA tile {below.mma} ({below.instruction})",
        f"{below.registers} registers a thread, {below.shared_memory_bytes} B of shared memory{all_of_it},"
        f" {int(ranking.lowering.k_steps[row])} K steps",
        f"{microseconds(estimate.seconds)} us, limited by {estimate.limiter}",
    ]
    terms = table(("term", ">us"), [(name, microseconds(seconds)) for name, seconds in estimate.terms.items()])
    facts = table(("figure", ">value"), [(name, f"{value:.4g}") for name, value in estimate.facts.items()])
    return "\n".join([*lines, placed_text(schedule, ranking.problem, ranking.hardware), terms, facts])


def schedule_json(schedule: Schedule, ranking: Ranking) -> dict[str, object]:
    """The same as plain data; without a rank, the reason for that."""
    row = ranking.row_of(schedule)
    found: dict[str, object] = {"schedule": str(schedule), "survivors": ranking.pruning.survived}
    if row is None:
        return found | {"rank": None, "reason": _unranked(schedule, ranking)}
    below = tiles(ranking.lowering, row, schedule)
    return (
        found
        | _leader(ranking, row)
        | {
            "cta_tile": str(schedule.cta),
            "instruction": below.instruction,
            "registers": below.registers,
            "shared_memory_bytes": below.shared_memory_bytes,
            "shared_memory_limit_bytes": ranking.hardware.shared_memory_per_cta_bytes,
            "k_steps": int(ranking.lowering.k_steps[row]),
        }
    )


def _unranked(schedule: Schedule, ranking: Ranking) -> str:
    alone = why_not(schedule, ranking.problem, ranking.hardware)
    return f"falls: {alone}" if alone else f"can run, but is not {_missing_from(schedule, ranking)}"


def _missing_from(schedule: Schedule, ranking: Ranking) -> str:
    """Where a schedule would be that can run and has no rank."""
    kept, survived = len(ranking.table), ranking.pruning.survived
    if not ranking.space.holds(schedule):
        return f"in space {ranking.space.name}"
    if kept < survived:
        return f"among the {kept} fastest of the {survived} that can run of {ranking.scope}: only those are kept"
    return f"in {ranking.scope}"


def ranking_text(ranking: Ranking, top_k: int, records: Sequence[Record]) -> str:
    """Reasons for what fell, and the leaders with what the compiler and the GPU said of them."""
    seen = {record.schedule: record.measurement for record in records}
    rows = []
    for row in range(min(top_k, len(ranking.table))):
        schedule, estimate = ranking.table.schedule(row), ranking.estimate(row)
        below, measured = tiles(ranking.lowering, row, schedule), seen.get(schedule)
        us = f"{measured.median_us:.2f}" if measured and measured.median_us is not None else "not measured"
        facts = (f"{estimate.facts.get('waves', 0):.2f}", f"{estimate.facts.get('l2_hit', 0):.2f}")
        rows.append((row + 1, str(schedule), str(below.warp), str(below.mma), microseconds(estimate.seconds), us, estimate.limiter, *facts))
    columns = (">rank", "schedule", "warp tile", "MMA tile", ">model us", ">measured us", "limit", ">waves", ">L2 hit")
    return pruning_text(ranking.pruning) + "\n\n" + table(columns, rows)


def agreement_text(found: Agreement) -> str:
    if not found.compiled and not found.false_rejects:
        return "nothing compiled for this problem is in the database yet: tuner search compiles"
    lines = [
        f"{found.compiled} compiled: shared memory predicted exactly for {found.exact_shared_memory},"
        f" registers within {found.register_error:.0f} (median)",
        f"false accepts: {len(found.false_accepts)}" + "".join(f"\n  '{text}'" for text in found.false_accepts[:3]),
        f"false rejects: {len(found.false_rejects)}" + "".join(f"\n  '{text}'" for text in found.false_rejects[:3]),
    ]
    return "\n".join(lines)


def _leader(ranking: Ranking, row: int) -> dict[str, object]:
    schedule, estimate = ranking.table.schedule(row), ranking.estimate(row)
    below = tiles(ranking.lowering, row, schedule)
    return {
        "rank": row + 1,
        "schedule": str(schedule),
        "warp_tile": str(below.warp),
        "mma_tile": str(below.mma),
        "seconds": estimate.seconds,
        "limiter": estimate.limiter,
        "terms": dict(estimate.terms),
        "facts": dict(estimate.facts),
        "shared_tiles": placed_facts(schedule, ranking.problem, ranking.hardware),
    }


def explanation_json(ranking: Ranking, top_k: int, found: Agreement) -> dict[str, object]:
    return {
        "enumerated": ranking.pruning.enumerated,
        "survivors": ranking.pruning.survived,
        "fallen": [
            {"constraint": f.constraint, "count": f.count, "reason": f.reason, "example": str(f.example), "sentence": f.sentence}
            for f in ranking.pruning.fallen
        ],
        "calibration": ranking.calibration.name,
        "leaders": [_leader(ranking, row) for row in range(min(top_k, len(ranking.table)))],
        "agreement": {
            "compiled": found.compiled,
            "false_accepts": list(found.false_accepts),
            "false_rejects": list(found.false_rejects),
            "exact_shared_memory": found.exact_shared_memory,
            "register_error": found.register_error,
        },
    }
