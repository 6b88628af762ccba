"""What a suite came to, as text: CSV for programs, a table for people in Markdown and for a terminal, and the summary under both."""

from __future__ import annotations

import csv
import io
import math
import re
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from typing import Any

from db.records import Environment
from search_spaces.plain_text import visible
from tuner.bench import BenchRow, Stand
from tuner.report import table, tflops

LOW_RATIO = 0.99  # winners under this are counted
COLUMNS = (
    *("suite", "name", "M", "N", "K", "dtype_in", "dtype_out", "layout", "lda", "ldb", "ldc", "alignment", "status", "reason"),
    *("schedule", "median_us", "library_us", "ratio", "ratio_low", "ratio_high", "tflops", "gb_per_second"),
    *("roofline_us", "roofline_percent", "limiter", "tied", "measured", "seconds", "source"),
)
COMPUTE = "compute"  # the roofline's limiter that no cache can help past
BEYOND = "over 100 % of the roofline, faster than the GPU's published peak: the time or the GPU's file is wrong"
TABLE_COLUMNS = (
    *("suite", "shape", "type", "schedule", ">us", ">TFLOP/s", ">GB/s", ">% roof", "x cuBLAS [95 %]"),
    *(">cuBLAS us", ">measured", ">seconds"),  # for which a terminal is too narrow
)
TERMINAL = len(TABLE_COLUMNS) - 3
# what a spreadsheet takes for the start of a formula (OWASP, CSV injection), and a number, which is none
FORMULA = re.compile(r"\s*[=+\-@\t\r\n\uff1d\uff0b\uff0d\uff20]")
NUMBER = re.compile(r"[+-]?[0-9]+(\.[0-9]+)?([eE][+-]?[0-9]+)?", re.ASCII)


def bench_csv(rows: Sequence[BenchRow]) -> str:
    text = io.StringIO()
    writer = csv.DictWriter(text, COLUMNS, restval="", lineterminator="\n")
    writer.writeheader()
    writer.writerows({name: spreadsheet_cell(value) for name, value in facts(row).items()} for row in rows)
    return text.getvalue()


def spreadsheet_cell(value: object) -> object:
    """A value as a CSV file may hold it: a text that a spreadsheet would take for a formula begins with an apostrophe."""
    if not isinstance(value, str):
        return value
    text = visible(value)
    return f"'{text}" if FORMULA.match(value) and not NUMBER.fullmatch(value) else text


def markdown_cell(text: str) -> str:
    """A text as a cell of a Markdown table may hold it: in one line, its bars escaped."""
    return " ".join(visible(text).split()).replace("|", "\\|")


def facts(row: BenchRow) -> dict[str, Any]:
    """One product's row by the names of COLUMNS; what there is none of is left out."""
    given, problem = row.row, row.row.problem
    found: dict[str, Any] = {"suite": given.suite, "name": given.name, "M": given.m, "N": given.n, "K": given.k, "status": row.status}
    found |= {"dtype_in": given.dtype, "dtype_out": given.out_dtype, "layout": given.layout}
    found |= {"reason": row.reason} if row.reason else {}
    found |= {"source": given.source} if given.source else {}
    if problem is None:
        return found
    found |= {"lda": problem.lda, "ldb": problem.ldb, "ldc": problem.ldc, "alignment": problem.alignment_bytes}
    stand = row.stand
    if stand is None:
        return found
    finalist = stand.finalist
    found |= {name: round(getattr(finalist, name), 3) for name in ("median_us", "library_us")}
    found |= {name: round(getattr(finalist, name), 4) for name in ("ratio", "ratio_low", "ratio_high")}
    found |= {"schedule": str(stand.schedule), "tied": stand.tied, "measured": stand.measured, "seconds": round(stand.seconds, 1)}
    speed, rate = tflops(problem.flops, finalist.median_us), problem.least_bytes / finalist.median_us * 1e-3
    found |= {"tflops": round(speed, 2), "gb_per_second": round(rate, 1)}
    found |= {"roofline_us": round(stand.roof.lower_bound_seconds * 1e6, 3), "limiter": stand.roof.limiter}
    return found | {"roofline_percent": round(100 * stand.roofline_share, 1)}


def bench_text(rows: Sequence[BenchRow], environment: Environment) -> str:
    """For a terminal."""
    body = table(TABLE_COLUMNS[:TERMINAL], [tuple(map(visible, _cells(row)[:TERMINAL])) for row in rows if row.stand])
    return "\n".join([body, "", *_without(rows), *summary_lines(rows), environment_line(environment)])


