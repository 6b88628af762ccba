"""A database that someone else wrote: whatever stands in any column of any table, an exported text holds no code of theirs."""

from __future__ import annotations

import ast
import contextlib
import copy
import re
import shutil
import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from store_samples import ENVIRONMENT, finalist, record, timed

from db.damage import LONGEST_NAME
from db.rows import PROBLEM_COLUMNS
from db.schema import METADATA
from db.store import open_store
from search_spaces.errors import UserError
from search_spaces.gpu_files import load_gpu
from search_spaces.problem import Problem
from search_spaces.schedule import AXES, Schedule, parse_schedule
from tuner import exporting
from tuner.exporters import Entry, ExportSettings, comment, docstring, exporter_names, literal, load_exporter, select
from tuner.exporting import ExportWish, export_text
from tuner.kernels import kernel_hashes

H200 = load_gpu("h200")
SCHEDULE = parse_schedule("pointer 32x32x32 w4 s2 k2 g4")
FIRST_M = 16  # of the winner of the first column
PROBLEM = Problem(m=FIRST_M, n=64, k=1024)
CANARY = "canary"
COLUMNS = [(table.name, column.name) for table in METADATA.sorted_tables for column in table.columns]


class Raw(bytes):
    """Stored as text though it is none."""


HOSTILE: dict[str, Any] = {
    "leaves a docstring": f'"""\nimport os\nos.system("touch {CANARY}")\n"""',
    "leaves a call": f"1);__import__('os').system('touch {CANARY}');(",
    "an expression": f"__import__('os').system('touch {CANARY}')",
    "ends a comment": f"x\n__import__('os').system('touch {CANARY}')\r\x0c\x85\u2028__import__('os')",
    "a backslash at the end": "x\\",
    "escapes that are none": "\\N{no such name} \\x \\u12 ''' {x} $body ${origin} %s",
    "controls of a terminal": "\x1b]0;title\x07\x1b[2J\u202e",
    "NUL": f"x\0'\"\"\"\nimport os; os.system('touch {CANARY}')",
    "half a character": Raw(b"\xed\xa0\x80"),
    "text that is none": Raw(b'\xff\xfe"""\nimport os\n'),
    "bytes": b'"""\nimport os\n\xff\xfe',
    "a fraction": 0.5,
    "zero": 0,
    "below zero": -1,
    "endless": float("inf"),
    "the largest": 2**63 - 1,
    "nothing": None,
    "long": '"""\n' * 10_000,
    "deep": "[" * 20_000,
}


def test_these_are_the_columns_of_all_tables() -> None:
    assert {table for table, _ in COLUMNS} == {"environment", "run", "trial", "finalist"}
    assert {("trial", axis) for axis in AXES} | {("environment", "device_name"), ("finalist", "ratio"), ("run", "request")} <= set(COLUMNS)


@pytest.fixture(scope="module")
def database(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """For every column a winner with an environment and a run of its own, all with the row number that the column has."""
    path = tmp_path_factory.mktemp("hostile") / "tuner.db"
    with open_store(path) as store:
        run = store.begin_run(ENVIRONMENT, "{}")
        trial = store.add(run, record(timed(190.0), problem=PROBLEM, schedule=SCHEDULE, kernel_hash=kernel_hashes()["pointer"]))
        store.add_finalists(run, [finalist(trial, 1, 1.05, tied=False)])
        store.finish_run(run, "finished")
    numbers = f"WITH RECURSIVE n(i) AS (SELECT 2 UNION ALL SELECT i + 1 FROM n WHERE i < {len(COLUMNS)})"
    with closing(sqlite3.connect(path)) as connection, connection:
        for table in METADATA.sorted_tables:
            own = {"id": "i", "environment_id": "i", "run_id": "i", "trial_id": "i", "m": f"{FIRST_M - 1} + i"}
            values = ", ".join(own.get(column.name, column.name) for column in table.columns)
            names = ", ".join(column.name for column in table.columns)
            connection.execute(f"INSERT INTO {table.name} ({names}) {numbers} SELECT {values} FROM n, {table.name}")
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("PRAGMA journal_mode = DELETE")
    return path


@pytest.fixture
def folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Path]:
    """Holds the working folder, where what is run would leave its canary."""
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    monkeypatch.setattr(exporting, "_here", lambda hardware: ENVIRONMENT)
    yield tmp_path
    assert list((tmp_path / "here").iterdir()) == []


