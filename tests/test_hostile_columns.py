"""Nothing of a database is trusted. Whatever a column of any table holds, every question has an answer from the sound rows or one sentence,
and nothing that is answered is of another type than it must be, or holds what a terminal would obey."""

from __future__ import annotations

import json
import math
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import fields, is_dataclass, replace
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from store_samples import COMPILED, ENVIRONMENT, HASHES, NO_GPU, PROBLEM, PROTOCOL, SCHEDULE, finalist, record, timed

from db.best import Scope
from db.damage import COLUMNS
from db.faults import VERSION_TABLE
from db.reading import Reader, open_reader
from db.records import BestAnswer
from db.schema import METADATA
from db.store import open_store
from search_spaces.errors import UserError
from search_spaces.plain_text import visible
from tuner.answers import best_json, best_text
from tuner.cli import app
from tuner.diagnosis import diagnosis

GPU = ENVIRONMENT.gpu
CARD = Scope(gpu=GPU, sms=132)
OTHER = replace(SCHEDULE, cta_n=128)
BLOB = b"\x00\xff\x1b[31m"  # what no column holds
MARKUP = "\x1b[31m\x9b\u202e\"\"\"\n'''; import os #\\"
HOSTILE: tuple[object, ...] = (None, BLOB, 2**62, "²", MARKUP)
HOSTILE_TEXT: tuple[object, ...] = ("é" * 2_500_000, "2026-01-01")
HOSTILE_NUMBER: tuple[object, ...] = (-1, math.inf, 0.5)
HOSTILE_JSON: tuple[object, ...] = ("[" * 50_000, '{"a": NaN}', '{"a": 1e999}', "[" + "9" * 5000 + "]", "null", '{"\x1b": 1}', '["1"]')
CELLS = [(table, column) for table, columns in COLUMNS.items() for column in columns if column != "id"]
TEXTS = {
    table: [column.name for column in METADATA.tables[table].columns if column.type.python_type is str]
    for table in ("trial", "environment")
}
JSON = {"request", "samples_us", "predicted_terms"}


def values_for(table: str, column: str) -> tuple[object, ...]:
    return (*HOSTILE, *(HOSTILE_TEXT if column in TEXTS.get(table, ()) else HOSTILE_NUMBER), *(HOSTILE_JSON if column in JSON else ()))


def made(path: Path) -> None:
    """A first schedule that won, a second one behind it that was timed with another driver, and a product that was only compiled."""
    with open_store(path) as store:
        run_id = store.begin_run(ENVIRONMENT, json.dumps({"problem": {}, "gpu": GPU}))
        first = store.add(run_id, record(timed(190.0)))
        second = store.add(run_id, record(timed(195.0), schedule=OTHER, environment=replace(ENVIRONMENT, driver="580.2")))
        store.add(run_id, record(COMPILED, problem=replace(PROBLEM, m=64), environment=NO_GPU, protocol="compile"))
        store.add_finalists(run_id, [finalist(first, 1, 1.05, tied=False), finalist(second, 2, 1.04, tied=True)])
        store.finish_run(run_id, "finished")


def loosened(path: Path, target: Path) -> None:
    """The same tables without a type or a rule for any column, as somebody else may make them."""
    with closing(sqlite3.connect(target)) as connection, connection:
        connection.execute("ATTACH ? AS made", (str(path),))
        for table, columns in {VERSION_TABLE: ("version_num",), **COLUMNS}.items():
            names = ", ".join(columns)
            connection.execute(f"CREATE TABLE {table} ({names.replace('id,', 'id INTEGER PRIMARY KEY,', 1) if 'id' in columns else names})")
            connection.execute(f"INSERT INTO {table} ({names}) SELECT {names} FROM made.{table}")


@pytest.fixture(scope="module")
def database(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Path, sqlite3.Connection]]:
    folder = tmp_path_factory.mktemp("hostile")
    made(folder / "made.db")
    loosened(folder / "made.db", folder / "tuner.db")
    with closing(sqlite3.connect(folder / "tuner.db", isolation_level=None)) as connection:
        connection.execute("PRAGMA synchronous = OFF")
        yield folder / "tuner.db", connection


@pytest.fixture
def hostile(database: tuple[Path, sqlite3.Connection]) -> Iterator[Callable[[str, str, object], Path]]:
    """Puts a value into a column of a table's first row; the row is as it was after the test."""
    path, connection = database
    kept: list[tuple[str, str, object]] = []

    def put(table: str, column: str, value: object) -> Path:
        ((before,),) = connection.execute(f"SELECT {column} FROM {table} WHERE rowid = 1")
        kept.append((table, column, before))
        connection.execute(f"UPDATE {table} SET {column} = ? WHERE rowid = 1", (value,))
        return path

    yield put
    for table, column, before in reversed(kept):
        connection.execute(f"UPDATE {table} SET {column} = ? WHERE rowid = 1", (before,))


