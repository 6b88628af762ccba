"""What a row holds is compared with what it is for, before anything is made of it."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

import pytest
from store_samples import ENVIRONMENT, PROBLEM, SCHEDULE, finalist, timed

from db.damage import DamagedRow, made, moment, named_numbers, numbers
from db.records import Environment, Finalist, Measurement
from search_spaces.problem import Problem
from search_spaces.schedule import Schedule

SOUND: dict[type, Any] = {
    Problem: PROBLEM,
    Schedule: SCHEDULE,
    Environment: ENVIRONMENT,
    Measurement: timed(190.0),
    Finalist: finalist(1, 1, 1.05, tied=False),
}


@pytest.mark.parametrize("noun", SOUND)
def test_what_was_written_is_read(noun: type) -> None:
    values = {name: tuple(value) if isinstance(value, list) else value for name, value in asdict(SOUND[noun]).items()}
    assert made(noun, values) == SOUND[noun]


@pytest.mark.parametrize(
    ("noun", "column", "value", "sentence"),
    [
        (Schedule, "stages", "3", "column stages holds '3', which is no whole number"),
        (Schedule, "stages", True, "column stages holds 'True', which is no whole number"),
        (Schedule, "cta_m", 2.5, "column cta_m holds '2.5', which is no whole number"),
        (Schedule, "family", b"tma", "column family holds .*, which is no text"),
        (Problem, "m", None, "column m holds 'None', which is no whole number"),
        (Problem, "dtype", "fp61", "a row of the database cannot be right: unknown dtype 'fp61'"),
        (Environment, "device_name", 7, "column device_name holds '7', which is no text"),
        (Measurement, "median_us", "fast", "column median_us holds 'fast', which is no number"),
        (Measurement, "median_us", 0.0, "a row of the database cannot be right: times"),
        (Finalist, "tied", "yes", "column tied holds 'yes', which is no truth value"),
        (Finalist, "ratio", "\x1b[2J", r"column ratio holds '\\x1b\[2J', which is no number"),
    ],
)
def test_another_kind_of_value_is_a_sentence(noun: type, column: str, value: Any, sentence: str) -> None:
    with pytest.raises(DamagedRow, match=sentence):
        made(noun, asdict(SOUND[noun]) | {column: value})


@pytest.mark.parametrize("text", ["", "null", "3", '{"a": 1}', '["1"]', "[true]", "[1", "[" * 50_000, "9" * 5000, None, 3, b"\xff"])
def test_a_list_of_numbers_is_one(text: Any) -> None:
    assert numbers("[1, 2.5]", "samples_us") == [1, 2.5]
    with pytest.raises(DamagedRow, match=r"column samples_us holds .*, which is no list of numbers"):
        numbers(text, "samples_us")


@pytest.mark.parametrize("text", ["", "[1]", '{"a": "b"}', '{"a": null}', None])
def test_named_numbers_are_such(text: Any) -> None:
    assert named_numbers('{"dram": 1.5}', "predicted_terms") == {"dram": 1.5}
    with pytest.raises(DamagedRow, match=r"column predicted_terms holds .*, which is no list of named numbers"):
        named_numbers(text, "predicted_terms")


@pytest.mark.parametrize("text", ["", "yesterday", 5, b"2026-01-01"])
def test_a_time_is_one(text: Any) -> None:
    assert moment(None, "finished") is None
    with pytest.raises(DamagedRow, match=r"column recorded holds .*, which is no time"):
        moment(text, "recorded")
