"""What the measuring process says is taken only where it is exactly an answer; what is wrong with it is named."""

from __future__ import annotations

import json
import math
from typing import Any

import pytest

from db.records import Measurement
from tuner.measure_protocol import Hello, Lost, Malformed, read_answer, read_finals, read_hello, read_library, read_rounds

TIMED = {"status": "ok", "message": "", "samples_us": [4.0, 6.0, 5.0], "median_us": 5.0}
FINALS = {"rounds": [[10.0, 5.0, 8.0], [11.0, 5.5, 8.5]], "hot_l2_us": [4.0, 7.0], "eager_us": [15.0, 18.0]}
HELLO = {"op": "hello", "library_us": 100.0, "sets": 4, "l2_bytes": 52_428_800, "sms": 132, "operands": "normal, seed 0"}
NO_TIMES = [0, 0.0, -3.5, math.nan, math.inf, -math.inf, None, True, "5.0", [5.0], {"us": 5.0}, 10**400, 5e-324, 1e300]


def shown(value: Any) -> str:
    words = "a list of 1" if isinstance(value, list) else "an object with 'us'" if isinstance(value, dict) else json.dumps(value)
    return words if len(words) <= 60 else f"{words[:60]}... ({len(words)} characters)"


def test_an_answer_comes_through() -> None:
    found = read_answer({**TIMED, "relative_error": 0.001, "error_bound": 0.004, "sm_clock_mhz": 1980, "throttle_reasons": "power cap"})
    facts = {"relative_error": 0.001, "error_bound": 0.004, "sm_clock_mhz": 1980.0, "throttle_reasons": "power cap"}
    assert found.measurement == Measurement(status="ok", samples_us=(4.0, 6.0, 5.0), median_us=5.0, **facts)  # type: ignore[arg-type]
    assert not found.fatal


def test_a_failure_comes_through() -> None:
    found = read_answer({"status": "faulted", "message": "an illegal memory access was encountered", "fatal": True})
    assert found.measurement == Measurement(status="faulted", message="an illegal memory access was encountered")
    assert found.fatal


def test_an_error_without_bounds_is_one() -> None:
    """NaN in C makes it NaN, which the record keeps as infinite."""
    for error in (math.inf, math.nan):
        wrong = read_answer({"status": "wrong_answer", "message": "C holds NaN", "relative_error": error})
        assert wrong.measurement.relative_error == math.inf


def test_a_clock_that_the_driver_does_not_know_is_none() -> None:
    assert read_answer({**TIMED, "sm_clock_mhz": 0}).measurement.sm_clock_mhz is None


@pytest.mark.parametrize("value", NO_TIMES)
def test_a_median_that_is_no_time_is_named(value: Any) -> None:
    with pytest.raises(Malformed) as refused:
        read_answer({**TIMED, "median_us": value})
    if value is not None:  # which is what an answer without a time may say
        assert f"answered median_us = {shown(value)}, where a time in us above 0 belongs" in refused.value.message
    assert refused.value.status == "crashed"


@pytest.mark.parametrize("value", NO_TIMES)
def test_a_sample_that_is_no_time_is_named(value: Any) -> None:
    with pytest.raises(Malformed) as refused:
        read_answer({**TIMED, "samples_us": [5.0, value]})
    assert refused.value.message == f"the measuring process answered samples_us[1] = {shown(value)}, where a time in us above 0 belongs"


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"samples_us": 5.0}, "samples_us = 5.0, where a list belongs"),
        ({"samples_us": []}, "status = ok with no time"),
        ({"median_us": None}, "status = ok with no time"),
        ({"median_us": 7.0}, "median_us = 7, outside its samples from 4 to 6"),
        ({"fatal": True}, "status = ok with a lost context"),
        ({"fatal": 1}, "fatal = 1, where true or false belongs"),
        ({"status": "fine"}, 'status = "fine", which is none of ok, slow, '),
        ({"status": "duplicate"}, 'status = "duplicate", which is none of '),
        ({"status": None}, "status = null, which is none of "),
        ({"status": ["ok"]}, "status = a list of 1, which is none of "),
        ({"status": "crashed"}, "status = crashed with a time of 5 us"),
        ({"message": None}, "message = null, where a text belongs"),
        ({"relative_error": "0.1"}, 'relative_error = "0.1", where a number from 0 on belongs'),
        ({"relative_error": -1.0}, "relative_error = -1.0, where a number from 0 on belongs"),
        ({"error_bound": math.nan}, "error_bound = NaN, where a number from 0 on belongs"),
        ({"sm_clock_mhz": -5}, "sm_clock_mhz = -5, where a clock in MHz belongs"),
        ({"throttle_reasons": 7}, "throttle_reasons = 7, where a text belongs"),
        ({"registers": 255}, "'registers' = 255, which nobody asked for"),
        ({"\x1b[31m": 1}, "'\\x1b[31m' = 1, which nobody asked for"),
    ],
)
def test_an_answer_that_is_none_is_named(change: dict[str, Any], words: str) -> None:
    with pytest.raises(Malformed) as refused:
        read_answer({**TIMED, **change})
    assert refused.value.message.startswith(f"the measuring process answered {words}")


@pytest.mark.parametrize("key", ["status", "samples_us", "median_us"])
def test_a_missing_key_is_named(key: str) -> None:
    with pytest.raises(Malformed, match=f"answered without {key}: an object with "):
        read_answer({name: value for name, value in TIMED.items() if name != key})


