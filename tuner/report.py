"""What a person reads: search results, answers and hand calculations as text. It decides on words and columns, and prints nothing
itself."""

from __future__ import annotations

import io
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from tuner.failures import MOST_REASONS, failures

if TYPE_CHECKING:
    from search_spaces.space import Pruning
    from tuner.search import SearchResult
    from tuner.stopping import Regret

WIDTH = 144


def table(columns: Sequence[str], rows: Iterable[Sequence[object]], title: str = "") -> str:
    """A plain table; columns whose name starts with `>` stand right."""
    from rich.box import SIMPLE
    from rich.console import Console
    from rich.table import Table

    grid = Table(box=SIMPLE, pad_edge=False)
    for name in columns:
        grid.add_column(name.lstrip(">"), justify="right" if name.startswith(">") else "left", overflow="fold")
    for row in rows:
        grid.add_row(*(cell if isinstance(cell, str) else str(cell) for cell in row))
    text = io.StringIO()
    Console(file=text, width=WIDTH, highlight=False, markup=False, color_system=None).print(grid)
    body = "\n".join(line.rstrip() for line in text.getvalue().splitlines()).strip("\n")
    return f"{title}\n{body}" if title else body


def microseconds(seconds: float) -> str:
    return f"{seconds * 1e6:.4g}"


def pruning_text(pruning: Pruning) -> str:
    rows = [(f.constraint, f.count, f"'{f.example}': {f.sentence}") for f in pruning.fallen]
    head = f"{pruning.survived} of {pruning.enumerated} schedules can run"
    return head + "\n" + table((">constraint", ">fell", "nearest miss"), rows) if rows else head


def tflops(flops: int, us: float) -> float:
    return flops / us * 1e-6


def search_text(result: SearchResult, top_k: int) -> str:
    return _measured_text(result, top_k) if result.measured else _ranked_text(result, top_k)


def _ranked_text(result: SearchResult, top_k: int) -> str:
    ranking = result.ranking
    rows = []
    for outcome in sorted(result.outcomes, key=lambda o: o.rank)[:top_k]:
        m, estimate = outcome.measurement, ranking.estimate(outcome.rank)
        smem = int(ranking.lowering.shared_memory_bytes[outcome.rank])
        registers = int(ranking.lowering.registers_per_thread[outcome.rank])
        found = (_pair(registers, m.registers), _pair(smem, m.shared_memory_bytes), m.spill_slots if m.spill_slots is not None else "-")
        instruction = m.mma_instruction or "-"
        rows.append(
            (outcome.rank + 1, str(outcome.schedule), microseconds(estimate.seconds), estimate.limiter, *found, instruction, m.status)
        )
    columns = (">rank", "schedule", ">model us", "limit", ">registers", ">shared memory B", ">spills", "instruction", "status")
    body = table(columns, rows)
    good = sum(o.measurement.status == "compiled" for o in result.outcomes)
    lines = [
        f"{body}\n\nnot measured: {good} of {result.planned} candidates compiled for {ranking.hardware.name}"
        f" in {result.seconds:.1f} s;"
        f" times are the {ranking.model} model's ({ranking.calibration.name})"
    ]
    return "\n".join([*lines, *_failure_lines(result), *result.notes])


def _pair(predicted: int, compiled: int | None) -> str:
    """`predicted/compiled`, once where they agree."""
    if compiled is None:
        return f"{predicted}/-"
    return str(compiled) if predicted == compiled else f"{predicted}/{compiled}"


def _measured_text(result: SearchResult, top_k: int) -> str:
    problem = result.ranking.problem
    by_trial = {outcome.trial_id: outcome for outcome in result.outcomes}
    rows = []
    for finalist in sorted(result.finalists, key=lambda f: f.rank)[:top_k]:
        outcome = by_trial[finalist.trial_id]
        mark = "winner" if finalist.winner else "tied" if finalist.tied else ""
        speed = f"{tflops(problem.flops, finalist.median_us):.0f}"
        ratio = f"{finalist.ratio:.3f} [{finalist.ratio_low:.3f}, {finalist.ratio_high:.3f}]"
        figures = (f"{finalist.median_us:.2f}", speed, ratio, outcome.rank + 1, outcome.measurement.mma_instruction)
        rows.append((finalist.rank, str(outcome.schedule), *figures, mark))
    columns = (">place", "schedule", ">us", ">TFLOP/s", "x cuBLAS [95 %]", ">model's rank", "instruction", "")
    timed = sum(o.measurement.median_us is not None for o in result.outcomes)
    again = sum(o.from_store for o in result.outcomes)
    lines = [table(columns, rows), ""]
    if result.finalists:
        lines.append(f"cuBLAS takes {result.finalists[0].library_us:.2f} us in the same rounds")
    lines.append(f"{timed} measured ({again} of them known from the database) in {result.seconds:.1f} s")
    lines += _failure_lines(result)
    lines += [regret_text(result.regret)] if result.regret.estimated is not None else []
    spills = result.winner.measurement.spill_slots if result.winner else None
    if spills:
        lines.append(f"the winner keeps {spills} words a thread in local memory")
    return "\n".join([*lines, *result.notes])


def regret_text(regret: Regret) -> str:
    """What may be left to gain, and whether that ended the search."""
    if regret.stopped:
        return f"stopped: estimated regret {regret.estimated:.1%} is under {100 * regret.bound:g}%"
    return f"estimated regret {regret.estimated:.1%}: by so much the best of what was not measured is expected to be faster"


def _failure_lines(result: SearchResult) -> list[str]:
    """What failed, and why: a line for each reason."""
    duplicates = sum(o.measurement.status == "duplicate" for o in result.outcomes)
    groups = failures(o.measurement for o in result.outcomes)
    more = sum(group.count for group in groups[MOST_REASONS:])
    lines = [f"{duplicates} not measured: their launch is another's"] if duplicates else []
    return [*lines, *map(str, groups[:MOST_REASONS]), *([f"{more} failed for other reasons"] if more else [])]


def search_json(result: SearchResult, top_k: int) -> dict[str, object]:
    """What --json prints: the same facts as the text, by name."""
    from dataclasses import asdict

    by_trial = {outcome.trial_id: outcome for outcome in result.outcomes}
    ordered = result.outcomes if result.measured else sorted(result.outcomes, key=lambda o: o.rank)
    return {
        "problem": asdict(result.ranking.problem),
        "gpu": result.ranking.hardware.name,
        "measured": result.measured,
        "run_id": result.run_id,
        "seconds": round(result.seconds, 3),
        "measurements": sum(o.measurement.median_us is not None for o in result.outcomes),
        "estimated_regret": result.regret.estimated,
        "regret_bound": result.regret.bound,
        "stopped_by_regret": result.regret.stopped,
        "enumerated": result.ranking.pruning.enumerated,
        "survivors": result.ranking.pruning.survived,
        "fallen": {f.constraint: f.count for f in result.ranking.pruning.fallen},
        "winner": str(result.winner.schedule) if result.winner else None,
        "finalists": [{"schedule": str(by_trial[f.trial_id].schedule), **asdict(f)} for f in result.finalists],
        "candidates": [
            {
                "rank": o.rank + 1,
                "schedule": str(o.schedule),
                "model_us": result.ranking.estimates.seconds[o.rank] * 1e6,
                "status": o.measurement.status,
                "median_us": o.measurement.median_us,
                "message": o.measurement.message,
            }
            for o in list(ordered)[:top_k]
        ],
        "planned": result.planned,
        "failures": [asdict(group) for group in failures(o.measurement for o in result.outcomes)],
        "machine_fault": result.fault or None,
        "notes": list(result.notes),
    }
