"""One readable module that multiplies: the winners' kernels, their table, and a rule for every shape that is not in it."""

from __future__ import annotations

import ast
import dataclasses
import inspect
import re
import sys
from collections.abc import Sequence
from functools import cache
from string import Template
from typing import Any

from search_spaces.errors import UserError
from search_spaces.plain_text import shown
from search_spaces.problem import Problem
from search_spaces.schedule import Schedule
from tuner.canonical import canonical, unaligned
from tuner.exporters import Entry, ExportSettings, Key, comment, fastest, literal, origin, some
from tuner.kernels import family_module, family_names
from tuner.operands import views

MOST_BYTES = 2**57  # of virtual addresses, on any machine
FALLBACK = "pointer"  # the family that takes any strides and alignment
DEFAULT = Schedule(family=FALLBACK, cta_m=128, cta_n=128, cta_k=32, warps=8, stages=3, group_m=8)  # 48 KB of shared memory
DEFAULT_FEW_ROWS = Schedule(family=FALLBACK, cta_m=32, cta_n=64, cta_k=64, warps=4, stages=3)
DTYPES = {"fp16": "torch.float16", "bf16": "torch.bfloat16", "fp32": "torch.float32"}

# what the module itself uses beside its kernels' imports
OWN_IMPORTS = """\
import math
from collections.abc import Callable
from functools import cache
from typing import NamedTuple
import torch
"""

HEADER = Template('''\
"""Tuned matrix products. Needs torch and triton, and nothing else.

    c = matmul(x, w.t())

C[M, N] = A[M, K] @ B[K, N] in float16 or bfloat16, accumulated in float32; A and B of any strides. Which schedule runs:

exact    the one tuned for this M, N, K, these types, layouts and alignments of rows, if there is one;
near     else, of those tuned for the same N, K, types, layouts and alignments, the one with the least M above this M, or failing that with
         the greatest below. Its M and this one differ by a factor of 4 at most, where fewer than 16 rows count as 16; but a schedule
         that was tuned for 1024 rows or more and does not split K serves any greater M. Where there is none, one by the same rule that was
         tuned for rows otherwise aligned;
default  else, or where that schedule does not support the tensors (strides, alignment), a plain one that runs anywhere.

A matrix with one row or one column is a vector, however it is stored: the stride along its extent of 1 makes no difference.
`plan(a, b, c)` says which. A GPU other than the one tuned for may refuse a schedule: that is an error, never a wrong answer.
Triton compiles at the first call with a shape; make that call before the capture of a CUDA graph.

$origin
"""

from __future__ import annotations

$imports
$body''')  # fmt: skip

