"""The four packages are floors: imports point down only, and heavy libraries stay where they belong."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
FLOORS = ("search_spaces", "cost_models", "db", "tuner")
HOMES = {
    "torch": "tuner",
    "triton": "tuner",
    "sqlalchemy": "db",
    "alembic": "db",
    "optuna": ("tuner/strategies", "tuner/optuna_study.py"),
    "click": ("tuner/cli.py", "tuner/cli_exit.py", "tuner/cli_options.py"),
    "sqlite3": "db",
}
MODULES = sorted(path.relative_to(ROOT).as_posix() for floor in FLOORS for path in (ROOT / floor).rglob("*.py"))


def imported(path: Path) -> set[str]:
    """Dotted names of everything that a module imports, wherever it does."""
    names: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path} has a relative import"
            names.add(node.module or "")
    return names


@pytest.mark.parametrize("module", MODULES)
def test_imports_point_down(module: str) -> None:
    floor = FLOORS.index(module.split("/")[0])
    above = set(FLOORS[floor + 1 :])
    assert not {name.split(".")[0] for name in imported(ROOT / module)} & above


@pytest.mark.parametrize("module", MODULES)
def test_heavy_libraries_stay_at_home(module: str) -> None:
    for name in imported(ROOT / module):
        home = HOMES.get(name.split(".")[0])
        assert home is None or module.startswith(home), f"{module} imports {name}, which belongs to {home}"


def test_runtime_needs_no_database() -> None:
    assert not {"db", "sqlalchemy"} & {
        name.split(".")[0] for exporter in (ROOT / "tuner/kernels").glob("*.py") for name in imported(exporter)
    }


@pytest.mark.parametrize("module", [m for m in MODULES if m not in ("tuner/cli.py", "tuner/cli_exit.py")])
def test_only_the_command_line_prints_and_exits(module: str) -> None:
    for node in ast.walk(ast.parse((ROOT / module).read_text(encoding="utf-8"))):
        if isinstance(node, ast.Call):
            name = ast.unparse(node.func)
            assert name not in ("print", "exit", "sys.exit"), f"{module}:{node.lineno} calls {name}"


@pytest.mark.parametrize("module", ["tuner.ranking", "tuner.explaining", "tuner.answers", "tuner.cli"])
def test_what_needs_no_gpu_never_imports_torch(module: str) -> None:
    code = f"import sys, {module}; sys.exit(bool({{'torch', 'triton', 'optuna'}} & set(sys.modules)))"
    assert subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=False).returncode == 0


def test_best_answers_without_numpy_or_sqlalchemy() -> None:
    heavy = {"numpy", "sqlalchemy", "alembic", "torch"}
    code = f"import sys, tuner.cli, tuner.answers, tuner.scope; sys.exit(bool({heavy} & set(sys.modules)))"
    assert subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=False).returncode == 0
