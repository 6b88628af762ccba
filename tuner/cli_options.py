"""What the commands share: options that several take, and how they say things. `cli` has the commands; nothing heavy is imported before
it is needed.

All that is printed goes through `put`, which lets nothing through that a terminal would obey: names come from databases and files that
others wrote.
"""

from __future__ import annotations

import functools
import json
import os
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import click

from search_spaces.errors import MachineFault, UserError
from search_spaces.plain_text import LARGEST, shown, visible, whole_number
from search_spaces.problem import Problem, parse_shape
from tuner.canonical import canonical

if TYPE_CHECKING:
    from search_spaces.hardware import Hardware
    from tuner.ranking import Ranking
    from tuner.search import Progress

Command = Callable[..., Any]


LARGEST_SEED = 2**32 - 1  # that every strategy takes
CLEAR_LINE = "\r\x1b[2K"
READER_GONE = 141  # what a shell makes of SIGPIPE


def put(text: str, *, err: bool = False, end: str = "\n", before: str = "") -> None:
    """Print to stdout, or to stderr. before: our own orders to the terminal, which are printed as they are.

    A reader that is gone, as `head` is once it has enough, ends the program quietly. Raises MachineFault where there is no room.
    """
    try:
        click.echo(before + visible(text) + end, nl=False, err=err)
    except BrokenPipeError:
        _drop(err)
        raise SystemExit(READER_GONE) from None
    except OSError as error:
        _drop(err)
        raise MachineFault(f"cannot write to {'stderr' if err else 'stdout'}: {error.strerror}") from None


