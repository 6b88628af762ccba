"""A `db` beside a script or notebook that imports tuner: what hides ours is named, whichever came first."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
RENAME = "rename it, or run from a folder that is not on Python's path with it"


def a_module(folder: Path) -> Path:
    (folder / "db.py").write_text("")
    return folder / "db.py"


def a_package(folder: Path) -> Path:
    (folder / "cost_models").mkdir()
    (folder / "cost_models" / "__init__.py").write_text("")
    return folder / "cost_models"


def run(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    environment = {"PYTHONPATH": str(ROOT), "PATH": "/usr/bin:/bin"}
    return subprocess.run([sys.executable, *words], cwd=folder, env=environment, capture_output=True, text=True, check=False)


@pytest.mark.parametrize("make", [a_module, a_package])
@pytest.mark.parametrize("code", ["import tuner", "from tuner.strategies import load_strategy", "import {name}\nimport tuner"])
def test_what_hides_a_package_is_named(make, code: str, tmp_path: Path) -> None:
    hiding = make(tmp_path)
    (tmp_path / "script.py").write_text(code.format(name=hiding.stem))
    ran = run(tmp_path, "script.py")
    own = ROOT / hiding.stem
    assert ran.returncode == 1
    assert ran.stderr.splitlines()[-1] == f"ImportError: {hiding} hides the package {hiding.stem} of tuner ({own}); {RENAME}"


def test_the_command_line_says_it_without_a_traceback(tmp_path: Path) -> None:
    hiding = a_module(tmp_path)
    ran = run(tmp_path, "-m", "tuner.cli", "gpus")
    sentence = f"tuner: {hiding} hides the package db of tuner ({ROOT / 'db'}); {RENAME}\n"
    assert (ran.returncode, ran.stdout, ran.stderr) == (2, "", sentence)


def test_a_folder_without_an_init_hides_nothing(tmp_path: Path) -> None:
    (tmp_path / "db").mkdir()
    (tmp_path / "script.py").write_text("import tuner, db.records\nprint(tuner.load_gpu('h200').name)")
    ran = run(tmp_path, "script.py")
    assert (ran.stdout, ran.stderr) == ("h200-sxm-141gb\n", "")
