"""Which products does a suite name? Its CSV file, by name or by path, as rows: each a problem, or the reason why the tuner does not do
it."""

from __future__ import annotations

import csv
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from importlib import resources
from pathlib import Path

from search_spaces.errors import UserError, did_you_mean
from search_spaces.plain_text import shown, visible, whole_number
from search_spaces.problem import POINTER_ALIGNMENT_BYTES, Problem
from search_spaces.text_files import named, read_text_file
from tuner.canonical import canonical as canonical_problem
from tuner.suite_columns import REQUIRED, NotDone, canonical, check_plain, layout, matters, types

MOST_ROWS, MOST_COLUMNS = 10_000, 200
HOW = "give a CSV file with the columns M, N and K"


@dataclass(frozen=True, kw_only=True)
class SuiteRow:
    """One line of a suite. problem: None where the tuner does not do it, and then `reason` says why. The words are the file's where there
    is no problem, and the tuner's where there is one."""

    suite: str
    name: str
    m: int
    n: int
    k: int
    dtype: str
    out_dtype: str
    layout: str
    source: str
    problem: Problem | None
    reason: str = ""

    @property
    def shape(self) -> str:
        return f"{self.m}x{self.n}x{self.k}"

    @property
    def kind(self) -> str:
        """`bf16 nt`, `bf16 -> fp32 nt`."""
        types = self.dtype if self.out_dtype == self.dtype else f"{self.dtype} -> {self.out_dtype}"
        return f"{types} {self.layout}"

    @property
    def text(self) -> str:
        """What --only looks at."""
        return " ".join(filter(None, (self.suite, self.name, self.shape, self.kind)))


@dataclass(frozen=True, kw_only=True)
class Suite:
    """ignored: columns that mean nothing to the tuner."""

    title: str
    rows: tuple[SuiteRow, ...]
    ignored: tuple[str, ...]


def suite_names() -> tuple[str, ...]:
    """Every suite that has a file in `tuner/suites/`."""
    files = resources.files("tuner").joinpath("suites").iterdir()
    return tuple(sorted(file.name.removesuffix(".csv") for file in files if file.name.endswith(".csv")))


def read_suite(name_or_path: str) -> Suite:
    """The suite of a name, or of a path that ends in .csv."""
    path = Path(name_or_path)
    if path.suffix.lower() != ".csv":
        known = suite_names()
        if name_or_path not in known:
            hint = did_you_mean(name_or_path, known)
            raise UserError(f"no suite named {shown(name_or_path)}; known: {', '.join(known)}, or a CSV file{hint}")
        return parse_suite(name_or_path, resources.files("tuner").joinpath("suites", f"{name_or_path}.csv").read_text(encoding="utf-8"))
    text = read_text_file(path, "the suite file", f"{HOW}, or one of {', '.join(suite_names())}")
    return parse_suite(named(path.stem), text)


def parse_suite(title: str, text: str) -> Suite:
    """What a suite file says; lines that begin with # are skipped, and so are empty ones."""
    numbered = enumerate(re.split("\r\n|\r|\n", text), start=1)
    lines = [(number, line) for number, line in numbered if line.strip() and not line.startswith("#")]
    reader = csv.reader([line for _, line in lines], strict=True)
    try:
        content = [(lines[reader.line_num - 1][0], [cell.strip() for cell in cells]) for cells in reader]
    except csv.Error as error:
        raise UserError(f"suite {title} is not CSV: {error}") from None
    if not content:
        raise UserError(f"suite {title} is empty; give a header with the columns M, N and K, and a line a product")
    if len(content) > MOST_ROWS + 1:
        raise UserError(f"suite {title} has {len(content) - 1} products, more than {MOST_ROWS}; give it in parts")
    if len(content[0][1]) > MOST_COLUMNS:
        raise UserError(f"suite {title} has {len(content[0][1])} columns, more than {MOST_COLUMNS}; leave those of the product")
    header = list(map(visible, content[0][1]))
    columns = [canonical(name) for name in header]
    _check_columns(title, header, columns)
    rows = tuple(_row(title, line, cells) for line, cells in _cells(title, columns, content[1:]))
    if not rows:
        raise UserError(f"suite {title} has a header and 0 products; give a line a product")
    return Suite(title=title, rows=rows, ignored=tuple(n for n, c in zip(header, columns, strict=True) if not matters(c)))


def _check_columns(title: str, header: list[str], columns: list[str]) -> None:
    missing = [name.upper() for name in REQUIRED if name not in columns]
    if missing:
        raise UserError(f"suite {title} has no column {missing[0]}; it has {shown(', '.join(header), quotes=False)}, and needs M, N and K")
    twice = [name for name in columns if matters(name) and columns.count(name) > 1]
    if twice:
        raise UserError(f"suite {title} has {columns.count(twice[0])} columns for {twice[0]}; leave one")


def _cells(title: str, columns: list[str], content: list[tuple[int, list[str]]]) -> Iterator[tuple[int, Mapping[str, str]]]:
    """Each row as column -> text, with the number of its line."""
    for number, cells in content:
        if len(cells) != len(columns):
            raise UserError(f"suite {title}, line {number}: {len(cells)} values for {len(columns)} columns; give one each")
        yield number, dict(zip(columns, map(visible, cells), strict=True))


def _row(title: str, line: int, cells: Mapping[str, str]) -> SuiteRow:
    def number(name: str, otherwise: int) -> int:
        text = cells.get(name, "")
        if not text and name not in REQUIRED:
            return otherwise
        return whole_number(text, f"suite {title}, line {line}: {name}", how="write it in digits")

    m, n, k = (number(name, 0) for name in REQUIRED)
    lda, ldb, ldc = (number(name, 0) for name in ("lda", "ldb", "ldc"))
    alignment = number("alignment", POINTER_ALIGNMENT_BYTES)
    dtype, letters = cells.get("dtype", "") or "bf16", cells.get("layout", "") or "nt"
    out_dtype, problem, reason = cells.get("out_dtype", "") or dtype, None, ""
    try:
        check_plain(cells)
        dtype, out_dtype = types(cells)
        letters = layout(cells)
        if 0 in (m, n, k):
            raise NotDone("M, N or K is 0: there is nothing to tune")
        kind = {"dtype": dtype, "out_dtype": out_dtype, "layout": letters}
        problem = canonical_problem(Problem(m=m, n=n, k=k, lda=lda, ldb=ldb, ldc=ldc, alignment_bytes=alignment, **kind))
    except (NotDone, UserError) as error:
        reason = str(error)
    return SuiteRow(
        suite=cells.get("suite", "") or title,
        name=cells.get("name", ""),
        m=m,
        n=n,
        k=k,
        dtype=dtype,
        out_dtype=out_dtype,
        layout=letters,
        source=cells.get("source", ""),
        problem=problem,
        reason=reason,
    )
