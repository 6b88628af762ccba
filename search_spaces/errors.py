"""The two exceptions that end a command with a sentence: a person can mend what was asked for, or the machine has to be seen to."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class UserError(Exception):
    """A mistake in what was asked for; the command line prints the sentence and exits with 2."""


class MachineFault(Exception):
    """The machine, not what was asked for, is at fault: no disk, no memory, a driver that is not ready. The command line prints the
    sentence and exits with 3; the same command is right once that is mended."""


def did_you_mean(word: object, known: Iterable[str]) -> str:
    """The end of a sentence that names the known word nearest to this one; empty where none is near."""
    near = difflib.get_close_matches(str(word), list(known), n=1)
    return f"; did you mean {near[0]}?" if near else ""