BODY = Template('''\
$kernels

class Schedule(NamedTuple):
    family: str
$axes


# (type of A and B, type of C, layouts of A and B, which of them are unaligned, N, K) -> M -> schedule; layout "t" is a matrix that is
# stored by columns, and unaligned is one whose rows start between multiples of 16 bytes
TUNED: dict[tuple[torch.dtype, torch.dtype, str, str, int, int], dict[int, Schedule]] = {
$table}

DEFAULT = $default
DEFAULT_FEW_ROWS = $default_few_rows

# family -> what it supports, the scratch it needs, and its launches
FAMILIES: dict[str, tuple[Callable[..., str | None], Callable[..., dict[str, Scratch]], Callable[..., list[Call]]]] = {
$families}

# Counters, which each launch leaves at zero, by the stream whose launches follow each other.
COUNTERS: dict[tuple[int, torch.device, str, tuple[int, ...]], torch.Tensor] = {}


def settled(x: torch.Tensor) -> torch.Tensor:
    """A vector with strides that say where its elements are and nothing else: those of a matrix whose other rows would be aligned."""
    rows, columns = x.shape
    if 0 in (rows, columns) or 1 not in (rows, columns):
        return x
    step = 1 if rows == columns else x.stride(1) if rows == 1 else x.stride(0)
    unit = 16 // x.element_size()
    far = -(-max(rows, columns) // unit) * unit if step == 1 else 1
    return x.as_strided(x.shape, (far, step) if rows == 1 else (step, far))


def layout_of(x: torch.Tensor) -> str:
    return "t" if x.stride(1) != 1 and x.stride(0) == 1 else "n"


def is_unaligned(x: torch.Tensor) -> bool:
    far = x.stride(1) if layout_of(x) == "t" else x.stride(0)
    return x.data_ptr() % 16 != 0 or far * x.element_size() % 16 != 0


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
    a, b = settled(a), settled(b)
    (m, n), k = c.shape, a.shape[1]
    layouts = layout_of(a) + layout_of(b)
    unaligned = ("a" if is_unaligned(a) else "") + ("b" if is_unaligned(b) else "")
    for kind in sorted(("", "a", "b", "ab"), key=lambda kind: kind != unaligned):
        how, schedule = tuned(m, TUNED.get((a.dtype, c.dtype, layouts, kind, n, k), {}))
        if schedule is not None and FAMILIES[schedule.family][0](a, b, c, schedule) is None:
            return how if kind == unaligned else "near", schedule
    schedule = DEFAULT_FEW_ROWS if m <= 32 else DEFAULT
    refusal = FAMILIES[schedule.family][0](a, b, c, schedule)
    if refusal is not None:
        raise ValueError(refusal)
    return "default", schedule


def scratch_on(device: torch.device, needed: dict[str, Scratch]) -> dict[str, torch.Tensor]:
    """New for each call, but for counters outside of a capture: a graph may be replayed beside the stream it was captured on."""
    if device.type != "cuda" or torch.cuda.is_current_stream_capturing():
        return allocate(needed, device)
    made = allocate({name: part for name, part in needed.items() if not part.zeroed}, device)
    stream = torch.cuda.current_stream(device).cuda_stream
    for name, part in needed.items():
        if part.zeroed:
            key = (stream, device, name, part.shape)
            if key not in COUNTERS:
                COUNTERS[key] = allocate({name: part}, device)[name]
            made[name] = COUNTERS[key]
    return made


@cache
def sm_count(device: torch.device) -> int:
    return torch.cuda.get_device_properties(device).multi_processor_count if device.type == "cuda" else 1


def overlaps_itself(x: torch.Tensor) -> bool:
    """Whether two elements are in one place, as in a row that is repeated."""
    (rows, columns), (down, across) = x.shape, x.stride()
    step = math.gcd(down, across)
    return rows * columns > 1 and (step == 0 or (across // step < rows and down // step < columns))


def span(x: torch.Tensor) -> tuple[int, int]:
    """The addresses of the first byte and of that after the last."""
    elements = 1 + sum((extent - 1) * stride for extent, stride in zip(x.shape, x.stride()))
    return x.data_ptr(), x.data_ptr() + elements * x.element_size()


def lines(x: torch.Tensor) -> tuple[int, int]:
    """Bytes from the start of a line in memory to the next, and of a line; a matrix without gaps is one line, and the distance 0."""
    stored = x.t() if layout_of(x) == "t" else x
    row, width = stored.stride(0) * x.element_size(), stored.shape[1] * x.element_size()
    if stored.stride(1) != 1:
        return row, x.element_size()
    return (0, span(x)[1] - span(x)[0]) if stored.shape[0] == 1 or row in (0, width) else (row, width)


def shares_memory(x: torch.Tensor, y: torch.Tensor) -> bool:
    """Whether bytes are in both: surely where it says so, and where both are in lines as far apart or one has no gaps, also where not."""
    (first, end), (other, other_end) = span(x), span(y)
    if end <= other or other_end <= first:
        return False
    (row, width), (other_row, other_width) = lines(x), lines(y)
    if row and other_row and row != other_row:
        return first == other
    row = row or other_row
    ahead = (other - first) % row if row else 0
    return ahead < width or ahead + other_width > row


def matmul(a: torch.Tensor, b: torch.Tensor, out: torch.Tensor | None = None) -> torch.Tensor:
    """a [M, K] @ b [K, N]; into `out` where given, which must share no memory with a, with b or with itself. Without gradients."""
    if a.dim() != 2 or b.dim() != 2 or a.shape[1] != b.shape[0]:
        raise ValueError(f"A is {list(a.shape)} and B is {list(b.shape)}; give [M, K] and [K, N]")
    shape = (a.shape[0], b.shape[1])
    given = out is not None
    if out is None:
        out = torch.empty(shape, dtype=a.dtype, device=a.device)
    if out.shape != shape or not a.device == b.device == out.device:
        places = f"{out.device}, {a.device} and {b.device}"
        raise ValueError(f"out is {list(out.shape)}; give {list(shape)}; out, A and B are on {places}; put them on one device")
    if overlaps_itself(out):
        raise ValueError(f"out is {list(shape)} with strides {list(out.stride())}: elements of it share memory; give each its own")
    if 0 in shape:
        return out
    if a.shape[1] == 0:
        return out.zero_()
    if given and (shares_memory(out, a) or shares_memory(out, b)):
        whose = "A" if shares_memory(out, a) else "B"
        raise ValueError(f"out shares memory with {whose}, which is read while out is written; give it its own")
    a, b = settled(a), settled(b)
    c = out if out.stride(1) == 1 else torch.empty(shape, dtype=out.dtype, device=out.device)
    schedule = plan(a, b, c)[1]
    with torch.cuda.device_of(a):  # Triton launches on the current device
        _, scratch, calls = FAMILIES[schedule.family]
        sms = sm_count(a.device)
        for call in calls(a, b, c, schedule, sms, scratch_on(a.device, scratch(a, b, c, schedule, sms))):
            launch(call)
    return out if c is out else out.copy_(c)
''')  # fmt: skip


def export(entries: Sequence[Entry], settings: ExportSettings | None = None) -> str:
    if settings and settings.rename:
        raise UserError(f"{len(settings.rename)} parameters to rename, and the python exporter's own kernels take them; leave --rename out")
    rows = fastest(some(entries), key)
    families = tuple(sorted({FALLBACK} | {entry.schedule.family for entry in rows}))
    table = _table(rows)
    return HEADER.substitute(origin=origin(rows, table), imports=_imports(families), body=_body(families, table))


