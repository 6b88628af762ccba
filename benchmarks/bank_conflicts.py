"""Bank conflicts as `tuner banks` and `tuner explain` predict them, beside what Nsight Compute counts.

    python benchmarks/bank_conflicts.py --output benchmarks/results/h200-banks.md [--ncu /path/to/ncu]

Runs where the GPU is, as a user who may read its counters (root, as a rule), in about a minute: `ncu` runs this file again with --launch,
which launches six schedules and three hand-written reads of a tile down its columns, once each. Only an sm_90 GPU has all of them.
"""

from __future__ import annotations

import argparse
import csv
import importlib.metadata
import platform
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory

import torch
import triton.experimental.gluon.language as gl
from publishing import publish
from triton.experimental import gluon

from search_spaces.banks import LANES, Access, SharedTile, along_rows, down_columns
from search_spaces.gpu_files import load_gpu
from search_spaces.problem import Problem
from search_spaces.schedule import parse_schedule
from search_spaces.shared_layouts import placed_tiles
from tuner.environment import device_present
from tuner.kernels import family_module
from tuner.kernels.launch import allocate, launch
from tuner.operands import View, views

LONGEST_SECONDS = 300
CONFLICTS = "l1tex__data_bank_conflicts_pipe_lsu_mem_shared_op_{}.sum"
WAVEFRONTS = "l1tex__data_pipe_lsu_wavefronts_mem_shared_op_{}.sum"
# what Nsight Compute's own rule on shared memory conflicts divides by: loads are ld and ldmatrix
INSTRUCTIONS = {
    "ld": ("smsp__sass_inst_executed_op_shared_ld.sum", "smsp__inst_executed_op_ldsm.sum"),
    "st": ("smsp__sass_inst_executed_op_shared_st.sum",),
}
METRICS = [name.format(kind) for name in (CONFLICTS, WAVEFRONTS) for kind in INSTRUCTIONS] + [
    name for names in INSTRUCTIONS.values() for name in names
]


@dataclass(frozen=True, kw_only=True)
class Predicted:
    """Ways of what the lanes load and store; None where they do neither, as wgmma and TMA go past them."""

    ld: int | None
    st: int | None


@dataclass(frozen=True, kw_only=True)
class ScheduleCase:
    title: str
    schedule: str
    m: int = 2048
    n: int = 2048
    k: int = 2048
    kind: Mapping[str, str] = field(default_factory=dict)

    @property
    def problem(self) -> Problem:
        return Problem(m=self.m, n=self.n, k=self.k, **self.kind)  # type: ignore[arg-type]

    @property
    def name(self) -> str:
        return f"{self.title}: `{self.schedule}`, {self.problem.shape} {' '.join(self.kind.values())}".rstrip()

    def predicted(self) -> Predicted:
        """What is regrouped on its way out through pointers, and a stream's sums, are taken to have no conflicts."""
        placed = placed_tiles(parse_schedule(self.schedule), self.problem, load_gpu("h200"))
        operands = [one.ways for one in placed if one.operand != "c" and "wgmma" not in one.how]
        stored = [one.ways for one in placed if one.operand == "c"]
        through_pointers = not stored
        return Predicted(ld=max(operands, default=1 if through_pointers else None), st=max(stored, default=1))

    def launch(self) -> None:
        schedule, family = parse_schedule(self.schedule), family_module(self.schedule.split()[0])
        a, b, c = (filled(view) for view in views(self.problem))
        sms = torch.cuda.get_device_properties(0).multi_processor_count
        obstacle = family.supports(a, b, c, schedule)
        assert obstacle is None, obstacle
        scratch = allocate(family.scratch(a, b, c, schedule, sms), torch.device("cuda"))
        profiled(lambda: launch(family.calls(a, b, c, schedule, sms, scratch)[0]))


