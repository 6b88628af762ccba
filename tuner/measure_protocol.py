"""What the measuring process says: each answer is read here and nowhere else, and what is not exactly one is refused, by key and value.

The process runs kernels that may do anything to it, so nothing that it says is taken on trust.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from typing import Any

import numpy as np
from numpy.typing import NDArray

from db.records import SCHEDULES_OWN, TIMED, Measurement, Status
from search_spaces.plain_text import shown, visible
from tuner.comparing import FinalsSamples

SHORTEST_US, LONGEST_US = 1e-6, 1e10  # outside of them is no time of a kernel, but a number gone wrong: a picosecond, and three hours
FEWEST_ROUNDS = 2  # of finals: one has no spread
MESSAGE_CHARACTERS = 300
# what it may say became of a schedule; the other statuses are for others to give
STATUSES: tuple[Status, ...] = (
    *TIMED,
    *SCHEDULES_OWN,
    "compile_failed",
    "launch_failed",
    "timeout",
    "crashed",
    "machine_fault",
)


class Lost(Exception):
    """There is no answer: the process died, outlived its time and was killed, could not do what was asked, or said what is none."""

    def __init__(self, status: Status, message: str) -> None:
        super().__init__(message)
        self.status: Status = status
        self.message = message


class Malformed(Lost):
    """What it said is not an answer."""

    def __init__(self, said: str) -> None:
        super().__init__("crashed", f"the measuring process answered {said}")


@dataclass(frozen=True, kw_only=True)
class Hello:
    """What a process says once it is ready. sms: those that it may use. sets: of operands; operands: how their values were drawn;
    operands_over_l2: the bytes that all sets touch over those of L2. check_seconds: about what it takes to check one schedule's answers."""

    library_us: float
    sets: int | None = None
    l2_bytes: int | None = None
    sms: int | None = None
    operands: str | None = None
    operands_over_l2: float | None = None
    check_seconds: float = 0.0


@dataclass(frozen=True, kw_only=True)
class Answer:
    """fatal: the process is of no use any more."""

    measurement: Measurement
    fatal: bool = False


Check = Callable[[str, Any], Any]  # (key, value) -> the value as it is kept; raises Malformed


def read_hello(said: Mapping[str, Any]) -> Hello:
    """What it says of itself. This and the other readers raise Lost."""
    _able(said)
    return Hello(**{key: value for key, value in _checked(said, HELLO, needs=("library_us",)).items() if key != "op"})


def read_library(said: Mapping[str, Any]) -> float:
    """Microseconds of the library."""
    _able(said)
    return float(_checked(said, {"library_us": _time}, needs=("library_us",))["library_us"])


def read_answer(said: Mapping[str, Any]) -> Answer:
    """What became of one schedule."""
    found = _checked(said, ANSWER, needs=("status",))
    fatal, status, samples = found.pop("fatal", False), found["status"], found.get("samples_us", ())
    median = found.get("median_us")
    if status in TIMED:
        _need(said, ("samples_us", "median_us"))
        if fatal or median is None or not samples:
            raise Malformed(f"status = {status} with {'a lost context' if fatal else 'no time'}")
        if not min(samples) <= median <= max(samples):
            raise Malformed(f"median_us = {median:g}, outside its samples from {min(samples):g} to {max(samples):g}")
    elif median is not None or samples:
        raise Malformed(f"status = {status} with a time of {median if median is not None else samples[0]:g} us")
    return Answer(measurement=Measurement(**found), fatal=fatal)


def read_finals(said: Mapping[str, Any], contestants: int) -> FinalsSamples:
    """The times of so many contestants beside the library's, and what was wrong with their answers."""
    _able(said)
    found = _checked(said, FINALS, needs=("rounds", "hot_l2_us", "eager_us"))
    wrong = found.get("wrong", ("",) * contestants)
    for key, values in (("hot_l2_us", found["hot_l2_us"]), ("eager_us", found["eager_us"]), ("wrong", wrong)):
        if len(values) != contestants:
            raise Malformed(f"{key} = a list of {len(values)}, where {contestants} contestants were timed")
    times = _rounds(found["rounds"], contestants)
    return FinalsSamples(times[:, 1:], times[:, 0], found["hot_l2_us"], found["eager_us"], wrong)


def read_rounds(said: Mapping[str, Any], contestants: int) -> FinalsSamples:
    """Rounds of so many contestants beside the library, and no more of them."""
    _able(said)
    times = _rounds(_checked(said, ROUNDS, needs=("rounds",))["rounds"], contestants)
    return FinalsSamples(times[:, 1:], times[:, 0])


def _rounds(rounds: tuple[tuple[float, ...], ...], contestants: int) -> NDArray[np.float64]:
    if len(rounds) < FEWEST_ROUNDS:
        raise Malformed(f"rounds = a list of {len(rounds)}, where {FEWEST_ROUNDS} are the fewest")
    for index, times in enumerate(rounds):
        if len(times) != contestants + 1:
            raise Malformed(f"rounds[{index}] = a list of {len(times)}, where the library and {contestants} contestants were timed")
    return np.array(rounds, dtype=np.float64)


