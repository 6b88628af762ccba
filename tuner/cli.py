"""The command line: reads what was asked, says what it understood, calls the rooms below, prints. Every error ends here, in a sentence and
an exit code. Each command imports what it needs when it runs: `tuner best` needs neither torch nor numpy, and answers within a blink.
"""

from __future__ import annotations

import sys
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from tuner import HIDING

if HIDING:  # nothing below could be imported
    click.echo(f"tuner: {HIDING}", err=True)
    sys.exit(2)

from search_spaces.errors import MachineFault, UserError
from search_spaces.plain_text import visible
from tuner.cli_exit import Exit, run
from tuner.cli_options import (
    ProgressLine,
    Whole,
    db_option,
    gpu_option,
    json_option,
    leading_dimensions,
    load_hardware,
    narrowed,
    print_result,
    problem_options,
    put,
    say,
    say_borrowed,
    scope_options,
    search_options,
    space_options,
    split_names,
    top_k_option,
)

if TYPE_CHECKING:
    from search_spaces.problem import Problem


SUITES = ", ".join(sorted(file.stem for file in (Path(__file__).parent / "suites").glob("*.csv")))


def _print_version(context: click.Context, option: click.Parameter, asked: bool) -> None:
    if asked:
        from tuner.code_version import code_version

        put(f"tuner {code_version()}")
        context.exit()


@click.group(context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 120})
@click.option("--version", is_flag=True, is_eager=True, expose_value=False, callback=_print_version, help="Print the version and leave.")
def app() -> None:
    """Finds, proves, remembers and hands on the fastest way for a GPU to multiply two matrices."""


@app.command()
@problem_options
@gpu_option
@space_options
@search_options
@click.option("--budget", default="", help="Wall-clock limit, such as 30s or 5m.")
@top_k_option
@click.option("--no-measure", is_flag=True, help="Rank and compile only, even where the GPU is present.")
@db_option
@json_option
def search(problem: Problem, gpu: str, families: str, top_k: int, no_measure: bool, db: str | None, as_json: bool, **wish: Any) -> None:
    """Find, compile, measure and record the fastest schedule of one product."""
    from tuner.report import search_json, search_text
    from tuner.searching import SearchWish, run_search

    hardware, chosen = load_hardware(gpu), split_names(families)
    asked = SearchWish(problem=problem, hardware=hardware, families=chosen, measure=not no_measure, location=db, **wish)
    with ProgressLine() as line:
        result = run_search(asked, say, line.show)
    say_borrowed(result.ranking)
    print_result(as_json, lambda: search_json(result, top_k), lambda: search_text(result, top_k))
    if result.fault:
        raise MachineFault(result.fault)
    sys.exit(Exit.FOUND if result.found else Exit.NOTHING_FOUND)


@app.command()
@click.option("--suite", default="llm", show_default=True, help=f"A suite's name ({SUITES}), or a CSV file with the columns M, N and K.")
@gpu_option
@space_options
@search_options
@click.option("--budget", default="30s", show_default=True, help="Wall-clock limit of each product's search, such as 30s or 5m.")
@click.option("--only", default="", metavar="REGEX", help="Products whose suite, name, shape or type it is found in.")
@click.option(
    "--output", "-o", default=None, metavar="PREFIX", type=click.Path(path_type=Path), help="Write PREFIX.csv and PREFIX.md as it goes on."
)
@db_option
@json_option
def bench(suite: str, gpu: str, families: str, only: str, output: Path | None, db: str | None, as_json: bool, **wish: Any) -> None:
    """A suite of products against cuBLAS: each searched, timed beside it, and held against the roofline. The same command again takes
    what is known."""
    from tuner.bench_report import bench_json, bench_text
    from tuner.benching import BenchWish, run_bench
    from tuner.searching import SearchWish

    search = partial(SearchWish, hardware=load_hardware(gpu), families=split_names(families), measure=True, location=db, **wish)
    asked = BenchWish(suite=suite, only=only, output=output, location=db, search=lambda problem: search(problem=problem))
    with ProgressLine() as line:
        result = run_bench(asked, line.say, line.show)
    shown = (result.rows, result.environment)
    print_result(as_json, lambda: bench_json(*shown), lambda: bench_text(*shown))
    if result.faults:
        raise MachineFault("\n".join(result.faults))
    sys.exit(Exit.NOTHING_FOUND if any(row.status == "failed" for row in result.rows) else Exit.FOUND)