def test_every_column_of_the_schema_has_its_rule() -> None:
    schema = {name: {column.name: column.nullable for column in table.columns} for name, table in METADATA.tables.items()}
    assert {table: set(columns) for table, columns in schema.items()} == {table: set(columns) for table, columns in COLUMNS.items()}
    for table, column in CELLS:
        assert _takes_null(table, column) is schema[table][column], (table, column)


def _takes_null(table: str, column: str) -> bool:
    try:
        return COLUMNS[table][column](None) is None
    except Exception:
        return False


# every question, of every column, with every value


def sentence(error: UserError, path: Path) -> None:
    text = str(error)
    assert str(path) in text
    assert "\n" not in text
    assert visible(text) == text
    assert len(text) < 1000


def sound(found: object, like: object, name: str = "") -> None:
    """Of the same types as what was stored, or None, all the way down; numbers finite, text short and printable."""
    if is_dataclass(found):
        for field in fields(found):
            sound(getattr(found, field.name), getattr(like, field.name), field.name)
    elif isinstance(found, str):
        assert visible(found) == found
        assert len(found) < 110_000
    elif isinstance(found, (tuple, list)):
        for each in found:
            assert type(each) in (int, float)
            assert math.isfinite(each)
    elif isinstance(found, float) or (found is not None and like is not None):
        assert like is None or type(found) is type(like)
        assert not isinstance(found, float) or math.isfinite(found) or name in ("relative_error", "error_bound")


def questions(reader: Reader, path: Path) -> BestAnswer | None:
    """Everything that can be asked; what is known to be best."""
    first = record(timed(190.0))
    answer = reader.best(PROBLEM, CARD)
    assert answer is None or answer.record.problem == PROBLEM
    records = list(reader.records())
    for each in (*records, *([answer.record] if answer else [])):
        sound(replace(each, trial_id=None, run_id=None, recorded=None, estimate=replace(each.estimate, terms={})), first)
    reader.tuned_problems(CARD)
    reader.nearest(replace(PROBLEM, m=32), CARD)
    for schedule, (trial_id, measurement) in reader.known(PROBLEM, ENVIRONMENT, HASHES, PROTOCOL).items():
        assert type(trial_id) is int
        sound(schedule, SCHEDULE)
        sound(measurement, timed(190.0))
    for landscape in reader.landscapes(GPU, sms=132):
        sound(tuple(landscape.median_us.values()), ())
    for place in reader.finalists(1):
        sound(place, finalist(1, 1, 1.0, tied=False))
    for run in (*reader.runs(), *reader.finished_runs("{}", ENVIRONMENT)):
        assert type(run.id) is int
    assert all(visible(gpu) == gpu for gpu, _ in reader.stats().shapes)
    try:
        reader.trial(1)
    except UserError as error:
        sentence(error, path)
    return answer


@pytest.mark.parametrize(("table", "column"), CELLS, ids=lambda word: word)
def test_whatever_a_column_holds_the_sound_rows_answer(hostile: Callable[[str, str, object], Path], table: str, column: str) -> None:
    for value in values_for(table, column):
        path = hostile(table, column, value)
        with open_reader(path) as reader:
            answer = questions(reader, path)
            damage = reader.damage
        assert answer is not None, value
        assert len(damage) < 2000
        if value is BLOB and table != "run":  # which the winner's row, its environment and its place in the finals cannot be without
            assert answer.record.schedule == OTHER
        json.dumps(best_json(answer, ()))


@pytest.mark.parametrize(
    ("table", "column", "words"),
    [
        ("run", "status", "run 1: status is b'"),
        ("environment", "sms", "environment 1: sms is b'"),
        ("trial", "stages", "trial 1: stages is b'"),
        ("trial", "environment_id", "1 of table trial name a row of environment that is not there"),
        ("trial", "run_id", "trial 1: run_id is b'"),
        ("finalist", "rank", "trial 1's place in the finals: rank is b'"),
    ],
)
def test_a_check_names_what_is_damaged(hostile: Callable[[str, str, object], Path], table: str, column: str, words: str) -> None:
    path = hostile(table, column, BLOB)
    with open_store(path, create=False) as store, pytest.raises(UserError) as caught:
        store.check()
    sentence(caught.value, path)
    assert "is not sound" in str(caught.value)
    assert words in str(caught.value)