def test_finals_come_through() -> None:
    samples = read_finals({**FINALS, "wrong": ["", "C holds NaN"]}, 2)
    assert samples.library_us.tolist() == [10.0, 11.0]
    assert samples.times_us.tolist() == [[5.0, 8.0], [5.5, 8.5]]
    assert (samples.hot_l2_us, samples.eager_us, samples.wrong) == ((4.0, 7.0), (15.0, 18.0), ("", "C holds NaN"))
    assert read_finals(FINALS, 2).wrong == ("", "")
    assert read_rounds({"rounds": FINALS["rounds"]}, 2).times_us.tolist() == [[5.0, 8.0], [5.5, 8.5]]


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"rounds": []}, "rounds = a list of 0, where 2 are the fewest"),
        ({"rounds": [[10.0, 5.0, 8.0]]}, "rounds = a list of 1, where 2 are the fewest"),
        ({"rounds": None}, "rounds = null, where a list belongs"),
        ({"rounds": [10.0, 5.0]}, "rounds[0] = 10.0, where a list belongs"),
        ({"rounds": [[10.0, 5.0, 8.0], [11.0, 5.5]]}, "rounds[1] = a list of 2, where the library and 2 contestants were timed"),
        ({"rounds": [[10.0, 5.0, 8.0, 9.0]] * 2}, "rounds[0] = a list of 4, where the library and 2 contestants were timed"),
        ({"rounds": [[0, 5.0, 8.0]] * 2}, "rounds[0][0] = 0, where a time in us above 0 belongs"),
        ({"rounds": [[10.0, -1, 8.0]] * 2}, "rounds[0][1] = -1, where a time in us above 0 belongs"),
        ({"rounds": [[10.0, 5.0, 8.0], [10.0, 5.0, math.inf]]}, "rounds[1][2] = Infinity, where a time in us above 0 belongs"),
        ({"hot_l2_us": [4.0]}, "hot_l2_us = a list of 1, where 2 contestants were timed"),
        ({"hot_l2_us": [4.0, math.nan]}, "hot_l2_us[1] = NaN, where a time in us above 0 belongs"),
        ({"eager_us": [15.0, 18.0, 19.0]}, "eager_us = a list of 3, where 2 contestants were timed"),
        ({"eager_us": [15.0, None]}, "eager_us[1] = null, where a time in us above 0 belongs"),
        ({"wrong": [""]}, "wrong = a list of 1, where 2 contestants were timed"),
        ({"wrong": ["", False]}, "wrong[1] = false, where a text belongs"),
        ({"winner": 1}, "'winner' = 1, which nobody asked for"),
    ],
)
def test_finals_that_are_none_are_named(change: dict[str, Any], words: str) -> None:
    with pytest.raises(Malformed) as refused:
        read_finals({**FINALS, **change}, 2)
    assert refused.value.message == f"the measuring process answered {words}"


def test_hello_comes_through() -> None:
    assert read_hello({"op": "hello", "library_us": 100}) == Hello(library_us=100.0)
    known = {"sets": 4, "l2_bytes": 52_428_800, "sms": 132, "operands": "normal, seed 0", "operands_over_l2": 3.2, "check_seconds": 0.1}
    assert read_hello({**HELLO, **known}) == Hello(library_us=100.0, **known)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"library_us": 0}, "library_us = 0, where a time in us above 0 belongs"),
        ({"library_us": math.nan}, "library_us = NaN, where a time in us above 0 belongs"),
        ({"sets": -1}, "sets = -1, where a whole number from 1 on belongs"),
        ({"sets": 2.5}, "sets = 2.5, where a whole number from 1 on belongs"),
        ({"sms": 0}, "sms = 0, where a whole number from 1 on belongs"),
        ({"sms": True}, "sms = true, where a whole number from 1 on belongs"),
        ({"l2_bytes": "50 MiB"}, 'l2_bytes = "50 MiB", where a number of bytes belongs'),
        ({"operands": 0}, "operands = 0, where a text belongs"),
        ({"operands_over_l2": -0.5}, "operands_over_l2 = -0.5, where a number above 0 belongs"),
        ({"op": "bye"}, 'op = "bye", where hello belongs'),
    ],
)
def test_a_hello_that_is_none_is_named(change: dict[str, Any], words: str) -> None:
    with pytest.raises(Malformed) as refused:
        read_hello({**HELLO, **change})
    assert refused.value.message == f"the measuring process answered {words}"


@pytest.mark.parametrize("value", NO_TIMES)
def test_a_time_of_the_library_that_is_none_is_refused(value: Any) -> None:
    with pytest.raises(Malformed, match="answered library_us = "):
        read_library({"library_us": value})


@pytest.mark.parametrize("read", [read_hello, read_library, lambda said: read_finals(said, 1), lambda said: read_rounds(said, 1)])
def test_who_cannot_do_what_was_asked_may_say_so(read: Any) -> None:
    with pytest.raises(Lost) as lost:
        read({"status": "machine_fault", "message": "CUDA out of memory"})
    assert (lost.value.status, lost.value.message) == ("machine_fault", "CUDA out of memory")
    with pytest.raises(Malformed, match="status = ok, which nobody asked for"):
        read(TIMED)
