"""Where what a person measured is kept unless another place is named: the database, and the constants fitted to it."""

from __future__ import annotations

import os
from pathlib import Path

from search_spaces.errors import UserError


def user_folder() -> Path:
    data = os.environ.get("XDG_DATA_HOME")
    if data:
        return Path(data) / "tuner"
    try:
        return Path.home() / ".local" / "share" / "tuner"
    except RuntimeError:  # neither HOME nor an entry for this user
        raise UserError("it is not known where your files belong: set HOME or XDG_DATA_HOME") from None
