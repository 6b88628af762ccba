"""The command line: reads what was asked, says what it understood, calls the rooms below, prints. Errors a person can mend end here, with
exit code 2. Each command imports what it needs when it runs: `tuner best` needs neither torch nor numpy, and answers within a blink.
"""

from __future__ import annotations

import signal
import sys
from enum import IntEnum
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from search_spaces.errors import UserError
from tuner.cli_options import (
    ProgressLine,
    db_option,
    gpu_option,
    json_option,
    load_hardware,
    print_result,
    problem_options,
    say,
    say_borrowed,
    search_options,
    space_options,
    split_names,
    top_k_option,
    unordered_option,
)

if TYPE_CHECKING:
    from search_spaces.problem import Problem


class Exit(IntEnum):
    FOUND = 0
    NOTHING_FOUND = 1
    WRONG_USAGE = 2
    INTERRUPTED = 130


@click.group(context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 120})
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

    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))  # cleans up as Ctrl-C does
    hardware, chosen = load_hardware(gpu), split_names(families)
    asked = SearchWish(problem=problem, hardware=hardware, families=chosen, measure=not no_measure, location=db, **wish)
    with ProgressLine() as line:
        result = run_search(asked, say, line.show)
    say_borrowed(result.ranking)
    print_result(as_json, lambda: search_json(result, top_k), lambda: search_text(result, top_k))
    sys.exit(Exit.FOUND if result.found else Exit.NOTHING_FOUND)


@app.command()
@click.option("--suite", default="llm", show_default=True, help="A suite's name (llm, seeds), or a CSV file with the columns M, N and K.")
@gpu_option
@space_options
@search_options
@click.option("--budget", default="30s", show_default=True, help="Wall-clock limit of each product's search, such as 30s or 5m.")
@click.option("--only", default="", metavar="REGEX", help="Products whose suite, name, shape or type it is found in.")
@click.option("--again", "anew", is_flag=True, help="Measure even what is known.")
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

    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))  # cleans up as Ctrl-C does
    search = partial(SearchWish, hardware=load_hardware(gpu), families=split_names(families), measure=True, location=db, **wish)
    asked = BenchWish(suite=suite, only=only, output=output, location=db, search=lambda problem: search(problem=problem))
    with ProgressLine() as line:
        rows, environment = run_bench(asked, line.say, line.show)
    print_result(as_json, lambda: bench_json(rows, environment), lambda: bench_text(rows, environment))
    sys.exit(Exit.NOTHING_FOUND if any(row.status == "failed" for row in rows) else Exit.FOUND)


@app.command()
@problem_options
@gpu_option
@unordered_option
@db_option
@json_option
def best(problem: Problem, gpu: str, unordered: bool, db: str | None, as_json: bool) -> None:
    """What is known to be best for one product on one GPU, from the database alone."""
    from tuner.answers import best_answer, best_json, best_text

    hardware = load_hardware(gpu)
    answer, near = best_answer(problem, hardware, db, unordered=unordered)
    print_result(as_json, lambda: best_json(answer, near), lambda: best_text(problem, hardware, answer, near))
    sys.exit(Exit.FOUND if answer and answer.measured else Exit.NOTHING_FOUND)


@app.command()
@problem_options
@gpu_option
@space_options
@click.option("--schedule", default="", help="One schedule's short text, such as 'tma 128x256x64 w8 s3 g8': every term of its estimate.")
@click.option(
    "--compile", "rejects", default=0, type=click.IntRange(min=0), help="Compile so many of the nearest rejects, to find false ones."
)
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
    records = explaining.known_records(problem, hardware, shown["db"])
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
    "--output", "-o", default=None, type=click.Path(path_type=Path, dir_okay=False), help="File to write instead of the user's own."
)
@db_option
@json_option
def calibrate(gpu: str, measure: bool, budget: str, output: Path | None, db: str | None, as_json: bool) -> None:
    """Fit the cost model's constants of a GPU to what was measured on it."""
    from datetime import UTC, datetime

    from tuner import calibrating

    hardware = load_hardware(gpu)
    if measure:
        from tuner import designing, searching

        with ProgressLine() as line:
            designing.measure(hardware, db, searching.parse_budget(budget) or designing.DEFAULT_BUDGET_SECONDS, say, line.show)
    landscapes = calibrating.stored_landscapes(hardware, db)
    say(f"fitting to {len(landscapes)} shapes with {sum(len(one.median_us) for one in landscapes)} schedules in all")
    fitted = calibrating.fit_landscapes(landscapes, hardware, datetime.now(UTC).date())
    print_result(as_json, lambda: calibrating.fitted_json(fitted), lambda: calibrating.fitted_text(fitted))
    if fitted.is_worse:
        say("nothing is written: the constants it started from rank the measured schedules better; measure more shapes")
        sys.exit(Exit.NOTHING_FOUND)
    say(f"wrote {calibrating.write_calibration(fitted.calibration, output)}")
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
@click.option("--warps", required=True, type=click.IntRange(min=1), help="Warps of a CTA.")
@click.option("--registers", required=True, type=click.IntRange(min=0), help="Registers of a thread.")
@click.option("--shared-memory", required=True, type=click.IntRange(min=0), help="Bytes of shared memory of a CTA.")
@json_option
def occupancy(gpu: str, warps: int, registers: int, shared_memory: int, as_json: bool) -> None:
    """CTAs per SM by each limit, laid out as Nsight Compute shows it."""
    from tuner.calculations import occupancy_facts, occupancy_text

    given = (load_hardware(gpu), warps, registers, shared_memory)
    print_result(as_json, lambda: occupancy_facts(*given), lambda: occupancy_text(*given))


