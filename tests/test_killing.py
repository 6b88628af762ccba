"""Killed at any moment, again and again: no row is lost or there twice, and after the next start nothing lies about."""

from __future__ import annotations

import os
import random
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import pytest

from db.reading import open_reader
from search_spaces.errors import UserError

TESTS = Path(__file__).parent
SPACE = "pointer: {cta_m: [16, 32, 64], cta_n: [32, 64], cta_k: 32, warps: 4, stages: 2, group_m: 1}"
ROWS = 6
MEASURING = f"""
import sys; sys.path[:0] = [{str(TESTS.parent)!r}, {str(TESTS)!r}]
from pathlib import Path
from test_search import run
run(Path(sys.argv[1]), space={SPACE!r}, report=lambda progress: print(progress.measured, flush=True))
"""
AXES = "cta_m, cta_n, cta_k, warps, stages, group_m"


def commands(database: Path, space: Path) -> dict[str, list[str]]:
    space.write_text(SPACE)
    product = ("--shape", "1024x1024x512", "--gpu", "h200", "--space", str(space), "--db", str(database))
    return {
        "measuring": [sys.executable, "-c", MEASURING, str(database)],
        "compiling": [sys.executable, "-m", "tuner", "search", "--no-measure", *product],
    }


@pytest.mark.parametrize("kind", ["measuring", "compiling"])
def test_kills_lose_nothing_and_leave_nothing(tmp_path: Path, kind: str, request: pytest.FixtureRequest) -> None:
    fuzz = request.config.getoption("--fuzz")
    if kind == "compiling" and not fuzz:
        pytest.skip("with --fuzz only")
    database, files = tmp_path / "t.db", tmp_path / "tmp"
    files.mkdir()
    command = commands(database, tmp_path / "space.yaml")[kind]
    moments = random.Random(5)
    kept = 0
    for _ in range(20 if fuzz else 3):
        shown = killed_after(command, files, moments.uniform(0.1, 2.5))
        rows = stored(database)
        assert rows >= max(kept, shown)
        kept = rows
    ran = subprocess.run(command, env=environment(files), cwd=TESTS.parent, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stderr
    assert stored(database) == ROWS
    with sqlite3.connect(database) as connection:
        assert connection.execute(f"SELECT {AXES} FROM trial GROUP BY {AXES} HAVING COUNT(*) > 1").fetchall() == []
    connection.close()
    assert [file.name for file in files.iterdir() if not file.name.startswith("tuner-gpu-")] == []


def killed_after(command: Sequence[str], files: Path, seconds: float) -> int:
    """Kill it after so long, children left to themselves; how many results it had told of."""
    process = subprocess.Popen(
        command, env=environment(files), cwd=TESTS.parent, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    )
    time.sleep(seconds)
    process.send_signal(signal.SIGKILL)
    told = [line for line in process.communicate()[0].splitlines() if line.isdigit()]
    return int(told[-1]) if told else 0


def environment(files: Path) -> dict[str, str]:
    return os.environ | {"TMPDIR": str(files), "CUDA_VISIBLE_DEVICES": ""}


def stored(database: Path) -> int:
    try:
        with open_reader(database) as reader:
            return sum(reader.stats().trials.values())
    except UserError as error:
        if not str(error).startswith("there is no database at"):  # killed before it was made
            raise
        return 0