def _drop(err: bool) -> None:
    """What could not be written would be tried again at the end of the program."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 2 if err else 1)
    os.close(nowhere)


def say(text: str) -> None:
    """A line that is no result: to stderr."""
    put(text, err=True)


def print_result(as_json: bool, value: Callable[[], object], text: Callable[[], str]) -> None:
    put(json.dumps(value(), indent=2) if as_json else text())


class Whole(click.ParamType):  # type: ignore[type-arg] # generic in Click's newer versions only
    """A whole number in decimal digits, from `least` to `most`."""

    name = "integer"

    def __init__(self, *, least: int = 0, most: int = LARGEST) -> None:
        self._least, self._most = least, most

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> int:
        if isinstance(value, int):
            return value
        what = max(param.opts, key=len) if param else "the number"
        return whole_number(str(value), what, least=self._least, most=self._most)


def split_names(text: str) -> tuple[str, ...]:
    """`a,b` -> ("a", "b")."""
    return tuple(name.strip() for name in text.split(",") if name.strip())


def load_hardware(gpu: str) -> Hardware:
    from search_spaces.gpu_files import load_gpu

    hardware = load_gpu(gpu)
    if hardware.name != gpu:
        say(f"{gpu} stands for {hardware.name} ({hardware.title})")
    return hardware


def say_borrowed(ranking: Ranking) -> None:
    """Where the model's constants are not this GPU's own."""
    from cost_models.calibration_files import borrowed

    if sentence := borrowed(ranking.hardware, ranking.calibration):
        say(sentence)


def leading_dimensions(text: str) -> tuple[int, int, int]:
    parts = text.split(",")
    if len(parts) != 3:
        raise UserError(f"--ld {shown(text)} is not three numbers; give lda,ldb,ldc, with 0 for the densest")
    a, b, c = (whole_number(part, f"--ld {name}") for part, name in zip(parts, ("lda", "ldb", "ldc"), strict=True))
    return a, b, c


def narrowed(families: str, triton: str, any_environment: bool, unordered: bool) -> dict[str, Any]:
    """What `scope_options` came to, as fields of a `Scope`."""
    return {
        "families": split_names(families),
        "triton": triton or None,
        "any_environment": any_environment,
        "unordered": unordered,
    }


def _options(*options: Command) -> Callable[[Command], Command]:
    def apply(command: Command) -> Command:
        return functools.reduce(lambda wrapped, option: option(wrapped), reversed(options), command)

    return apply


def problem_options(command: Command) -> Command:
    """Options that make one product; the command gets it as `problem`. An empty product ends here: there is nothing to tune."""

    @_options(
        click.option("--shape", required=True, metavar="MxNxK", help="C[M,N] = A[M,K] @ B[K,N]."),
        click.option(
            "--dtype", default="bf16", show_default=True, help="Type of A and B: bf16 or fp16 (fp32 for a roofline); sums are fp32."
        ),
        click.option("--out-dtype", default="", help="Type of C; the same as --dtype unless given."),
        click.option("--layout", default="nt", show_default=True, help="nn, nt, tn or tt, row-major; nt is x @ w.T with w stored [N, K]."),
        click.option("--ld", default="0,0,0", metavar="A,B,C", help="Leading dimensions in elements; 0 is the densest."),
        click.option(
            "--alignment", default=16, type=Whole(least=1), show_default=True, help="Bytes that the base pointers are a multiple of."
        ),
        click.option(
            "--prepack",
            default="",
            help="Operands that you repack once where their rows are not 16-byte aligned, such as weights: the product is tuned, and"
            " recorded, with the leading dimension that this gives them.",
        ),
    )
    @functools.wraps(command)
    def wrapped(shape: str, dtype: str, out_dtype: str, layout: str, ld: str, alignment: int, prepack: str, **others: Any) -> None:
        (m, n, k), (lda, ldb, ldc) = parse_shape(shape), leading_dimensions(ld)
        kind = {"dtype": dtype, "out_dtype": out_dtype, "layout": layout}
        problem = Problem(m=m, n=n, k=k, lda=lda, ldb=ldb, ldc=ldc, alignment_bytes=alignment, **kind)
        if prepack not in ("", "a", "b", "ab"):
            raise UserError(f"--prepack {shown(prepack)}: give a, b or ab")
        asked, problem = problem, problem.prepacked(prepack)
        for name in ("lda", "ldb"):
            if getattr(asked, name) != getattr(problem, name):
                say(f"{name[-1]} repacked once: {name} is {getattr(problem, name)} in place of {getattr(asked, name)}")
        if problem.is_empty:
            what = "the output is empty" if 0 in (m, n) else "the output is all zeros"
            put(f"{problem.shape}: {what}; there is nothing to tune")
            return
        asked, problem = problem, canonical(problem)
        if asked != problem:
            say(f"{asked.text} is {problem.text}: a matrix of one row or column is a vector, whose layout says nothing")
        command(problem=problem, **others)

    return wrapped


gpu_option = click.option("--gpu", required=True, help="A GPU's name or alias (see `tuner gpus`), or a YAML file of its figures.")
db_option = click.option("--db", default=None, help="Database file or URL; else TUNER_DB, else a file in the user's data folder.")
unordered_option = click.option(
    "--unordered", is_flag=True, help="Let schedules answer whose bits may differ from run to run (fused_reduction 2)."
)
scope_options = _options(
    click.option("--families", default="", help="Only schedules of these kernel families, separated by commas."),
    click.option("--triton", default="", metavar="VERSION", help="Only what this version of Triton compiled."),
    click.option(
        "--any-environment",
        is_flag=True,
        help="Whatever device, driver and libraries it was measured with; unless given, this machine's come first, and others are named.",
    ),
    unordered_option,
)
json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON.")
search_options = _options(
    click.option("--strategy", default="auto", show_default=True, help="How candidates are chosen (see `tuner strategies`)."),
    click.option(
        "--trials",
        default=0,
        type=Whole(),
        help="Most schedules to measure (0: 48) or, without the GPU, to compile (0: 32).",
    ),
    click.option(
        "--regret",
        default="",
        help="Stop once what is not measured is expected to be faster than the best by less, such as 1% or 0.01; 0 for never. Unless"
        " given: 1%, and 0 for exhaustive, random and spread.",
    ),
    click.option("--seed", default=0, type=Whole(most=LARGEST_SEED), help="Seed of the strategies that draw."),
    click.option("--again", "anew", is_flag=True, help="Measure even what is known."),
    click.option("--measure-anyway", is_flag=True, help="Measure on the GPU that is present though it is another one."),
)
top_k_option = click.option("--top-k", default=10, show_default=True, type=Whole(least=1), help="How many to show.")
space_options = _options(
    click.option("--space", default="default", show_default=True, help="A space's name (see `tuner spaces`), or a YAML file."),
    click.option(
        "--axis",
        "axes",
        multiple=True,
        metavar="AXIS=VALUES",
        help="Change an axis of the space: cta_m=64,128 takes these values, group_m=+32 one more, split_k=-3 one less; tma.stages=4"
        " for one family. Repeatable.",
    ),
    click.option("--families", default="", help="Kernel families, separated by commas; all of the space unless given."),
    click.option("--model", default="hierarchy", show_default=True, help="Cost model that ranks: hierarchy or roofline."),
)


class ProgressLine:
    """One line on a terminal's stderr, rewritten as the search goes on, and gone before the results."""

    def __init__(self) -> None:
        self._live = sys.stderr is not None and sys.stderr.isatty()

    def __enter__(self) -> ProgressLine:
        return self

    def __exit__(self, *_: object) -> None:
        self.clear()

    def clear(self) -> None:
        if self._live:
            put("", err=True, end="", before=CLEAR_LINE)

    def say(self, text: str) -> None:
        """A line that stays, above this one."""
        self.clear()
        say(text)

    def show(self, progress: Progress) -> None:
        if not self._live:
            return
        best, left = progress.best, progress.seconds_left
        parts = [f"compiled {progress.compiled}/{progress.total}", f"measured {progress.measured}"]
        parts += [f"failed {progress.failed}"] if progress.failed else []
        parts += [f"best {best.measurement.median_us:.2f} us {best.schedule}"] if best else []
        parts += [f"estimated regret {progress.regret:.1%}"] if progress.regret is not None else []
        parts += [f"{left:.0f} s left"] if left is not None else []
        put(", ".join(parts), err=True, end="", before=CLEAR_LINE)
