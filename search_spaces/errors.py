"""The one exception that means "the person can mend this": one sentence, both numbers, what to do."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class UserError(Exception):
    """A mistake in what was asked for; the command line prints the sentence and exits with 2."""


def did_you_mean(word: object, known: Iterable[str]) -> str:
    """The end of a sentence that names the known word nearest to this one; empty where none is near."""
    near = difflib.get_close_matches(str(word), list(known), n=1)
    return f"; did you mean {near[0]}?" if near else ""
