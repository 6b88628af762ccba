"""tuner: finds, proves, remembers and hands on the fastest way for a GPU to multiply two matrices.

The names below are the public interface; they are imported when first used, so that `import tuner` needs neither torch nor numpy.
"""

from __future__ import annotations

import importlib
import os
import sys
from importlib.util import find_spec
from typing import Any

_HOMES = {
    "Hardware": "search_spaces.hardware",
    "Problem": "search_spaces.problem",
    "Schedule": "search_spaces.schedule",
    "UserError": "search_spaces.errors",
    "load_gpu": "search_spaces.gpu_files",
    "load_space": "search_spaces.space",
    "open_reader": "db.reading",
    "open_store": "db.store",
    "parse_schedule": "search_spaces.schedule",
    "rank": "tuner.ranking",
    "run_search": "tuner.searching",
    "SearchWish": "tuner.searching",
}
__all__ = list(_HOMES)

_BESIDE = ("search_spaces", "cost_models", "db")  # the packages that stand beside this one and are imported by these names


def _hiding() -> str:
    """The sentence about what stands before a package of ours on the path, such as a db.py beside a script; empty where nothing does."""
    folder = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    for name in _BESIDE:
        found = _folder_of(name)
        if found is None:
            return f"{os.path.join(folder, name)}, which belongs to tuner, is not found; reinstall the package"
        if not _same(found, os.path.join(folder, name)):
            what = f"{found} hides the package {name} of tuner ({os.path.join(folder, name)})"
            return f"{what}; rename it, or run from a folder that is not on Python's path with it"
    return ""


def _folder_of(name: str) -> str | None:
    """The file or folder that `import name` takes or took: a package's folder, or a module's file."""
    module = sys.modules.get(name)
    if module is not None:
        file, folders = getattr(module, "__file__", None), list(getattr(module, "__path__", ()))
    else:
        spec = find_spec(name)
        file, folders = (spec.origin, list(spec.submodule_search_locations or ())) if spec else (None, [])
    return folders[0] if folders else file


def _same(one: str, other: str) -> bool:
    return os.path.realpath(one) == os.path.realpath(other)


def _is_command() -> bool:
    """Whether Python was started as the command line of this package, which prints HIDING as its own error."""
    words = sys.orig_argv
    after = words.index("-m") + 1 if "-m" in words else len(words)
    return words[after : after + 1] == ["tuner.cli"] or os.path.basename(sys.argv[0] if sys.argv else "") == "tuner"


HIDING = _hiding()
if HIDING and not _is_command():
    raise ImportError(HIDING)


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'tuner' has no attribute {name!r}")
    return getattr(importlib.import_module(_HOMES[name]), name)