@app.command()
@problem_options
@gpu_option
@click.option("--model", default="", help="Whose prediction answers where nothing is measured; the hierarchy model's unless given.")
@scope_options
@db_option
@json_option
def best(problem: Problem, gpu: str, model: str, db: str | None, as_json: bool, **scope: Any) -> None:
    """What is known to be best for one product on one GPU, from the database alone."""
    from tuner.answers import best_answer, best_json, best_text
    from tuner.scope import scope_of

    hardware = load_hardware(gpu)
    answer, near = best_answer(problem, db, scope_of(hardware, model=model, **narrowed(**scope)), say)
    print_result(as_json, lambda: best_json(answer, near), lambda: best_text(problem, hardware, answer, near, db))
    sys.exit(Exit.FOUND if answer and answer.measured else Exit.NOTHING_FOUND)


@app.command()
@problem_options
@gpu_option
@space_options
@click.option("--schedule", default="", help="One schedule's short text, such as 'tma 128x256x64 w8 s3 g8': every term of its estimate.")
@click.option("--compile", "rejects", default=0, type=Whole(), help="Compile so many of the nearest rejects, to find false ones.")
@top_k_option
@db_option
@json_option
def explain(problem: Problem, gpu: str, model: str, schedule: str, **shown: Any) -> None:
    """Why each schedule fell or ranked where it did: reasons with both numbers, the model's terms, predicted against compiled and
    measured."""
    from search_spaces.schedule import parse_schedule
    from search_spaces.space import choose_space
    from tuner import explaining
    from tuner.ranking import rank

    asked = parse_schedule(schedule) if schedule else None
    hardware, searched = load_hardware(gpu), choose_space(shown["space"], split_names(shown["families"]), shown["axes"])
    ranking = rank(problem, hardware, searched, model)
    if ranking.sampled:
        say(f"ranking {ranking.scope}")
    say_borrowed(ranking)
    if asked:
        print_result(shown["as_json"], lambda: explaining.schedule_json(asked, ranking), lambda: explaining.schedule_text(asked, ranking))
        return
    records = explaining.known_records(problem, hardware, shown["db"], say)
    nearest = explaining.nearest_rejects(searched, problem, hardware, shown["rejects"])
    found = explaining.agreement(records, explaining.compile_rejects(nearest, problem, hardware))

    def text() -> str:
        return explaining.ranking_text(ranking, shown["top_k"], records) + "\n\n" + explaining.agreement_text(found)

    print_result(shown["as_json"], lambda: explaining.explanation_json(ranking, shown["top_k"], found), text)


@app.command()
@gpu_option
@click.option("--measure", is_flag=True, help="First measure a few shapes that span what a GPU waits for; it has to be present.")
@click.option("--budget", default="120s", show_default=True, help="Wall-clock limit of --measure, such as 60s or 5m.")
@click.option(
    "--output", "-o", default=None, type=click.Path(path_type=Path, readable=False), help="File to write instead of the user's own."
)
@db_option
@json_option
def calibrate(gpu: str, measure: bool, budget: str, output: Path | None, db: str | None, as_json: bool) -> None:
    """Fit the cost model's constants of a GPU to what was measured on it."""
    from datetime import UTC, datetime

    from tuner import calibrating
    from tuner.files import check_target

    hardware = load_hardware(gpu)
    if output:
        check_target(output, made_from=(gpu,))
    if measure:
        from tuner import designing, searching

        with ProgressLine() as line:
            designing.measure(hardware, db, searching.parse_budget(budget) or designing.DEFAULT_BUDGET_SECONDS, say, line.show)
    landscapes = calibrating.stored_landscapes(hardware, db, say)
    say(f"fitting to {len(landscapes)} shapes with {sum(len(one.median_us) for one in landscapes)} schedules in all")
    fitted = calibrating.fit_landscapes(landscapes, hardware, datetime.now(UTC).date())
    print_result(as_json, lambda: calibrating.fitted_json(fitted), lambda: calibrating.fitted_text(fitted))
    if fitted.is_worse:
        say("nothing is written: the constants it started from rank the measured schedules better; measure more shapes")
        sys.exit(Exit.NOTHING_FOUND)
    say(f"wrote {calibrating.write_calibration(fitted.calibration, output, made_from=gpu)}")
    if fitted.caution:
        say(fitted.caution)


