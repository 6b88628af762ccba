"""Which products does a suite name? Its CSV file, by name or by path, as rows: each a problem, or the reason why the tuner does not do
it."""

from __future__ import annotations

import csv
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from importlib import resources
from pathlib import Path

from search_spaces.errors import UserError, did_you_mean
from search_spaces.families import families
from search_spaces.problem import LAYOUTS, POINTER_ALIGNMENT_BYTES, Problem

REQUIRED = ("m", "n", "k")
OTHER_NAMES = {"dtype_in": "dtype", "dtype_out": "out_dtype"}
KNOWN = (*REQUIRED, "suite", "name", "dtype", "dtype_acc", "out_dtype", "layout", "lda", "ldb", "ldc", "alignment", "source")
DTYPES = {"bfloat16": "bf16", "float16": "fp16", "half": "fp16", "float32": "fp32", "float": "fp32"}
OUT_DTYPES = ("fp32",)  # that the library writes too, besides the operands' own
BY_ROWS_OR_COLUMNS = {"r": "n", "c": "t"}  # how A or B is stored -> torch's word for it


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


class _NotDone(Exception):
    """What the tuner does not do, in words."""


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
            raise UserError(f"no suite named {name_or_path!r}; known: {', '.join(known)}, or a CSV file{hint}")
        return parse_suite(name_or_path, resources.files("tuner").joinpath("suites", f"{name_or_path}.csv").read_text(encoding="utf-8"))
    if not path.is_file():
        raise UserError(f"no suite file {name_or_path}; give a CSV file with the columns M, N and K, or one of {', '.join(suite_names())}")
    try:
        text = path.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"suite {name_or_path} cannot be read: {error}") from None
    return parse_suite(path.stem, text)


def parse_suite(title: str, text: str) -> Suite:
    """What a suite file says; lines that begin with # are skipped, and so are empty ones."""
    lines = [(number, line) for number, line in enumerate(text.splitlines(), start=1) if line.strip() and not line.startswith("#")]
    reader = csv.reader([line for _, line in lines], strict=True)
    try:
        content = [(lines[reader.line_num - 1][0], [cell.strip() for cell in cells]) for cells in reader]
    except csv.Error as error:
        raise UserError(f"suite {title} is not CSV: {error}") from None
    if not content:
        raise UserError(f"suite {title} is empty; give a header with the columns M, N and K, and a line a product")
    header = content[0][1]
    columns = [OTHER_NAMES.get(name.lower(), name.lower()) for name in header]
    _check_columns(title, header, columns)
    rows = tuple(_row(title, line, cells) for line, cells in _cells(title, columns, content[1:]))
    if not rows:
        raise UserError(f"suite {title} has a header and 0 products; give a line a product")
    return Suite(title=title, rows=rows, ignored=tuple(n for n, c in zip(header, columns, strict=True) if c not in KNOWN))


def _check_columns(title: str, header: list[str], columns: list[str]) -> None:
    missing = [name.upper() for name in REQUIRED if name not in columns]
    if missing:
        raise UserError(f"suite {title} has no column {missing[0]}; it has {', '.join(header)}, and needs M, N and K")
    twice = [name for name in KNOWN if columns.count(name) > 1]
    if twice:
        raise UserError(f"suite {title} has {columns.count(twice[0])} columns for {twice[0]}; leave one")


def _cells(title: str, columns: list[str], content: list[tuple[int, list[str]]]) -> Iterator[tuple[int, Mapping[str, str]]]:
    """Each row as column -> text, with the number of its line."""
    for number, cells in content:
        if len(cells) != len(columns):
            raise UserError(f"suite {title}, line {number}: {len(cells)} values for {len(columns)} columns; give one each")
        yield number, dict(zip(columns, cells, strict=True))


def _row(title: str, line: int, cells: Mapping[str, str]) -> SuiteRow:
    def number(name: str, otherwise: int) -> int:
        text = cells.get(name, "")
        if not text and name not in REQUIRED:
            return otherwise
        if not text.isdecimal():
            raise UserError(f"suite {title}, line {line}: {name} is {text!r}; give a whole number from 0 on")
        return int(text)

    m, n, k = (number(name, 0) for name in REQUIRED)
    lda, ldb, ldc = (number(name, 0) for name in ("lda", "ldb", "ldc"))
    alignment = number("alignment", POINTER_ALIGNMENT_BYTES)
    dtype, layout = cells.get("dtype", "") or "bf16", cells.get("layout", "") or "nt"
    out_dtype, problem, reason = cells.get("out_dtype", "") or dtype, None, ""
    try:
        dtype, out_dtype = _types(dtype, cells.get("dtype_acc", ""), out_dtype)
        layout = _layout(layout)
        if 0 in (m, n, k):
            raise _NotDone("M, N or K is 0: there is nothing to tune")
        kind = {"dtype": dtype, "out_dtype": out_dtype, "layout": layout}
        problem = Problem(m=m, n=n, k=k, lda=lda, ldb=ldb, ldc=ldc, alignment_bytes=alignment, **kind)
    except (_NotDone, UserError) as error:
        reason = str(error)
    return SuiteRow(
        suite=cells.get("suite", "") or title,
        name=cells.get("name", ""),
        m=m,
        n=n,
        k=k,
        dtype=dtype,
        out_dtype=out_dtype,
        layout=layout,
        source=cells.get("source", ""),
        problem=problem,
        reason=reason,
    )


def _types(dtype: str, sums: str, out_dtype: str) -> tuple[str, str]:
    """The tuner's words for the types of A and B and of C."""
    dtype, sums, out_dtype = (DTYPES.get(text.lower(), text.lower()) for text in (dtype, sums, out_dtype))
    taken = sorted({name for family in families().values() for name in family.dtypes})
    if dtype not in taken:
        raise _NotDone(f"no kernel family multiplies {dtype}; they take {', '.join(taken)}")
    if sums not in ("", "fp32"):
        raise _NotDone(f"sums are asked for in {sums}; every kernel family adds up in fp32")
    if out_dtype not in (dtype, *OUT_DTYPES):
        raise _NotDone(f"no C of {out_dtype} from {dtype}; it can be {' or '.join((dtype, *OUT_DTYPES))}")
    return dtype, out_dtype


def _layout(text: str) -> str:
    """torch's two letters, or one of r and c for each of A, B and C: stored by rows or by columns."""
    letters = text.lower()
    if letters in LAYOUTS:
        return letters
    if len(letters) != 3 or set(letters) - set(BY_ROWS_OR_COLUMNS):
        raise _NotDone(f"unknown layout {text!r}; known: {', '.join(LAYOUTS)}, or r and c for A, B and C such as rcr")
    if letters[2] == "c":
        raise _NotDone(f"layout {text}: C is stored by columns, which no kernel family does")
    return BY_ROWS_OR_COLUMNS[letters[0]] + BY_ROWS_OR_COLUMNS[letters[1]]
