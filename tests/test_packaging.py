"""What an installed package holds: the four packages whole, their data files, and nothing else."""

from __future__ import annotations

import tomllib
from fnmatch import fnmatch
from pathlib import Path

ROOT = Path(__file__).parent.parent
SETTINGS = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
FLOORS = ("search_spaces", "cost_models", "db", "tuner")


def test_every_folder_with_modules_is_packaged() -> None:
    found = {path.parent.relative_to(ROOT).as_posix().replace("/", ".") for floor in FLOORS for path in (ROOT / floor).rglob("*.py")}
    assert set(SETTINGS["tool"]["setuptools"]["packages"]) == found


def test_every_data_file_is_packaged() -> None:
    data = SETTINGS["tool"]["setuptools"]["package-data"]
    patterns = [f"{package.replace('.', '/')}/{pattern}" for package, given in data.items() for pattern in given]
    for floor in FLOORS:
        for path in (ROOT / floor).rglob("*"):
            name = path.relative_to(ROOT).as_posix()
            if path.is_file() and path.suffix not in (".py", ".pyc"):
                assert any(fnmatch(name, pattern) for pattern in patterns), f"{name} would be left out of the wheel"


def test_tests_are_no_package() -> None:
    assert not list((ROOT / "tests").rglob("__init__.py"))


def test_the_constraints_pin_every_direct_dependency_but_triton() -> None:
    pinned = {line.split("==")[0].lower() for line in (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines() if "==" in line}
    wanted = SETTINGS["project"]["dependencies"] + SETTINGS["project"]["optional-dependencies"]["dev"]
    names = {requirement.split(">=")[0].lower() for requirement in wanted}
    assert names - {"triton"} <= pinned