@app.command()
@problem_options
@gpu_option
@click.option("--tile", default="", metavar="MxNxK", help="CTA tile; without it every element is read once.")
@json_option
def roofline(problem: Problem, gpu: str, tile: str, as_json: bool) -> None:
    """The hand calculation: FLOPs, traffic, intensity, ridge, lower and upper bound."""
    from tuner.calculations import roofline_facts, roofline_text

    hardware = load_hardware(gpu)
    print_result(as_json, lambda: roofline_facts(problem, hardware, tile), lambda: roofline_text(problem, hardware, tile))


@app.command()
@gpu_option
@click.option("--warps", required=True, type=Whole(least=1), help="Warps of a CTA.")
@click.option("--registers", required=True, type=Whole(), help="Registers of a thread.")
@click.option("--shared-memory", required=True, type=Whole(), help="Bytes of shared memory of a CTA.")
@json_option
def occupancy(gpu: str, warps: int, registers: int, shared_memory: int, as_json: bool) -> None:
    """CTAs per SM by each limit, laid out as Nsight Compute shows it."""
    from tuner.calculations import occupancy_facts, occupancy_text

    given = (load_hardware(gpu), warps, registers, shared_memory)
    print_result(as_json, lambda: occupancy_facts(*given), lambda: occupancy_text(*given))


@app.command()
@click.option("--row", required=True, type=click.IntRange(min=1), help="Elements of a row of the tile.")
@click.option("--rows", default=0, type=click.IntRange(min=0), help="Rows of the tile; as many as a row has elements unless given.")
@click.option("--element-bytes", default=4, show_default=True, type=click.IntRange(min=1), help="Bytes of an element: 1, 2, 4, 8 or 16.")
@click.option(
    "--access",
    "how",
    default="column",
    show_default=True,
    help="How a warp takes it: row (lanes beside each other), column (a row each), or fragment (8 rows of 16 B: ldmatrix, operands of"
    " mma.sync, core matrices of wgmma).",
)
@click.option("--lane-bytes", default=0, type=click.IntRange(min=0), help="Bytes a lane takes at once, up to 16; an element unless given.")
@click.option("--padding", default=0, type=click.IntRange(min=0), help="Elements left free after each row.")
@click.option("--swizzle", default=0, type=click.IntRange(min=0), help="Bytes of an XOR swizzle, 32, 64 or 128, as TMA's and CUTLASS's.")
@json_option
def banks(row: int, rows: int, element_bytes: int, how: str, lane_bytes: int, padding: int, swizzle: int, as_json: bool) -> None:
    """How many ways a warp conflicts at a tile in shared memory of 32 banks."""
    from search_spaces.banks import SharedTile
    from tuner.bank_report import BankQuestion, bank_facts, bank_text

    tile = SharedTile(rows=rows or row, row_elements=row, element_bytes=element_bytes, padding_elements=padding, swizzle_bytes=swizzle)
    asked = BankQuestion(tile=tile, how=how, lane_bytes=lane_bytes)
    print_result(as_json, lambda: bank_facts(asked), lambda: bank_text(asked))