@pytest.fixture(scope="module")
def two_rows(database: Path) -> Path:
    """Two winners only."""
    copy = Path(shutil.copy(database, database.with_name("two.db")))
    with closing(sqlite3.connect(copy)) as connection, connection:
        for table in METADATA.sorted_tables:
            connection.execute(f"DELETE FROM {table.name} WHERE rowid > 2")
    return copy


def changed(database: Path, columns: Sequence[tuple[str, str]], value: Any, folder: Path, row: int | None = None) -> Path:
    """A copy of the database in which the winner of each of these columns, or that of this row, has this value there, where the schema
    takes it."""
    copy = Path(shutil.copy(database, folder / "copy.db"))
    with closing(sqlite3.connect(copy)) as connection, connection:
        connection.execute("PRAGMA synchronous = OFF")
        what = "CAST(? AS TEXT)" if isinstance(value, Raw) else "?"
        for table, column in columns:
            with contextlib.suppress(sqlite3.IntegrityError):  # a NULL, or no number for a row's own number
                which = row or COLUMNS.index((table, column)) + 1
                connection.execute(f"UPDATE {table} SET {column} = {what} WHERE rowid = {which}", (value,))
    return copy


def exported(database: Path, consumer: str) -> tuple[str, list[str]]:
    return export_text(consumer, ExportWish(), H200, settings=ExportSettings(), location=str(database))


class Code(NamedTuple):
    """A module without its table, comments and docstring; and the rows of the table by their M."""

    statements: list[str]
    rows: dict[int, str]


def code_of(text: str) -> Code:
    assert all(line.isprintable() for line in text.split("\n"))
    tree = ast.parse(text)
    (table,) = (node for node in tree.body if isinstance(node, ast.Assign | ast.AnnAssign) and re.match("TUNED|CONFIGS", ast.unparse(node)))
    assert isinstance(table.value, ast.Dict)
    rows = {}
    for key, value in zip(table.value.keys, table.value.values, strict=True):
        assert key is not None
        if isinstance(value, ast.Dict):  # by N and K, then by M
            names = [ast.unparse(name) for name in value.keys if name is not None]
            rows |= {name: f"{ast.unparse(key)} {ast.unparse(row)}" for name, row in zip(names, value.values, strict=True)}
        else:
            m, _, others = ast.unparse(key).strip("()").partition(", ")
            rows[m] = f"{others} {ast.unparse(value)}"
    return Code([ast.dump(node) for node in tree.body[1:] if node is not table], {int(m): row for m, row in rows.items()})


@pytest.fixture(scope="module")
def honest(database: Path) -> dict[str, Code]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(exporting, "_here", lambda hardware: ENVIRONMENT)
        return {name: code_of(exported(database, name)[0]) for name in exporter_names()}


def test_all_rows_of_an_honest_database_are_exported_and_alike(honest: dict[str, Code]) -> None:
    for code in honest.values():
        assert set(code.rows) == {FIRST_M + index for index in range(len(COLUMNS))}
        assert len(set(code.rows.values())) == 1


IN_ROWS = {("trial", axis) for axis in AXES} - {("trial", "fused_reduction")}  # whole numbers that an entry holds


@pytest.mark.parametrize("name", HOSTILE)
@pytest.mark.parametrize("consumer", exporter_names())
def test_no_value_of_any_column_becomes_code(name: str, consumer: str, database: Path, folder: Path, honest: dict[str, Code]) -> None:
    """All columns at once, each of another winner: each row is exported as the honest one, or left out; the code is the honest one."""
    columns = [pair for pair in COLUMNS if pair[1] not in PROBLEM_COLUMNS]
    text, notes = exported(changed(database, columns, HOSTILE[name], folder), consumer)
    code, (usual, *_) = code_of(text), honest[consumer].rows.values()
    assert code.statements == honest[consumer].statements
    number = type(HOSTILE[name]) is int
    for m, row in code.rows.items():
        column = COLUMNS[m - FIRST_M]
        assert row == usual or (number and column in IN_ROWS and re.sub("[0-9]+", "", row).startswith(usual[:9])), column
    shown = {COLUMNS[m - FIRST_M] for m in code.rows}
    assert ("run", "request") in shown  # which no export looks at
    is_name = isinstance(HOSTILE[name], str) and len(HOSTILE[name]) <= LONGEST_NAME
    assert not is_name or {("trial", "strategy"), ("trial", "kernel_hash"), ("environment", "torch")} <= shown
    assert ("environment", "device_name") not in shown  # another card's
    assert all(note.replace("\n", "").isprintable() for note in notes)
    assert max(map(len, [*text.split("\n"), *notes])) < 30_000


