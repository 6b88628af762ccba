"""The one exception that means "the person can mend this": one sentence, both numbers, what to do."""


class UserError(Exception):
    """A mistake in what was asked for; the command line prints the sentence and exits with 2."""