def bench_markdown(rows: Sequence[BenchRow], environment: Environment, title: str, effort: str) -> str:
    """title: of the suite. effort: how each product was searched, in words."""
    lines = [
        f"Suite {' '.join(title.split())}: {effort}. Taken with tuner {environment.code_version}.",
        "Ratio: cuBLAS's time over the winner's, the median of paired rounds, with its 95 % interval. % roof: the time that",
        "the GPU's published peak and bandwidth allow, every element moved once, over the winner's. GB/s counts the same bytes.",
        "Measured: schedules timed in that search; seconds: from its first candidate to the end of its finals.",
        "",
        "| " + " | ".join(name.lstrip(">") for name in TABLE_COLUMNS) + " |",
        "|" + "|".join("---:" if name.startswith(">") else "---" for name in TABLE_COLUMNS) + "|",
    ]
    for row in rows:
        if row.stand:
            cells = list(map(markdown_cell, _cells(row)))
            cells = [f"`{cell}`" if name == "schedule" else cell for name, cell in zip(TABLE_COLUMNS, cells, strict=True)]
            lines.append("| " + " | ".join(cells) + " |")
    ends = [f"- {' '.join(line.split())}" for line in (*_without(rows), *summary_lines(rows), environment_line(environment))]
    return "\n".join([*lines, "", *ends, ""])


def _cells(row: BenchRow) -> tuple[str, ...]:
    assert row.stand is not None
    assert row.row.problem is not None
    stand, finalist, problem = row.stand, row.stand.finalist, row.row.problem
    return (
        row.row.suite,
        problem.shape,
        row.row.kind,
        str(stand.schedule),
        f"{finalist.median_us:.2f}",
        f"{tflops(problem.flops, finalist.median_us):.4g}",
        f"{problem.least_bytes / finalist.median_us * 1e-3:.0f}",
        f"{100 * stand.roofline_share:.1f}",
        f"{finalist.ratio:.3f} [{finalist.ratio_low:.3f}, {finalist.ratio_high:.3f}]",
        f"{finalist.library_us:.2f}",
        str(stand.measured),
        f"{stand.seconds:.1f}",
    )


def _without(rows: Sequence[BenchRow]) -> list[str]:
    """Every product that has no stand, gathered under its reason, and every one beyond the roof."""
    reasons: dict[str, list[str]] = {}
    for row in rows:
        name = " ".join(filter(None, (row.row.name, row.row.shape)))
        stand = row.stand
        if stand is None:
            reasons.setdefault(f"{row.status}, {row.reason}", []).append(name)
        elif stand.roof.limiter == COMPUTE and stand.roofline_share > 1:
            reasons.setdefault(BEYOND, []).append(f"{name} ({100 * stand.roofline_share:.0f} %)")
    return [visible(f"{reason}: {', '.join(names)}") for reason, names in reasons.items()]


def geometric_mean(values: Iterable[float]) -> float:
    logs = [math.log(value) for value in values]
    return math.exp(sum(logs) / len(logs))


def _stands(rows: Sequence[BenchRow]) -> dict[str, list[Stand]]:
    """By suite, in the order of the rows."""
    found: dict[str, list[Stand]] = {}
    for row in rows:
        stand = row.stand
        if stand:
            found.setdefault(row.row.suite, []).append(stand)
    return found


def summary(rows: Sequence[BenchRow]) -> dict[str, Any]:
    """The same figures as `summary_lines`, by name."""
    suites = {suite: [stand.finalist.ratio for stand in stands] for suite, stands in _stands(rows).items()}
    ratios = [ratio for of_suite in suites.values() for ratio in of_suite]
    return {
        "products": len(rows),
        "compared": len(ratios),
        "geometric_mean": round(geometric_mean(ratios), 4) if ratios else None,
        "under": {"ratio": LOW_RATIO, "count": sum(ratio < LOW_RATIO for ratio in ratios)},
        "suites": {suite: round(geometric_mean(values), 4) for suite, values in suites.items()},
    }


def summary_lines(rows: Sequence[BenchRow]) -> list[str]:
    stands = _stands(rows)
    ratios = [stand.finalist.ratio for of_suite in stands.values() for stand in of_suite]
    if not ratios:
        return ["no product was compared with cuBLAS"]
    low = sum(ratio < LOW_RATIO for ratio in ratios)
    lines = [f"geometric mean of {len(ratios)} ratios: {geometric_mean(ratios):.3f}; {low} under {LOW_RATIO}, the lowest {min(ratios):.3f}"]
    if len(stands) > 1:
        means = (
            f"{suite} {geometric_mean(s.finalist.ratio for s in of_suite):.3f} ({len(of_suite)})" for suite, of_suite in stands.items()
        )
        lines.append(f"by suite: {', '.join(means)}")
    return lines


def environment_line(environment: Environment) -> str:
    known = {name: value for name, value in asdict(environment).items() if value is not None and name != "device_uuid"}
    return visible("environment: " + ", ".join(f"{name} {value}" for name, value in known.items()))


def bench_json(rows: Sequence[BenchRow], environment: Environment) -> dict[str, object]:
    return {"rows": [facts(row) for row in rows], "summary": summary(rows), "environment": asdict(environment)}