@dataclass(frozen=True, kw_only=True)
class ColumnCase:
    """A square tile of floats, stored row by row and loaded column by column. phases: row numbers that columns are XORed with; 1: none."""

    size: int
    phases: int = 1

    @property
    def name(self) -> str:
        swizzled = f", columns XORed with {self.phases} row numbers" if self.phases > 1 else ""
        return f"{self.size} x {self.size} floats down a column{swizzled}"

    def predicted(self) -> Predicted:
        tile = SharedTile(rows=self.size, row_elements=self.size, element_bytes=4)
        if self.phases == 1:
            return Predicted(ld=down_columns(tile, 4).ways, st=along_rows(tile, 4).ways)
        columns = Access(4, tuple(tile.address(row, (row % self.phases) * 4) for row in range(LANES)))
        return Predicted(ld=columns.ways, st=1)

    def launch(self) -> None:
        x = torch.randn(self.size, self.size, device="cuda")
        out = torch.empty_like(x)
        profiled(lambda: column_reads[(1,)](x, out, SIZE=self.size, PHASES=self.phases, num_warps=4))
        assert torch.equal(x, out)


@gluon.jit
def column_reads(x, out, SIZE: gl.constexpr, PHASES: gl.constexpr):
    """Four warps take neighbouring columns, so that a lane's own elements are columns apart and no two of its loads are joined."""
    BY_ROWS: gl.constexpr = gl.BlockedLayout([1, 1], [32 // SIZE, SIZE], [4, 1], [1, 0])
    BY_COLUMNS: gl.constexpr = gl.BlockedLayout([1, 1], [SIZE, 32 // SIZE], [1, 4], [0, 1])
    rows = gl.arange(0, SIZE, layout=gl.SliceLayout(1, BY_ROWS))[:, None]
    columns = gl.arange(0, SIZE, layout=gl.SliceLayout(0, BY_ROWS))[None, :]
    tile = gl.allocate_shared_memory(gl.float32, [SIZE, SIZE], gl.SwizzledSharedLayout(1, 1, PHASES, [1, 0]))
    tile.store(gl.load(x + rows * SIZE + columns))
    read = tile.load(BY_COLUMNS)
    rows = gl.arange(0, SIZE, layout=gl.SliceLayout(1, BY_COLUMNS))[:, None]
    columns = gl.arange(0, SIZE, layout=gl.SliceLayout(0, BY_COLUMNS))[None, :]
    gl.store(out + rows * SIZE + columns, read)


CASES: tuple[ScheduleCase | ColumnCase, ...] = (
    ScheduleCase(title="mma.sync from pointers", schedule="pointer 32x64x64 w4 s3 g8"),
    ScheduleCase(title="mma.sync from pointers, odd rows", schedule="pointer 32x64x64 w4 s3 g8", k=2047),
    ScheduleCase(title="wgmma from TMA, swizzle 128 B", schedule="tma 128x128x64 w4 s3 g8"),
    ScheduleCase(title="wgmma from TMA, swizzle 32 B", schedule="wgmma 128x128x64 w4 s4 g8 z32"),
    ScheduleCase(title="fp32 sums stored by TMA", schedule="tma 128x128x64 w4 s3 g8", kind={"out_dtype": "fp32"}),
    ScheduleCase(title="B streamed past one row", schedule="gemv 1x4x1024 w4", m=1),
    ColumnCase(size=16),
    ColumnCase(size=32),
    ColumnCase(size=32, phases=32),
)


def filled(view: View) -> torch.Tensor:
    return torch.randn(view.elements, device="cuda").to(view.dtype).as_strided(view.shape, view.strides)


def profiled(run: object) -> None:
    """Once to compile, once for the counters."""
    assert callable(run)
    run()
    torch.cuda.synchronize()
    torch.cuda.profiler.start()
    run()
    torch.cuda.synchronize()
    torch.cuda.profiler.stop()


def counted(ncu: str) -> str:
    """The report, as CSV, of this file's launches."""
    with TemporaryDirectory(prefix="tuner-") as folder:
        report = Path(folder) / "ncu.csv"
        options = ["--profile-from-start", "off", "--clock-control", "none", "--target-processes", "all", "--print-units", "base"]
        output = ["--csv", "--page", "raw", "--log-file", str(report), "--metrics", ",".join(METRICS)]
        command = [ncu, *options, *output, sys.executable, str(Path(__file__).resolve()), "--launch"]
        try:
            ran = subprocess.run(command, capture_output=True, text=True, timeout=LONGEST_SECONDS, check=False)
        except FileNotFoundError:
            sys.exit(f"no program {ncu!r}; give Nsight Compute's with --ncu, such as /usr/local/cuda/bin/ncu")
        text = report.read_text(encoding="utf-8") if report.is_file() else ""
        if ran.returncode:
            sys.exit(f"{ncu} ended with {ran.returncode}:\n{text[-2000:]}\n{ran.stdout[-2000:]}\n{ran.stderr[-2000:]}")
        return text


def read_report(text: str) -> list[dict[str, float | None]]:
    """Of each launch, in order, its metrics; None for one that this GPU does not have. Lines before the table are ncu's own."""
    lines = [line for line in text.splitlines() if line.startswith('"')]
    if not lines:
        raise ValueError(f"no table in ncu's report: {text[-1000:]}")
    columns, units, *launches = csv.reader(lines)
    assert len(units) == len(columns), "the line after the header has the units"
    return [{name: number(dict(zip(columns, row, strict=True)).get(name, "")) for name in METRICS} for row in launches]


def number(text: str) -> float | None:
    """As ncu writes it, with commas between thousands; None for `n/a` and nothing."""
    try:
        return float(text.replace(",", ""))
    except ValueError:
        return None


def cells(kind: str, ways: int | None, found: Mapping[str, float | None]) -> list[str]:
    """Predicted ways; instructions, wavefronts an instruction, conflicts, and ways: wavefronts by those there were without conflicts."""
    wavefronts, conflicts = found[WAVEFRONTS.format(kind)], found[CONFLICTS.format(kind)]
    parts = [found[name] for name in INSTRUCTIONS[kind]]
    instructions = None if all(part is None for part in parts) else sum(part or 0 for part in parts)
    each = f"{wavefronts / instructions:.2f}" if wavefronts is not None and instructions else "-"
    measured = "-"
    if wavefronts and conflicts is not None and wavefronts > conflicts:
        measured = f"{wavefronts / (wavefronts - conflicts):.2f}"
    return ["-" if ways is None else str(ways), measured, *(whole(x) for x in (conflicts, wavefronts, instructions)), each]


def whole(x: float | None) -> str:
    return "-" if x is None else f"{x:.0f}"


def report(launches: Sequence[Mapping[str, float | None]], environment: str) -> str:
    assert len(launches) == len(CASES), f"{len(launches)} launches were counted, {len(CASES)} were made"
    head = ["kernel", "ways predicted", "ways measured", "conflicts", "wavefronts", "instructions", "wavefronts an instruction"]
    lines = ["# Bank conflicts, predicted and counted", "", environment, ""]
    lines += [
        "Counted by Nsight Compute for one launch of each kernel. Ways measured: wavefronts by wavefronts without conflicts. wgmma and TMA",
        "go past the unit that is counted here: of those kernels only what their lanes load and store is. The counters also hold what else",
        "waits for shared memory's port, such as barriers and, for stores, asynchronous copies.",
        "",
    ]
    for kind, title in (("ld", "Loads (ld.shared, ldmatrix)"), ("st", "Stores (st.shared, stmatrix)")):
        lines += [f"## {title}", "", f"| {' | '.join(head)} |", f"| --- |{' ---: |' * (len(head) - 1)}"]
        for case, found in zip(CASES, launches, strict=True):
            row = [case.name, *cells(kind, getattr(case.predicted(), kind), found)]
            lines.append(f"| {' | '.join(row)} |")
        lines.append("")
    return "\n".join(lines)


def environment_text(ncu: str) -> str:
    device = device_present()
    version = subprocess.run([ncu, "--version"], capture_output=True, text=True, check=False).stdout.strip().splitlines()
    used = [f"{name} {importlib.metadata.version(name)}" for name in ("torch", "triton")]
    gpu = f"{device.name}, {device.sms} SMs, driver {device.driver}" if device else "no GPU"
    return f"{gpu}; {', '.join(used)}, Python {platform.python_version()}; ncu {version[-1] if version else 'unknown'}."


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", type=Path, default=Path(__file__).parent / "results" / "h200-banks.md")
    parser.add_argument("--ncu", default="ncu")
    parser.add_argument("--launch", action="store_true", help="only launch the kernels, for ncu to count")
    given = parser.parse_args()
    if given.launch:
        for case in CASES:
            case.launch()
        return
    publish(given.output, report(read_report(counted(given.ncu)), environment_text(given.ncu)))


if __name__ == "__main__":
    main()
