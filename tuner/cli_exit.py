"""How a command ends: by which exit code, after which sentence, whatever was raised and whichever signal came."""

from __future__ import annotations

import os
import signal
import sys
from enum import IntEnum

import click

from search_spaces.errors import MachineFault, UserError
from tuner.cli_options import say

TRACEBACK = "TUNER_TRACEBACK"  # environment variable: where it is set, an internal fault is shown with its traceback


class Exit(IntEnum):
    """70 is BSD's EX_SOFTWARE. A terminal that is closed ends a command as SIGTERM does."""

    FOUND = 0
    NOTHING_FOUND = 1
    WRONG_USAGE = 2
    MACHINE_FAULT = 3
    INTERNAL_FAULT = 70
    INTERRUPTED = 130
    QUIT = 131
    TERMINATED = 143


ENDING = {signal.SIGTERM: Exit.TERMINATED, signal.SIGHUP: Exit.TERMINATED, signal.SIGQUIT: Exit.QUIT}


def run(app: click.Group) -> None:
    """Run the command line: the only place where an error becomes a sentence and an exit code."""
    _prepare_streams()
    for number in ENDING:
        if signal.getsignal(number) != signal.SIG_IGN:  # as under nohup
            signal.signal(number, lambda number, frame: sys.exit(ENDING[signal.Signals(number)]))  # cleans up as Ctrl-C does
    try:
        app(standalone_mode=False, prog_name="tuner")
    except UserError as error:
        _leave(f"tuner: {error}", Exit.WRONG_USAGE)
    except MachineFault as error:
        _leave(f"tuner: {error}", Exit.MACHINE_FAULT)
    except click.exceptions.NoArgsIsHelpError as error:
        _leave(error.format_message(), Exit.WRONG_USAGE)
    except click.ClickException as error:
        context = getattr(error, "ctx", None)
        command = context.command_path if context else "tuner"
        _leave(f"tuner: {error.format_message().rstrip('.')}; see `{command} --help`", Exit.WRONG_USAGE)
    except (KeyboardInterrupt, click.Abort):
        _leave("tuner: interrupted; what was measured is stored, and the same command goes on from there", Exit.INTERRUPTED)
    except Exception as error:  # the boundary where nothing may leave with the code of another meaning
        if os.environ.get(TRACEBACK):
            raise
        _leave(*_unexpected(error))


def _prepare_streams() -> None:
    """Characters that the terminal's encoding has not are escaped; and where a stream is closed, no file takes its number."""
    for stream in (sys.stdout, sys.stderr):
        if stream is not None:
            stream.reconfigure(errors="backslashreplace")  # type: ignore[union-attr]
    for number in (0, 1, 2):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)


def _unexpected(error: Exception) -> tuple[str, Exit]:
    from tuner.causes import cause_of

    words = next(iter(str(error).splitlines()), "") or type(error).__name__
    if cause_of(error) == "machine_fault":
        return f"tuner: the machine failed: {words}; what was measured is stored", Exit.MACHINE_FAULT
    what = f"tuner: internal fault, {type(error).__name__}: {words}; please report it with what the same command says"
    return f"{what} under {TRACEBACK}=1", Exit.INTERNAL_FAULT


def _leave(sentence: str, code: Exit) -> None:
    try:
        say(sentence)
    finally:
        sys.exit(code)  # also where nobody hears it