@pytest.mark.parametrize("name", HOSTILE)
def test_no_value_of_a_problem_s_column_becomes_code(name: str, two_rows: Path, folder: Path, honest: dict[str, Code]) -> None:
    for column in PROBLEM_COLUMNS:
        copy = changed(two_rows, [("trial", column)], HOSTILE[name], folder, row=1)
        try:
            text, _ = exported(copy, "triton")
        except UserError as error:
            assert str(error).isprintable()  # noqa: PT017 both are right
        else:
            assert code_of(text).statements == honest["triton"].statements, column


# what every exporter writes with


@pytest.mark.parametrize("text", [value for value in HOSTILE.values() if isinstance(value, str)])
def test_texts_stay_within_their_comment_their_docstring_and_their_literal(text: str) -> None:
    source = f'"""{docstring(text)}"""\nx = 1  # {comment(text)}\ny = {literal(text)}\n'
    first, x, y = ast.parse(source).body
    assert isinstance(first, ast.Expr)
    assert ast.unparse(x) == "x = 1"
    assert isinstance(y, ast.Assign)
    assert ast.literal_eval(y.value) == text


@pytest.mark.parametrize(
    "value", [True, 1.5, None, b"x", ("a",), float("nan"), type("Sly", (int,), {"__str__": lambda self: "os.abort()"})()]
)
def test_only_whole_numbers_and_texts_are_literals(value: Any) -> None:
    with pytest.raises(UserError, match="neither a whole number nor a text"):
        literal(value)


OTHER_WRONG: list[dict[str, Any]] = [{"family": "x\nimport os"}, {"stages": True}, {"cta_m": 0}, {"group_m": 2**31}, {"split_k": 0}]
WRONG = [*({axis: "__import__('os')"} for axis in AXES), *OTHER_WRONG]


def forged(**change: Any) -> Schedule:
    """A schedule as nobody can make one."""
    schedule = copy.copy(SCHEDULE)
    for axis, value in change.items():
        object.__setattr__(schedule, axis, value)
    return schedule


@pytest.mark.parametrize("consumer", exporter_names())
@pytest.mark.parametrize("change", WRONG, ids=str)
def test_an_entry_of_another_kind_is_left_out_with_a_sentence(change: dict[str, Any], consumer: str) -> None:
    """Wherever it comes from: an exporter does not rely on what read it."""
    sound = Entry(problem=PROBLEM, schedule=SCHEDULE)
    kept, (note,) = select([sound, replace(sound, schedule=forged(**change))], load_exporter(consumer))
    assert kept == [sound]
    (name,) = change
    assert re.fullmatch(
        rf"16x64x1024 bf16 nt: left out: {name} (is )?'.*', which is no.*|.*: left out: family '.*' is none of gemv, .*", note
    )


@pytest.mark.parametrize("time", [0, -1.0, float("nan"), float("inf"), "1 us"])
def test_a_time_that_is_none_is_left_out(time: Any) -> None:
    sound = Entry(problem=PROBLEM, schedule=SCHEDULE, median_us=1.0)
    for wrong in (replace(sound, median_us=time), replace(sound, library_ratio=time)):
        assert select([sound, wrong], load_exporter("triton"))[0] == [sound]


@pytest.mark.parametrize("value", ["1", True, 1.0, None, -1, 2**31, float("nan")])
@pytest.mark.parametrize("axis", AXES)
def test_no_schedule_holds_what_is_no_axis_s_value(axis: str, value: Any) -> None:
    with pytest.raises(UserError, match=rf"{axis} of a schedule of family 'pointer' is .*; give a whole number from 0 to 1048576"):
        replace(SCHEDULE, **{axis: value})


def test_five_million_characters_leave_their_row_out_and_are_shown_by_their_first(two_rows: Path, folder: Path) -> None:
    """The second of the two is of the same problem's kind, and sound."""
    text, notes = exported(changed(two_rows, [("environment", "driver")], '"""\n' * 1_300_000, folder, row=1), "triton")
    assert len(code_of(text).rows) == 1
    assert max(map(len, [*text.split("\n"), *notes])) < 5000
