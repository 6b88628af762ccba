"""Which winners leave the store, and as what: the bridge between the database and the exporters."""

from __future__ import annotations

from collections.abc import Sequence

from db.reading import Reader, open_reader
from db.records import BestAnswer
from search_spaces.errors import UserError
from search_spaces.hardware import Hardware
from search_spaces.problem import Problem, parse_shape
from tuner.exporters import Entry, ExportSettings, load_exporter
from tuner.scope import scope_of


def parse_rename(text: str) -> ExportSettings:
    """`CTA_M=BLOCK_M,CTA_N=BLOCK_N` -> settings."""
    pairs = [part.split("=") for part in text.split(",") if part.strip()]
    wrong = [part for part in pairs if len(part) != 2 or not all(name.strip().isidentifier() for name in part)]
    if wrong:
        raise UserError(f"--rename {'='.join(wrong[0])!r} is not OLD=NEW; for example CTA_M=BLOCK_SIZE_M")
    return ExportSettings(rename={old.strip(): new.strip() for old, new in pairs})


def export_text(
    consumer: str,
    shapes: Sequence[str],
    hardware: Hardware,
    kind: tuple[str, str],
    *,
    settings: ExportSettings,
    location: str | None,
    unordered: bool = False,
) -> tuple[str, list[str]]:
    """The export's text, and what to tell the person about it. kind: (dtype, layout). No shapes: all that were measured on this GPU.
    unordered: schedules whose bits may differ from run to run may be exported, too."""
    exporter = load_exporter(consumer)
    dtype, layout = kind
    with open_reader(location) as reader:
        if shapes:
            problems = [Problem(m=m, n=n, k=k, dtype=dtype, layout=layout) for m, n, k in map(parse_shape, shapes)]
        else:
            problems = [p for p in reader.tuned_problems(scope_of(hardware, unordered=unordered)) if (p.dtype, p.layout) == kind]
        if not problems:
            raise UserError(
                f"nothing measured for {hardware.name} {dtype} {layout} in {reader.location}; run tuner search first, or name --shapes"
            )
        answers = [_answer(reader, problem, hardware, unordered) for problem in problems]
    notes = [f"{a.record.problem.shape}: not measured, exported as the model's first choice" for a in answers if not a.measured]
    notes += [f"{a.record.problem.shape}: the kernel's source has changed since it was measured" for a in answers if a.stale]
    return exporter.export([entry(answer) for answer in answers], settings), notes


def _answer(reader: Reader, problem: Problem, hardware: Hardware, unordered: bool) -> BestAnswer:
    found = reader.best(problem, scope_of(hardware, unordered=unordered))
    if found is None:
        raise UserError(
            f"nothing is known for {problem.shape} {problem.dtype} {problem.layout} on {hardware.name}; run tuner search for it first"
        )
    return found


def entry(answer: BestAnswer) -> Entry:
    record, finalist = answer.record, answer.finalist
    env = record.environment
    day = f", {record.recorded:%Y-%m-%d}" if record.recorded else ""
    return Entry(
        problem=record.problem,
        schedule=record.schedule,
        median_us=finalist.median_us if finalist else record.measurement.median_us,
        library_ratio=finalist.ratio if finalist else None,
        provenance=f"{env.device_name or record.gpu + ', not measured'}, Triton {env.triton}{day}",
    )