def _body(families: Sequence[str], table: str) -> str:
    return BODY.substitute(
        kernels="".join(f"\n\n{source}" for source in _sources(tuple(families))),
        axes=_axes(),
        table=table,
        default=_call(DEFAULT),
        default_few_rows=_call(DEFAULT_FEW_ROWS),
        families="".join(f"    {literal(name)}: ({', '.join(_functions(name))}),\n" for name in families),
    )


def _functions(name: str) -> list[str]:
    return [getattr(family_module(name), part).__name__ for part in ("supports", "scratch", "calls")]


def _copied(families: Sequence[str]) -> list[Any]:
    """All that the families' launches need, each once, in an order in which it can be defined, as plain functions and classes."""
    items = dict.fromkeys(item for name in families for item in family_module(name).EXPORTS)
    return [getattr(item, "fn", item) for item in items]  # Triton's decorator keeps the function it wraps as `fn`


@cache
def _sources(families: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(inspect.getsource(item) for item in _copied(families))


@cache
def _imports(families: tuple[str, ...]) -> str:
    """Those imports of the copied things' modules that the module uses, sorted, the standard library first. Its table needs no more."""
    used = {node.id for node in ast.walk(ast.parse(_body(families, ""))) if isinstance(node, ast.Name)}
    sources = {inspect.getsource(sys.modules[item.__module__]) for item in _copied(families)} | {OWN_IMPORTS}
    plain: set[str] = set()
    picked: dict[str, set[str]] = {}
    for node in (node for source in sources for node in ast.parse(source).body):
        if isinstance(node, ast.Import):
            plain.update(ast.unparse(ast.Import([alias])) for alias in node.names if _bound(alias) in used)
        elif isinstance(node, ast.ImportFrom) and node.module:
            picked.setdefault(node.module, set()).update(alias.name for alias in node.names if alias.name in used)
    outside = {module: names for module, names in sorted(picked.items()) if names and not module.startswith("tuner.")}
    lines = sorted(plain) + [f"from {module} import {', '.join(sorted(names))}" for module, names in outside.items()]
    standard = [line for line in lines if re.split(r"[ .]", line)[1] in sys.stdlib_module_names]
    return "\n".join([*standard, "", *(line for line in lines if line not in standard)])


def _bound(alias: ast.alias) -> str:
    return alias.asname or alias.name.partition(".")[0]


def key(problem: Problem) -> Key:
    """What the module looks up by: shapes, types, layouts and alignment of rows, not how far apart rows are."""
    p = canonical(problem)
    return (p.dtype, p.out_dtype, p.layout, unaligned(p), p.n, p.k, p.m)


def obstacle(entry: Entry) -> str | None:
    """Why the schedule does not run on the problem's tensors as the module sees them."""
    import torch

    if entry.schedule.family not in family_names():
        return f"family {entry.schedule.family} has no kernel here"
    problem = canonical(entry.problem)
    if problem.buffer_bytes > MOST_BYTES:
        return f"its matrices take {problem.buffer_bytes} bytes, more than the {MOST_BYTES} that there are addresses for"
    tensors = []
    for view in views(problem):
        apart = problem.alignment_bytes % 16 // view.dtype.itemsize
        memory = torch.empty(apart + view.elements, dtype=view.dtype, device="meta")
        tensors.append(memory.as_strided(view.shape, view.strides, apart))
    try:
        refusal: str | None = family_module(entry.schedule.family).supports(*tensors, entry.schedule)
    except (ArithmeticError, LookupError, ValueError) as error:  # a schedule that no search has made
        return f"{entry.schedule} is no schedule of this family ({type(error).__name__}: {shown(error, quotes=False)})"
    return refusal


def _table(rows: Sequence[Entry]) -> str:
    groups: dict[str, list[str]] = {}
    for entry in rows:
        line = f"        {literal(entry.problem.m)}: {_call(entry.schedule)},  # {comment(entry.remark)}\n"
        groups.setdefault(_group(entry.problem), []).append(line)
    return "".join(f"    {group}: {{\n{''.join(lines)}    }},\n" for group, lines in groups.items())


def _group(problem: Problem) -> str:
    dtype, out_dtype, *rest, _ = key(problem)
    return f"({DTYPES[str(dtype)]}, {DTYPES[str(out_dtype)]}, {', '.join(map(literal, rest))})"


def _axes() -> str:
    defaults = ((axis.name, axis.default) for axis in dataclasses.fields(Schedule) if axis.name != "family")
    return "\n".join(f"    {name}: int" + ("" if default is dataclasses.MISSING else f" = {default}") for name, default in defaults)


def _call(schedule: Schedule) -> str:
    """The schedule as a call, without the axes that are at their defaults."""
    named = (
        f"{axis.name}={literal(getattr(schedule, axis.name))}"
        for axis in dataclasses.fields(Schedule)
        if axis.default is not dataclasses.MISSING and getattr(schedule, axis.name) != axis.default
    )
    return f"Schedule({', '.join((literal(schedule.family), *map(literal, schedule.cta), *named))})"
