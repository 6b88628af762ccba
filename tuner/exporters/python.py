"""One readable module that multiplies: the winners' kernels, their table, and a rule for every shape that is not in it."""

from __future__ import annotations

import ast
import dataclasses
import importlib
import inspect
from collections.abc import Sequence
from string import Template
from typing import Any

from search_spaces.errors import UserError
from search_spaces.problem import Problem
from search_spaces.schedule import Schedule
from tuner.exporters import Entry, ExportSettings, in_stable_order, provenance

FALLBACK = "pointer"  # the family that takes any strides and alignment
DEFAULT = Schedule(family=FALLBACK, cta_m=128, cta_n=128, cta_k=32, warps=8, stages=3, group_m=8)  # 48 KB of shared memory: every GPU has them
DEFAULT_FEW_ROWS = Schedule(family=FALLBACK, cta_m=32, cta_n=64, cta_k=64, warps=4, stages=3)
DTYPES = {"fp16": "torch.float16", "bf16": "torch.bfloat16", "fp32": "torch.float32"}

# what a copied kernel or helper may use by these names, and where it comes from
IMPORTS = {
    "Callable": "from collections.abc import Callable",
    "cache": "from functools import cache",
    "Any": "from typing import Any",
    "NamedTuple": "from typing import NamedTuple",
    "torch": "import torch",
    "triton": "import triton",
    "tl": "import triton.language as tl",
    "TensorDescriptor": "from triton.tools.tensor_descriptor import TensorDescriptor",
}

MODULE = Template('''\
"""Matrix products tuned for $gpu. Needs torch and triton, and nothing else.

    c = matmul(x, w.t())

C[M, N] = A[M, K] @ B[K, N] in float16 or bfloat16, accumulated in float32; A and B of any strides. Which schedule runs, in this order:

exact    the one tuned for this M, N, K, these types and layouts;
near     of those tuned for the same N, K, types and layouts, the one with the least M above this M, else with the greatest below. Their Ms
         differ by a factor of 4 at most, where fewer than 16 rows count as 16; but a schedule tuned for 1024 rows or more that does
         not split K serves any greater M;
default  a plain one that runs anywhere, else, and where the tuned one does not support the tensors (strides, alignment).

`plan(a, b, c)` says which. Another GPU than the one it is tuned for may refuse a schedule: an error, never a wrong answer. Triton compiles at the
first call with a shape; make that call before the capture of a CUDA graph.

$provenance
"""

from __future__ import annotations

$imports
$kernels

class Schedule(NamedTuple):
    family: str
$axes


# (type of A and B, type of C, layouts of A and B, N, K) -> M -> schedule; layout "t" is a matrix that is stored by columns
TUNED: dict[tuple[torch.dtype, torch.dtype, str, int, int], dict[int, Schedule]] = {
$table}

DEFAULT = $default
DEFAULT_FEW_ROWS = $default_few_rows

# family -> what it supports, and its launches
FAMILIES: dict[str, tuple[Callable[..., str | None], Callable[..., list[Call]]]] = {
$families}


def layout_of(x: torch.Tensor) -> str:
    return "t" if x.stride(1) != 1 and x.stride(0) == 1 else "n"


def tuned(m: int, by_rows: dict[int, Schedule]) -> tuple[str, Schedule | None]:
    if m in by_rows:
        return "exact", by_rows[m]
    for rows in sorted(by_rows, key=lambda rows: (rows < m, abs(rows - m))):
        fewer, more = sorted((max(rows, 16), max(m, 16)))
        if more <= 4 * fewer or (1024 <= rows < m and by_rows[rows].split_k == 1):
            return "near", by_rows[rows]
    return "default", None


def plan(a: torch.Tensor, b: torch.Tensor, c: torch.Tensor) -> tuple[str, Schedule]:
    """How the schedule for c = a @ b was found ("exact", "near" or "default"), and the schedule."""
    (m, n), k = c.shape, a.shape[1]
    how, schedule = tuned(m, TUNED.get((a.dtype, c.dtype, layout_of(a) + layout_of(b), n, k), {}))
    if schedule is None or FAMILIES[schedule.family][0](a, b, c, schedule) is not None:
        how, schedule = "default", DEFAULT_FEW_ROWS if m <= 32 else DEFAULT
        refusal = FAMILIES[schedule.family][0](a, b, c, schedule)
        if refusal is not None:
            raise ValueError(refusal)
    return how, schedule


@cache
def sm_count(device: torch.device) -> int:
    return torch.cuda.get_device_properties(device).multi_processor_count if device.type == "cuda" else 1


def matmul(a: torch.Tensor, b: torch.Tensor, out: torch.Tensor | None = None) -> torch.Tensor:
    """a [M, K] @ b [K, N]; into `out` where given, which must share no memory with a and b. Without gradients."""
    if a.dim() != 2 or b.dim() != 2 or a.shape[1] != b.shape[0]:
        raise ValueError(f"A is {list(a.shape)} and B is {list(b.shape)}; give [M, K] and [K, N]")
    shape = (a.shape[0], b.shape[1])
    if out is None:
        out = torch.empty(shape, dtype=a.dtype, device=a.device)
    if out.shape != shape or not a.device == b.device == out.device:
        raise ValueError(f"out is {list(out.shape)} on {out.device}, A is on {a.device} and B on {b.device}; give {list(shape)}, all on one device")
    if 0 in shape:
        return out
    if a.shape[1] == 0:
        return out.zero_()
    c = out if out.stride(1) == 1 else torch.empty(shape, dtype=out.dtype, device=out.device)
    schedule = plan(a, b, c)[1]
    with torch.cuda.device_of(a):  # Triton launches on the current device
        for call in FAMILIES[schedule.family][1](a, b, c, schedule, sm_count(a.device)):
            launch(call)
    return out if c is out else out.copy_(c)
''')  # fmt: skip