@app.command()
@click.option("--to", "consumer", default="", help="python (a module of its own) or triton (triton.Config source); see --list.")
@click.option("--shapes", default="", help="MxNxK, separated by commas; all measured ones unless given.")
@click.option("--gpu", default="", help="The GPU whose winners are wanted.")
@click.option("--dtype", default="bf16", show_default=True)
@click.option("--layout", default="nt", show_default=True)
@click.option("--rename", default="", metavar="CTA_M=BLOCK_M,...", help="Other names for the parameters of a triton.Config.")
@click.option("--output", "-o", default=None, type=click.Path(path_type=Path, dir_okay=False), help="File to write; stdout unless given.")
@click.option("--list", "show", is_flag=True, help="List the consumers.")
@unordered_option
@db_option
def export(consumer: str, shapes: str, gpu: str, dtype: str, layout: str, **rest: Any) -> None:
    """Hand the winners to production code."""
    from tuner.exporters import exporter_names, write_atomically
    from tuner.exporting import export_text, parse_rename

    if rest["show"]:
        click.echo("\n".join(exporter_names()))
        return
    if not gpu:
        raise UserError("export needs --gpu, the GPU whose winners are wanted; `tuner gpus` lists them")
    settings = parse_rename(rest["rename"])
    given = {"settings": settings, "location": rest["db"], "unordered": rest["unordered"]}
    text, notes = export_text(consumer, split_names(shapes), load_hardware(gpu), (dtype, layout), **given)
    for note in notes:
        say(note)
    if rest["output"] is None:
        click.echo(text, nl=False)
    else:
        write_atomically(rest["output"], text)
        say(f"wrote {rest['output']}")


@app.command()
def gpus() -> None:
    """The GPUs that have a file, with their main figures."""
    from tuner.calculations import gpus_text

    click.echo(gpus_text())


@app.command()
def spaces() -> None:
    """The spaces that --space takes."""
    from search_spaces.space import load_space
    from search_spaces.space_files import space_names

    for name in space_names():
        click.echo(f"{name}: {load_space(name).size} schedules before pruning")


@app.command()
def families() -> None:
    """The kernel families."""
    from search_spaces.families import families as all_families

    for family in all_families().values():
        click.echo(f"{family.name}: {family.title}")


@app.command()
def strategies() -> None:
    """The strategies that --strategy takes."""
    from tuner.strategies import strategy_names, strategy_summary

    for name in strategy_names():
        click.echo(f"{name}: {strategy_summary(name)}")


@app.command()
@db_option
def doctor(db: str | None) -> None:
    """What this machine has: GPU, versions, compile workers, database."""
    from tuner.diagnosis import diagnosis

    click.echo(diagnosis(db))


@app.group("db")
def database() -> None:
    """Look after the database."""


@database.command("stats")
@db_option
@json_option
def db_stats(db: str | None, as_json: bool) -> None:
    """How many runs, trials and shapes it holds, by status."""
    from tuner.answers import stats, stats_json, stats_text

    location, found = stats(db)
    print_result(as_json, lambda: {"database": location, **stats_json(found)}, lambda: stats_text(location, found))


@database.command("check")
@db_option
def db_check(db: str | None) -> None:
    """Read every page and the schema's version."""
    from db.store import open_store

    with open_store(db, create=False) as store:
        store.check()
        click.echo(f"{store.location}: sound")


@database.command("upgrade")
@db_option
def db_upgrade(db: str | None) -> None:
    """Bring an older file to this version's schema."""
    from db.store import upgrade_store

    before, after = upgrade_store(db)
    click.echo(f"schema {before} is the newest" if before == after else f"schema {before} -> {after}")


def main() -> None:
    """Entry point: the only place where a UserError becomes a sentence and an exit code."""
    try:
        app(standalone_mode=False)
    except UserError as error:
        say(f"tuner: {error}")
        sys.exit(Exit.WRONG_USAGE)
    except click.ClickException as error:
        error.show()
        sys.exit(Exit.WRONG_USAGE)
    except (KeyboardInterrupt, click.Abort):
        say("tuner: interrupted; what was measured is stored, and the same command goes on from there")
        sys.exit(Exit.INTERRUPTED)


if __name__ == "__main__":
    main()
