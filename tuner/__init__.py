"""tuner: finds, proves, remembers and hands on the fastest way for a GPU to multiply two matrices.

The names below are the public interface; they are imported when first used, so that `import tuner` needs neither torch nor numpy.
"""

from __future__ import annotations

import importlib
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


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'tuner' has no attribute {name!r}")
    return getattr(importlib.import_module(_HOMES[name]), name)
