"""Where what a person measured is kept unless another place is named: the database, and the constants fitted to it."""

from __future__ import annotations

import os
from pathlib import Path


def user_folder() -> Path:
    data = os.environ.get("XDG_DATA_HOME") or Path.home() / ".local" / "share"
    return Path(data) / "tuner"