@app.command()
@click.option("--to", "consumer", default="", help="python (a module of its own) or triton (triton.Config source); see --list.")
@click.option("--shapes", default="", help="MxNxK, separated by commas; all measured ones unless given.")
@click.option("--gpu", default="", help="The GPU whose winners are wanted.")
@click.option("--dtype", default="", help="Of A and B; of --shapes: bf16 unless given, else of all that were measured: any.")
@click.option("--out-dtype", default="", help="Of C; of --shapes: that of A and B unless given, else any.")
@click.option("--layout", default="", help="nn, nt, tn or tt; of --shapes: nt unless given, else any.")
@click.option("--ld", default="0,0,0", metavar="A,B,C", help="Of --shapes: leading dimensions in elements; 0 is the densest.")
@click.option("--alignment", default=0, type=Whole(), help="Of --shapes: bytes that the base pointers are a multiple of; 16 unless given.")
@click.option("--prepack", default="", help="Of --shapes: operands that were repacked, as `tuner search --prepack` has them.")
@click.option("--rename", default="", metavar="CTA_M=BLOCK_M,...", help="Other names for the parameters of a triton.Config.")
@click.option("--output", "-o", default=None, type=click.Path(path_type=Path, readable=False), help="File to write; stdout unless given.")
@click.option("--list", "show", is_flag=True, help="List the consumers.")
@scope_options
@db_option
def export(consumer: str, gpu: str, **rest: Any) -> None:
    """Hand the winners to production code."""
    from tuner.exporters import exporter_names, load_exporter
    from tuner.exporting import ExportWish, export_text, parse_rename
    from tuner.files import check_target, write_file

    if rest["show"]:
        put("\n".join(exporter_names()))
        return
    load_exporter(consumer)
    if not gpu:
        raise UserError("export needs --gpu, the GPU whose winners are wanted; `tuner gpus` lists them")
    if rest["output"] is not None:
        check_target(rest["output"], made_from=(gpu,))
    kind = {name: rest[name] for name in ("dtype", "out_dtype", "layout", "prepack")}
    scope = narrowed(**{name: rest[name] for name in ("families", "triton", "any_environment", "unordered")})
    wish = ExportWish(
        shapes=split_names(rest["shapes"]),
        leading_dimensions=leading_dimensions(rest["ld"]),
        alignment_bytes=rest["alignment"],
        narrowed=scope,
        **kind,
    )
    text, notes = export_text(consumer, wish, load_hardware(gpu), settings=parse_rename(rest["rename"]), location=rest["db"])
    for note in notes:
        say(note)
    if rest["output"] is None:
        put(text, end="")
    else:
        write_file(rest["output"], text, made_from=(gpu,))
        say(f"wrote {visible(str(rest['output']))}")


@app.command()
def gpus() -> None:
    """The GPUs that have a file, with their main figures."""
    from tuner.calculations import gpus_text

    put(gpus_text())


@app.command()
def spaces() -> None:
    """The spaces that --space takes."""
    from search_spaces.space import load_space
    from search_spaces.space_files import space_names

    for name in space_names():
        put(f"{name}: {load_space(name).size} schedules before pruning")


@app.command()
def families() -> None:
    """The kernel families."""
    from search_spaces.families import families as all_families
    from search_spaces.families import family_faults

    for family in all_families().values():
        put(f"{family.name}: {family.title}")
    for fault in family_faults().values():
        say(f"not readable: {fault}")


@app.command()
def strategies() -> None:
    """The strategies that --strategy takes."""
    from tuner.strategies import strategy_names, strategy_summary

    for name in strategy_names():
        put(f"{name}: {strategy_summary(name)}")


@app.command()
@db_option
def doctor(db: str | None) -> None:
    """What this machine has: GPU, versions, compile workers, database."""
    from tuner.diagnosis import diagnosis

    put(diagnosis(db))


@app.group("db")
def database() -> None:
    """Look after the database."""


@database.command("stats")
@db_option
@json_option
def db_stats(db: str | None, as_json: bool) -> None:
    """How many runs, trials and shapes it holds, by status."""
    from tuner.answers import stats, stats_json, stats_text

    location, found = stats(db, say)
    print_result(as_json, lambda: {"database": location, **stats_json(found)}, lambda: stats_text(location, found))


@database.command("check")
@db_option
def db_check(db: str | None) -> None:
    """Read every page and the schema's version."""
    from db.store import open_store

    with open_store(db, create=False) as store:
        store.check()
        put(f"{store.location}: sound")


@database.command("upgrade")
@db_option
def db_upgrade(db: str | None) -> None:
    """Bring an older file to this version's schema."""
    from db.store import upgrade_store

    before, after = upgrade_store(db)
    put(f"schema {before} is the newest" if before == after else f"schema {before} -> {after}")


def main() -> None:
    """Entry point."""
    run(app)


if __name__ == "__main__":
    main()