def _able(said: Mapping[str, Any]) -> None:
    """Raise what it says in place of an answer where it could not do what was asked."""
    if "status" in said:
        failure = read_answer(said).measurement
        if failure.status in TIMED:
            raise Malformed(f"status = {failure.status}, which nobody asked for")
        raise Lost(failure.status, failure.message)


def _checked(said: Mapping[str, Any], checks: Mapping[str, Check], needs: tuple[str, ...]) -> dict[str, Any]:
    for key in said:
        if key not in checks:
            raise Malformed(f"{shown(key)} = {_told(said[key])}, which nobody asked for")
    _need(said, needs)
    return {key: checks[key](key, value) for key, value in said.items()}


def _need(said: Mapping[str, Any], keys: tuple[str, ...]) -> None:
    for key in keys:
        if key not in said:
            raise Malformed(f"without {key}: {_told(said)}")


def _told(value: Any) -> str:
    """A value as a sentence may repeat it."""
    if isinstance(value, list):
        return f"a list of {len(value)}"
    if isinstance(value, Mapping):
        return f"an object with {', '.join(shown(key) for key in list(value)[:4])}" if value else "an empty object"
    return shown(json.dumps(value), quotes=False)


def _number(key: str, value: Any, least: float, most: float, what: str) -> float:
    """A bool is none, though Python counts with it; NaN is outside of every range."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not least <= value <= most:
        raise Malformed(f"{key} = {_told(value)}, where {what} belongs")
    return float(value)


def _time(key: str, value: Any) -> float:
    return _number(key, value, SHORTEST_US, LONGEST_US, "a time in us above 0")


def _above_zero(key: str, value: Any) -> float:
    return _number(key, value, math.ulp(0.0), 1e12, "a number above 0")


def _clock(key: str, value: Any) -> float | None:
    """Where the driver does not know it, it says 0."""
    return _number(key, value, 0.0, 1e6, "a clock in MHz") or None


def _bound(key: str, value: Any) -> float:
    return _number(key, value, 0.0, 1e12, "a number from 0 on")


def _error(key: str, value: Any) -> float:
    """What an answer is off by can be infinite, or NaN where the answer holds some."""
    if isinstance(value, float) and math.isnan(value):
        return value
    return _number(key, value, 0.0, math.inf, "a number from 0 on")


def _count(key: str, value: Any) -> int:
    if isinstance(value, float) or _number(key, value, 1, 2**62, "a whole number from 1 on") < 1:
        raise Malformed(f"{key} = {_told(value)}, where a whole number from 1 on belongs")
    return int(value)


def _bytes(key: str, value: Any) -> int:
    if isinstance(value, float):
        raise Malformed(f"{key} = {_told(value)}, where a whole number belongs")
    return int(_number(key, value, 0, 2**62, "a number of bytes"))


def _text(key: str, value: Any) -> str:
    if not isinstance(value, str):
        raise Malformed(f"{key} = {_told(value)}, where a text belongs")
    return visible(value)


def _message(key: str, value: Any) -> str:
    return _text(key, value)[:MESSAGE_CHARACTERS]


def _status(key: str, value: Any) -> str:
    if value not in STATUSES:
        raise Malformed(f"{key} = {_told(value)}, which is none of {', '.join(STATUSES)}")
    return str(value)


def _flag(key: str, value: Any) -> bool:
    if not isinstance(value, bool):
        raise Malformed(f"{key} = {_told(value)}, where true or false belongs")
    return value


def _hello(key: str, value: Any) -> str:
    if value != "hello":
        raise Malformed(f"{key} = {_told(value)}, where hello belongs")
    return str(value)


def _maybe(check: Check) -> Check:
    return lambda key, value: None if value is None else check(key, value)


def _each(check: Check) -> Check:
    """A list, every element of which passes the check."""

    def checked(key: str, value: Any) -> tuple[Any, ...]:
        if not isinstance(value, list):
            raise Malformed(f"{key} = {_told(value)}, where a list belongs")
        return tuple(check(f"{key}[{index}]", one) for index, one in enumerate(value))

    return checked


HELLO: Mapping[str, Check] = {
    "op": _hello,
    "library_us": _time,
    "sets": _count,
    "l2_bytes": _bytes,
    "sms": _count,
    "operands": _message,
    "operands_over_l2": _maybe(_above_zero),
    "check_seconds": _bound,
}
ANSWER: Mapping[str, Check] = {
    "status": _status,
    "message": _message,
    "samples_us": _each(_time),
    "median_us": _maybe(_time),
    "relative_error": _maybe(_error),
    "error_bound": _maybe(_bound),
    "sm_clock_mhz": _maybe(_clock),
    "throttle_reasons": _maybe(_text),
    "fatal": _flag,
}
ROUNDS: Mapping[str, Check] = {"rounds": _each(_each(_time))}
FINALS: Mapping[str, Check] = {
    **ROUNDS,
    "hot_l2_us": _each(_time),
    "eager_us": _each(_time),
    "wrong": _each(_message),
}
assert {field.name for field in fields(Hello)} == HELLO.keys() - {"op"}
