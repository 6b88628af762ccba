"""Stands in for the measuring process: same lines in and out, no GPU. What it does with a schedule is chosen by the schedule's group_m.

State that outlives it, such as how often it has crashed, is kept in the folder that TRITON_CACHE_DIR names.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

MARKS = Path(os.environ["TRITON_CACHE_DIR"])


def true_us(schedule: dict[str, Any]) -> float:
    """Wide tiles are fast; every schedule has its own time."""
    return 1e6 / (schedule["cta_m"] * schedule["cta_n"]) ** 0.5 / schedule["warps"] + schedule["stages"] * 0.01


def ok(schedule: dict[str, Any]) -> dict[str, Any]:
    us = true_us(schedule)
    checked = {"relative_error": 0.001, "error_bound": 0.004, "sm_clock_mhz": 1980.0, "throttle_reasons": ""}
    return {"status": "ok", "message": "", "samples_us": [us] * 3, "median_us": us, **checked}


def mark(name: str) -> int:
    """How often this was called, over all lives of the process."""
    with (MARKS / name).open("a") as file:
        file.write("x")
    return len((MARKS / name).read_text())


def measure(schedule: dict[str, Any]) -> dict[str, Any]:
    match schedule["group_m"]:
        case 2:
            mark("crashes")
            os.kill(os.getpid(), signal.SIGSEGV)
        case 3:
            time.sleep(600)
        case 4:
            return {"status": "wrong_answer", "message": "C holds NaN", "relative_error": float("inf"), "error_bound": 0.004}
        case 5:
            mark("fatal")
            return {"status": "crashed", "message": "illegal memory access", "fatal": True}
        case 6:
            os.write(1, b"garbage\n")
        case 7:
            if mark("killed") == 1:
                os.kill(os.getpid(), signal.SIGKILL)
        case 8:
            sys.exit(9)
        case 9:
            if (MARKS / "poisoned").exists() and not (MARKS / "fresh").exists():
                (MARKS / "fresh").touch()
                os.kill(os.getpid(), signal.SIGBUS)
            (MARKS / "poisoned").touch()
    return ok(schedule)


def answer(request: dict[str, Any]) -> dict[str, Any]:
    if request["op"] == "measure":
        with (MARKS / "asked").open("a") as file:
            file.write(json.dumps(request["schedule"]) + "\n")
        return measure(request["schedule"])
    if request["op"] == "finals":
        times = [true_us(schedule) for schedule in request["schedules"]]
        rounds = [[times[0] * 1.1, *times] for _ in range(20)]
        return {"rounds": rounds, "hot_l2_us": times, "eager_us": [t + 10 for t in times], "wrong": [""] * len(times)}
    if request["op"] == "rounds":
        times = [true_us(schedule) for schedule in request["schedules"]]
        return {"rounds": [[times[0] * 1.1, *times]] * request["rounds"]}
    return {"library_us": 1e5}


def main() -> None:
    if sys.argv[1:] == ["--wait"]:
        mark("standbys")
        if not sys.stdin.readline():
            return
    mark("lives")
    sys.stdout.write(json.dumps({"op": "hello", "library_us": 1e5}) + "\n")
    sys.stdout.flush()
    for line in sys.stdin:
        content = answer(json.loads(line))
        sys.stdout.write(json.dumps(content) + "\n")
        sys.stdout.flush()
        if content.get("fatal"):
            os._exit(3)


if __name__ == "__main__":
    main()
