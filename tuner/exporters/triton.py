"""`triton.Config` source for kernels of your own: one Config a tuned problem, without the kernel it was measured with."""

from __future__ import annotations

from collections.abc import Sequence

from search_spaces.errors import UserError
from search_spaces.families import family
from search_spaces.schedule import Schedule
from tuner.exporters import Entry, ExportSettings, in_stable_order, origin

_LAUNCH_AXES = ("warps", "stages")  # num_warps and num_stages of a Config; every other axis is a keyword of the kernel


def export(entries: Sequence[Entry], settings: ExportSettings | None = None) -> str:
    """`settings.rename` maps our parameters (CTA_M, CTA_N, CTA_K, GROUP_M, SPLIT_K ...) to those of the kernel that takes the Config."""
    rename = (settings or ExportSettings()).rename
    rows = in_stable_order(entries)
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
Layouts are those of row-major matrices: "nt" is x @ w.T with w stored [N, K].
"""

import triton

CONFIGS = {{
{table}}}
'''


def _row(entry: Entry, settings: ExportSettings) -> str:
    p, schedule = entry.problem, entry.schedule
    key = f'({p.m}, {p.n}, {p.k}, "{p.dtype}", "{p.out_dtype}", "{p.layout}")'
    keywords = ", ".join(f'"{settings.rename.get(name, name)}": {value}' for name, value in _keywords(schedule).items())
    config = f"triton.Config(\n        {{{keywords}}},\n        num_warps={schedule.warps},\n        num_stages={schedule.stages},\n    )"
    return f"    # {schedule.family}: {entry.remark}\n    {key}: {config},\n"


def _keywords(schedule: Schedule) -> dict[str, int]:
    return {axis.upper(): getattr(schedule, axis) for axis in family(schedule.family).axes if axis not in _LAUNCH_AXES}
