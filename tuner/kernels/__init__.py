"""Which kernel families there are: a module of this folder that has `calls` is one. Looking for them imports neither torch nor triton."""

from __future__ import annotations

import ast
import hashlib
from functools import cache
from importlib import import_module
from pathlib import Path
from types import ModuleType

from search_spaces.errors import UserError

FOLDER = Path(__file__).parent


def _source(name: str) -> str:
    return (FOLDER / f"{name}.py").read_text(encoding="utf-8")


def _defines_calls(tree: ast.Module) -> bool:
    functions = {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}
    assigned = {target.id for node in tree.body if isinstance(node, ast.Assign) for target in node.targets if isinstance(target, ast.Name)}
    return "calls" in functions | assigned


@cache
def family_names() -> tuple[str, ...]:
    names = sorted(file.stem for file in FOLDER.glob("*.py") if not file.stem.startswith("_"))
    return tuple(name for name in names if _defines_calls(ast.parse(_source(name))))


def family_module(name: str) -> ModuleType:
    """A module with `calls`, `supports` and `EXPORTS`."""
    if name not in family_names():
        raise UserError(f"no kernel family named {name!r}; known: {', '.join(family_names())}")
    return import_module(f"{__name__}.{name}")


def _helpers(name: str) -> set[str]:
    """Modules of this folder that a module imports."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(_source(name))):
        if isinstance(node, ast.ImportFrom) and node.module == __name__:
            found.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and node.module.startswith(f"{__name__}."):
            found.add(node.module.removeprefix(f"{__name__}."))
    return found


@cache
def kernel_hash(name: str) -> str:
    """sha256 over the sources of a family and of what it uses from this folder; a change of Triton does not change it."""
    used, found = set[str](), {name}
    while found:
        used |= found
        found = {helper for module in found for helper in _helpers(module)} - used
    digest = hashlib.sha256()
    for module in sorted(used):
        digest.update(f"{module}\0{_source(module)}\0".encode())
    return digest.hexdigest()


def kernel_hashes() -> dict[str, str]:
    """The hash of every family."""
    return {name: kernel_hash(name) for name in family_names()}