def export(entries: Sequence[Entry], settings: ExportSettings | None = None) -> str:
    if settings and settings.rename:
        raise UserError(f"{len(settings.rename)} parameters to rename, but the python exporter brings the kernels that take them; leave --rename out")
    rows = in_stable_order(entries)
    families = sorted({FALLBACK} | {entry.schedule.family for entry in rows})
    table, kernels = _table(rows), _kernels(families)
    return MODULE.substitute(
        gpu=rows[0].device_name or rows[0].gpu,
        provenance="\n".join(provenance(rows, table)),
        imports=_imports(kernels),
        kernels=kernels,
        axes=_axes(),
        table=table,
        default=_literal(DEFAULT),
        default_few_rows=_literal(DEFAULT_FEW_ROWS),
        families="".join(f'    "{name}": ({name}_supports, {name}_calls),\n' for name in families),
    )


def _kernels(families: Sequence[str]) -> str:
    """The source of all that the families' launches need, each once, in an order in which it can be defined."""
    copied: dict[Any, str] = {}
    for name in families:
        for item in importlib.import_module(f"tuner.kernels.{name}").EXPORTS:
            copied.setdefault(item, inspect.getsource(getattr(item, "fn", item)))  # Triton's decorator keeps the function it wraps as `fn`
    return "".join(f"\n\n{source}" for source in copied.values())


def _imports(kernels: str) -> str:
    """Those lines of IMPORTS that are needed, the standard library first."""
    used = {node.id for node in ast.walk(ast.parse(kernels)) if isinstance(node, ast.Name)} | {"Callable", "cache", "NamedTuple", "torch"}
    standard = [IMPORTS[name] for name in ("Callable", "cache") if name in used]
    typing = [name for name in ("Any", "NamedTuple") if name in used]
    standard.append(f"from typing import {', '.join(typing)}")
    others = [IMPORTS[name] for name in ("torch", "triton", "tl", "TensorDescriptor") if name in used]
    return "\n".join([*standard, "", *others])


def _table(rows: Sequence[Entry]) -> str:
    groups: dict[str, list[str]] = {}
    for entry in rows:
        line = f"        {entry.problem.m}: {_literal(entry.schedule)},  # {entry.remark}\n"
        groups.setdefault(_group(entry.problem), []).append(line)
    return "".join(f"    {group}: {{\n{''.join(lines)}    }},\n" for group, lines in groups.items())


def _group(p: Problem) -> str:
    return f'({DTYPES[p.dtype]}, {DTYPES[p.out_dtype]}, "{p.layout}", {p.n}, {p.k})'


def _axes() -> str:
    defaults = ((axis.name, axis.default) for axis in dataclasses.fields(Schedule) if axis.name != "family")
    return "\n".join(f"    {name}: int" + ("" if default is dataclasses.MISSING else f" = {default}") for name, default in defaults)


def _literal(schedule: Schedule) -> str:
    """The schedule as a call, without the axes that are at their defaults."""
    named = (
        f"{axis.name}={getattr(schedule, axis.name)}"
        for axis in dataclasses.fields(Schedule)
        if axis.default is not dataclasses.MISSING and getattr(schedule, axis.name) != axis.default
    )
    return f"Schedule({', '.join((repr(schedule.family), *map(str, schedule.cta), *named))})".replace("'", '"')