def test_a_check_counts_what_is_damaged(hostile: Callable[[str, str, object], Path]) -> None:
    hostile("trial", "stages", "x")
    path = hostile("finalist", "rank", 0)
    with open_store(path, create=False) as store, pytest.raises(UserError, match="is not sound: 2 damaged rows"):
        store.check()


@pytest.mark.parametrize(
    ("column", "value", "words"),
    [
        ("stages", "x", "trial 1: stages is 'x', not a whole number from 0 to 1048576"),
        ("stages", 2**20 + 1, "trial 1: stages is 1048577, not a whole number from 0 to 1048576"),
        ("stages", 3.0, "trial 1: stages is 3.0, not a whole number from 0 to 1048576"),
        ("m", None, "trial 1: m is NULL, not a whole number from 0 to 2147483647"),
        ("lda", 8, "trial 1: it is no Problem (lda = 8 is less than the 4096 elements"),
        ("family", "tma; os", "trial 1: family is 'tma; os', not a family's name"),
        ("status", "won", "trial 1: status is 'won', not one of ok, slow,"),
        ("median_us", 0, "trial 1: median_us is 0, not a finite number above 0"),
        ("median_us", None, "trial 1: it is no Measurement (status ok without a median)"),
        ("samples_us", "[1, -2]", "not a finite number above 0"),
        ("samples_us", "x", "trial 1: samples_us is 'x', not a JSON list of times"),
        ("predicted_terms", "[]", "trial 1: predicted_terms is '[]', not a JSON object of names with seconds"),
        ("recorded", "yesterday", "trial 1: recorded is 'yesterday', not a time in ISO 8601 with its zone"),
        ("kernel_hash", "é" * 1000, "(1000 characters)', not a text of at most 300 characters"),
    ],
)
def test_a_row_asked_for_by_its_id_is_refused(hostile: Callable[[str, str, object], Path], column: str, value: object, words: str) -> None:
    path = hostile("trial", column, value)
    with open_reader(path) as reader:
        with pytest.raises(UserError) as caught:
            reader.trial(1)
        sentence(caught.value, path)
        assert words in str(caught.value)
        assert [each.trial_id for each in reader.records()] == [2, 3]
        assert "left out 1 damaged row (" in reader.damage
        assert words in reader.damage


def test_prose_is_cut_and_escaped(hostile: Callable[[str, str, object], Path]) -> None:
    path = hostile("trial", "message", "\x1b[31m" + "é" * 5_000_000)
    with open_reader(path) as reader:
        message = reader.trial(1).measurement.message
    assert message.startswith("\\x1b[31mé")
    assert message.endswith("... (5000005 characters)")
    assert len(message) < 10_100


def test_text_that_is_no_utf_8_is_read_with_escapes(database: tuple[Path, sqlite3.Connection]) -> None:
    path, connection = database
    connection.execute("UPDATE environment SET device_name = CAST(x'4e56ff41' AS TEXT) WHERE id = 1")
    with open_reader(path) as reader, open_store(path, create=False) as store:
        assert reader.trial(1).environment.device_name == store.trial(1).environment.device_name == "NV\\xffA"
    connection.execute("UPDATE environment SET device_name = 'NVIDIA H200' WHERE id = 1")


# the commands that read


@pytest.mark.parametrize("table", TEXTS)
def test_commands_print_nothing_that_a_terminal_obeys(hostile: Callable[[str, str, object], Path], table: str) -> None:
    for column in set(TEXTS[table]) - {"gpu", "family", "status", "dtype", "out_dtype", "layout", "recorded", "compute_capability", *JSON}:
        path = hostile(table, column, MARKUP)
    where = ["--gpu", GPU, "--db", str(path)]
    for arguments in (
        ["best", "--shape", PROBLEM.shape, *where],
        ["best", "--shape", PROBLEM.shape, "--any-environment", *where],
        ["export", "--to", "python", *where],
        ["db", "stats", "--db", str(path)],
    ):
        ended = CliRunner().invoke(app, arguments)
        assert ended.exception is None or isinstance(ended.exception, (UserError, SystemExit))
        assert visible(ended.output) == ended.output


def test_a_diagnosis_says_where_the_database_is(hostile: Callable[[str, str, object], Path]) -> None:
    path = hostile("trial", "status", BLOB)
    assert f"database: {path}, 2 trials" in diagnosis(str(path))


def test_the_text_of_an_answer_is_that_of_the_sound_row(hostile: Callable[[str, str, object], Path]) -> None:
    from search_spaces.gpu_files import load_gpu

    path = hostile("trial", "stages", "x")
    with open_reader(path) as reader:
        answer: Any = reader.best(PROBLEM, CARD)
    assert f": {OTHER}" in best_text(PROBLEM, load_gpu(GPU), answer, (), None)
