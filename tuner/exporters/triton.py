"""`triton.Config` source for kernels of your own: one Config a tuned problem, without the kernel it was measured with."""

from __future__ import annotations

from collections.abc import Sequence

from search_spaces.errors import UserError
from search_spaces.families import family
from search_spaces.problem import Problem
from search_spaces.schedule import Schedule
from tuner.canonical import canonical, gaps, layouts
from tuner.exporters import Entry, ExportSettings, Key, comment, fastest, literal, origin, some

_LAUNCH_AXES = ("warps", "stages")  # num_warps and num_stages of a Config; every other axis is a keyword of the kernel


def export(entries: Sequence[Entry], settings: ExportSettings | None = None) -> str:
    """`settings.rename` maps our parameters (CTA_M, CTA_N, CTA_K, GROUP_M, SPLIT_K ...) to those of the kernel that takes the Config."""
    rename = (settings or ExportSettings()).rename
    rows = fastest(some(entries), key)
    known = sorted({name for entry in rows for name in _keywords(entry.schedule)})
    for name in rename:
        if name not in known:
            raise UserError(f"no parameter {name!r} to rename; these schedules have {', '.join(known)}")
    names = [rename.get(name, name) for name in known]
    if len(set(names)) < len(names):
        raise UserError(f"{len(names)} parameters would have {len(set(names))} names: {', '.join(names)}; rename each to one of its own")
    table = "".join(_row(entry, settings or ExportSettings()) for entry in rows)
    return f'''"""Tuned triton.Config by problem: CONFIGS[(M, N, K, dtype, output dtype, layout)].

{origin(rows, table)}

For @triton.autotune, give the one Config of the problem as `configs`. The names are those of the tuned kernel's constexprs,
but PERSISTENT_CTAS_PER_SM is for the grid: 0 is one CTA a tile, p is p CTAs an SM that walk over the tiles. SPLIT_K sets the grid too.
Layouts are those of row-major matrices: "nt" is x @ w.T with w stored [N, K]; matrices with gaps between rows or another alignment than
16 bytes have it after their layout: "nt, ldb 8256". A vector is there by both of its names.
"""

import triton

CONFIGS = {{
{table}}}
'''


def key(problem: Problem) -> Key:
    """The whole problem: nothing is told apart by how a vector is stored, and all else is."""
    p = canonical(problem)
    return (p.dtype, p.out_dtype, p.layout, p.n, p.k, p.m, *gaps(problem))


def _row(entry: Entry, settings: ExportSettings) -> str:
    p, schedule = entry.problem, entry.schedule
    keywords = ", ".join(f"{literal(settings.rename.get(name, name))}: {literal(value)}" for name, value in _keywords(schedule).items())
    launch = f"        num_warps={literal(schedule.warps)},\n        num_stages={literal(schedule.stages)},\n"
    config = f"triton.Config(\n        {{{keywords}}},\n{launch}    )"
    return "".join(
        f"    # {comment(f'{schedule.family}: {entry.remark}')}\n    ({', '.join(map(literal, named))}): {config},\n"
        for layout in layouts(p)
        for named in [(p.m, p.n, p.k, p.dtype, p.out_dtype, ", ".join((layout, *gaps(p))))]
    )


def _keywords(schedule: Schedule) -> dict[str, int]:
    return {axis.upper(): getattr(schedule, axis) for axis in family(schedule.family).axes if axis not in _LAUNCH_AXES}
