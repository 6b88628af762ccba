"""The command line: reads what was asked, says what it understood, calls the rooms below, prints. Errors a person can mend end here, with exit code 2.

Commands that need neither torch nor numpy import neither: `tuner best` answers within a blink.
"""

from __future__ import annotations

import sys
from enum import IntEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from search_spaces.errors import UserError

if TYPE_CHECKING:
    from search_spaces.hardware import Hardware
    from search_spaces.problem import Problem


class Exit(IntEnum):
    FOUND = 0
    NOTHING_FOUND = 1
    WRONG_USAGE = 2
    INTERRUPTED = 130


app = typer.Typer(
    help="Finds, proves, remembers and hands on the fastest way for a GPU to multiply two matrices.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    add_completion=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)

Shape = Annotated[str, typer.Option("--shape", help="MxNxK: C[M,N] = A[M,K] @ B[K,N].")]
Gpu = Annotated[str, typer.Option("--gpu", help="A GPU's name or alias (see `tuner gpus`), or a YAML file of its figures.")]
Dtype = Annotated[str, typer.Option("--dtype", help="Type of A and B: bf16 or fp16; sums are fp32.")]
OutDtype = Annotated[str, typer.Option("--out-dtype", help="Type of C; the same as --dtype unless given.")]
Layout = Annotated[str, typer.Option("--layout", help="nn, nt, tn or tt in torch's row-major sense; nt is x @ w.T with w stored [N, K].")]
Leading = Annotated[str, typer.Option("--ld", help="Leading dimensions lda,ldb,ldc in elements; 0 is the densest.")]
Alignment = Annotated[int, typer.Option("--alignment", help="Bytes that the base pointers are a multiple of.")]
Db = Annotated[str | None, typer.Option("--db", help="Database file or URL; else TUNER_DB, else a file in the user's data folder.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON on stdout.")]
SpaceName = Annotated[str, typer.Option("--space", help="A space's name (see `tuner spaces`), or a YAML file.")]
FamilyNames = Annotated[
    str, typer.Option("--families", help="Kernel families to search, separated by commas; all of the space unless given.")
]
Model = Annotated[str, typer.Option("--model", help="Cost model that ranks.")]
ScheduleText = Annotated[str, typer.Option("--schedule", help="A schedule's short text, such as 'tma 128x256x64 w8 s3 g8'.")]
TopK = Annotated[int, typer.Option("--top-k", help="How many to show.", min=1)]


def _problem(shape: str, dtype: str, out_dtype: str, layout: str, leading: str, alignment: int) -> Problem:
    from search_spaces.problem import Problem, parse_shape

    m, n, k = parse_shape(shape)
    parts = leading.split(",")
    if len(parts) != 3 or not all(part.strip().isdigit() for part in parts):
        raise UserError(f"--ld {leading!r} is not three numbers; give lda,ldb,ldc, with 0 for the densest")
    lda, ldb, ldc = (int(part) for part in parts)
    fields = {"dtype": dtype, "out_dtype": out_dtype, "layout": layout}
    return Problem(m=m, n=n, k=k, lda=lda, ldb=ldb, ldc=ldc, alignment_bytes=alignment, **fields)


def _hardware(gpu: str) -> Hardware:
    from search_spaces.gpu_files import load_gpu

    hardware = load_gpu(gpu)
    if hardware.name != gpu:
        _say(f"{gpu} stands for {hardware.name} ({hardware.title})")
    return hardware


def _say(text: str) -> None:
    """A line that is no result: to stderr."""
    typer.echo(text, err=True)


def _nothing_to_tune(problem: Problem) -> bool:
    """Say so where the product is empty."""
    if not problem.is_empty:
        return False
    what = "the output is empty" if 0 in (problem.m, problem.n) else "the output is all zeros"
    typer.echo(f"{problem.shape}: {what}; there is nothing to tune")
    return True


@app.command()
def search(
    shape: Shape,
    gpu: Gpu,
    dtype: Dtype = "bf16",
    out_dtype: OutDtype = "",
    layout: Layout = "nt",
    leading: Leading = "0,0,0",
    alignment: Alignment = 16,
    space: SpaceName = "default",
    families: FamilyNames = "",
    model: Model = "hierarchy",
    strategy: Annotated[str, typer.Option("--strategy", help="How candidates are chosen (see `tuner strategies`).")] = "ranked",
    trials: Annotated[int, typer.Option("--trials", min=1, help="Most schedules to measure; without the GPU, to compile.")] = 0,
    budget: Annotated[str, typer.Option("--budget", help="Wall-clock limit, such as 30s or 5m.")] = "",
    seed: Annotated[int, typer.Option("--seed", help="Seed of the strategies that draw.")] = 0,
    top_k: TopK = 10,
    no_measure: Annotated[bool, typer.Option("--no-measure", help="Rank and compile only, even where the GPU is present.")] = False,
    measure_anyway: Annotated[
        bool, typer.Option("--measure-anyway", help="Measure on the GPU that is present though it is another one.")
    ] = False,
    db: Db = None,
    as_json: AsJson = False,
) -> None:
    """Find, compile, measure and record the fastest schedule of one product."""
    from tuner.searching import SearchWish, run_search

    problem = _problem(shape, dtype, out_dtype, layout, leading, alignment)
    if _nothing_to_tune(problem):
        return
    wish = SearchWish(
        problem=problem,
        hardware=_hardware(gpu),
        space=space,
        families=tuple(name.strip() for name in families.split(",") if name.strip()),
        model=model,
        strategy=strategy,
        trials=trials,
        budget=budget,
        seed=seed,
        measure=not no_measure,
        measure_anyway=measure_anyway,
        location=db,
    )
    raise typer.Exit(run_search(wish, top_k=top_k, as_json=as_json, say=_say))


@app.command()
def best(
    shape: Shape,
    gpu: Gpu,
    dtype: Dtype = "bf16",
    out_dtype: OutDtype = "",
    layout: Layout = "nt",
    leading: Leading = "0,0,0",
    alignment: Alignment = 16,
    db: Db = None,
    as_json: AsJson = False,
) -> None:
    """What is known to be best for one product on one GPU, from the database alone."""
    from tuner.answers import print_best

    problem = _problem(shape, dtype, out_dtype, layout, leading, alignment)
    if _nothing_to_tune(problem):
        return
    found = print_best(problem, _hardware(gpu).name, db, as_json=as_json)
    raise typer.Exit(Exit.FOUND if found else Exit.NOTHING_FOUND)


@app.command()
def explain(
    shape: Shape,
    gpu: Gpu,
    dtype: Dtype = "bf16",
    out_dtype: OutDtype = "",
    layout: Layout = "nt",
    leading: Leading = "0,0,0",
    alignment: Alignment = 16,
    space: SpaceName = "default",
    families: FamilyNames = "",
    model: Model = "hierarchy",
    schedule: ScheduleText = "",
    compile_nearest: Annotated[
        int, typer.Option("--compile", min=0, help="Compile so many of the nearest rejects, to find false ones.")
    ] = 0,
    top_k: TopK = 10,
    db: Db = None,
    as_json: AsJson = False,
) -> None:
    """Why each schedule fell or ranked where it did: reasons with both numbers, terms of the model, predicted against compiled and measured."""
    from tuner.explaining import Explanation, print_explanation

    problem = _problem(shape, dtype, out_dtype, layout, leading, alignment)
    if _nothing_to_tune(problem):
        return
    names = tuple(name.strip() for name in families.split(",") if name.strip())
    asked = Explanation(
        problem=problem,
        hardware=_hardware(gpu),
        space=space,
        families=names,
        model=model,
        schedule=schedule,
        compile_nearest=compile_nearest,
        top_k=top_k,
        location=db,
    )
    print_explanation(asked, as_json=as_json)


@app.command()
def roofline(
    shape: Shape,
    gpu: Gpu,
    dtype: Dtype = "bf16",
    out_dtype: OutDtype = "",
    layout: Layout = "nt",
    tile: Annotated[str, typer.Option("--tile", help="CTA tile MxNxK; without it every element is read once.")] = "",
    as_json: AsJson = False,
) -> None:
    """The hand calculation: FLOPs, traffic, intensity, ridge, lower and upper bound."""
    from tuner.answers import print_roofline

    problem = _problem(shape, dtype, out_dtype, layout, "0,0,0", 16)
    if not _nothing_to_tune(problem):
        print_roofline(problem, _hardware(gpu), tile, as_json=as_json)


@app.command()
def occupancy(
    gpu: Gpu,
    warps: Annotated[int, typer.Option("--warps", min=1, help="Warps of a CTA.")],
    registers: Annotated[int, typer.Option("--registers", min=0, help="Registers of a thread.")],
    shared_memory: Annotated[int, typer.Option("--shared-memory", min=0, help="Bytes of shared memory of a CTA.")],
    as_json: AsJson = False,
) -> None:
    """CTAs per SM by each limit, laid out as Nsight Compute shows it."""
    from tuner.answers import print_occupancy

    print_occupancy(_hardware(gpu), warps, registers, shared_memory, as_json=as_json)


@app.command()
def export(
    to: Annotated[str, typer.Option("--to", help="Consumer: see --list.")] = "",
    shapes: Annotated[str, typer.Option("--shapes", help="MxNxK, separated by commas; all measured ones unless given.")] = "",
    gpu: Gpu = "",
    dtype: Dtype = "bf16",
    layout: Layout = "nt",
    output: Annotated[Path | None, typer.Option("--output", "-o", help="File to write; stdout unless given.")] = None,
    show: Annotated[bool, typer.Option("--list", help="List the consumers.")] = False,
    db: Db = None,
) -> None:
    """Hand the winners to production: a module of its own (python), triton.Config source (triton)."""
    from tuner.exporters import exporter_names
    from tuner.exporting import export_text, write_export

    if show:
        for name in exporter_names():
            typer.echo(name)
        return
    if not gpu:
        raise UserError("export needs --gpu, the GPU whose winners are wanted; `tuner gpus` lists them")
    text, notes = export_text(to, [part.strip() for part in shapes.split(",") if part.strip()], _hardware(gpu), (dtype, layout), db)
    for note in notes:
        _say(note)
    if output is None:
        typer.echo(text, nl=False)
    else:
        write_export(output, text)
        _say(f"wrote {output}")


@app.command()
def gpus(as_json: AsJson = False) -> None:
    """The GPUs that have a file, with their main figures."""
    from tuner.answers import print_gpus

    print_gpus(as_json=as_json)


@app.command()
def spaces() -> None:
    """The spaces that --space takes."""
    from search_spaces.space import load_space, space_names

    for name in space_names():
        typer.echo(f"{name}: {load_space(name).size} schedules before pruning")


@app.command()
def families() -> None:
    """The kernel families."""
    from search_spaces.families import families as all_families

    for family in all_families().values():
        typer.echo(f"{family.name}: {family.title}")


@app.command()
def strategies() -> None:
    """The strategies that --strategy takes."""
    from tuner.strategies import strategy_names, strategy_summary

    for name in strategy_names():
        typer.echo(f"{name}: {strategy_summary(name)}")


@app.command()
def doctor(db: Db = None) -> None:
    """What this machine has: GPU, driver, versions, workers, database."""
    from tuner.answers import print_doctor

    print_doctor(db)


database = typer.Typer(help="Look after the database.", no_args_is_help=True)
app.add_typer(database, name="db")


@database.command("stats")
def db_stats(db: Db = None, as_json: AsJson = False) -> None:
    """How many runs, trials and shapes it holds, by status."""
    from tuner.answers import print_stats

    print_stats(db, as_json=as_json)


@database.command("check")
def db_check(db: Db = None) -> None:
    """Read every page and the schema's version."""
    from tuner.answers import check_database

    typer.echo(check_database(db))


@database.command("upgrade")
def db_upgrade(db: Db = None) -> None:
    """Bring an older file to this version's schema."""
    from tuner.answers import upgrade_database

    typer.echo(upgrade_database(db))


def main() -> None:
    """Entry point: the only place where a UserError becomes a sentence and an exit code."""
    try:
        app(standalone_mode=True)
    except UserError as error:
        _say(f"tuner: {error}")
        sys.exit(Exit.WRONG_USAGE)
    except KeyboardInterrupt:
        _say("tuner: interrupted; what was measured is stored, and the same command goes on from there")
        sys.exit(Exit.INTERRUPTED)


if __name__ == "__main__":
    main()
