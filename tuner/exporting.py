"""Which winners leave the store, and as what: the bridge between the database and the exporters."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

from db.best import Scope
from db.damage import DamagedRow
from db.reading import Reader, open_reader
from db.records import BestAnswer, Environment
from search_spaces.errors import MachineFault, UserError
from search_spaces.hardware import Hardware
from search_spaces.plain_text import shown
from search_spaces.problem import Problem, parse_shape
from tuner.canonical import canonical
from tuner.environment import device_present, environment
from tuner.exporters import Entry, ExportSettings, load_exporter, select
from tuner.scope import scope_of

VERSIONS = {"driver": "driver", "triton": "Triton", "torch": "torch"}  # field of an environment -> its name in a sentence


@dataclass(frozen=True, kw_only=True)
class ExportWish:
    """Which problems to export: those of `shapes`, in these types, layout, leading dimensions and alignment, with these operands repacked;
    or, without shapes, all that were measured, of those types and layout that are given. narrowed: fields of a `Scope`, as for
    `tuner best`."""

    shapes: Sequence[str] = ()
    dtype: str = ""
    out_dtype: str = ""
    layout: str = ""
    leading_dimensions: tuple[int, int, int] = (0, 0, 0)
    alignment_bytes: int = 0  # 0: not given
    prepack: str = ""
    narrowed: Mapping[str, Any] = field(default_factory=dict)

    def scope(self, hardware: Hardware) -> Scope:
        return scope_of(hardware, **self.narrowed)

    def named(self) -> list[Problem]:
        lda, ldb, ldc = self.leading_dimensions
        given = {"dtype": self.dtype, "out_dtype": self.out_dtype, "layout": self.layout, "alignment_bytes": self.alignment_bytes}
        kind = {name: value for name, value in given.items() if value}
        shapes = map(parse_shape, self.shapes)
        problems = [Problem(m=m, n=n, k=k, lda=lda, ldb=ldb, ldc=ldc, **kind) for m, n, k in shapes]  # type: ignore[arg-type]
        return [canonical(problem.prepacked(self.prepack)) for problem in problems]

    def check(self) -> None:
        if self.prepack not in ("", "a", "b", "ab"):
            raise UserError(f"--prepack {shown(self.prepack)}: give a, b or ab")
        for option, given in (("--ld", any(self.leading_dimensions)), ("--alignment", self.alignment_bytes), ("--prepack", self.prepack)):
            if given and not self.shapes:
                raise UserError(f"{option} is of the problems that --shapes names, and none is named; without it all are exported")
        Problem(m=1, n=1, k=1, dtype=self.dtype or "bf16", out_dtype=self.out_dtype, layout=self.layout or "nt")  # known words

    def is_of(self, problem: Problem) -> bool:
        pairs = ((self.dtype, problem.dtype), (self.out_dtype, problem.out_dtype), (self.layout, problem.layout))
        return all(given in ("", found) for given, found in pairs)


def parse_rename(text: str) -> ExportSettings:
    """`CTA_M=BLOCK_M,CTA_N=BLOCK_N` -> settings."""
    pairs = [part.split("=") for part in text.split(",") if part.strip()]
    wrong = [part for part in pairs if len(part) != 2 or not all(name.strip().isidentifier() for name in part)]
    if wrong:
        raise UserError(f"--rename {shown('='.join(wrong[0]))} is not OLD=NEW; for example CTA_M=BLOCK_SIZE_M")
    return ExportSettings(rename={old.strip(): new.strip() for old, new in pairs})


def export_text(
    consumer: str, wish: ExportWish, hardware: Hardware, *, settings: ExportSettings, location: str | None
) -> tuple[str, list[str]]:
    """The export's text, and what to tell the person about it: every problem that was measured and is not in the text, with the reason."""
    exporter = load_exporter(consumer)
    wish.check()
    with open_reader(location) as reader:
        found = _named_answers(reader, hardware, wish) if wish.shapes else _all_answers(reader, hardware, wish)
        place, damage = reader.location, [reader.damage] if reader.damage else []
    here = _here(hardware)
    kept, left_out = select([entry(answer, hardware, here) for answer in found.answers], exporter)
    notes = found.notes + left_out + _about(kept) + damage
    if not kept:
        why = notes[0] if notes else "run tuner search first, or name --shapes"
        raise UserError(f"there is nothing to export for {hardware.name} in {place}: {why}")
    text = exporter.export(kept, settings)
    if type(text) is not str:
        raise UserError(f"exporter {exporter.name} gave {shown(type(text).__name__)} in place of a text; mend its `export`")
    return text, notes


class _Found(NamedTuple):
    answers: list[BestAnswer]
    notes: list[str]


def _named_answers(reader: Reader, hardware: Hardware, wish: ExportWish) -> _Found:
    answers, scope = [], wish.scope(hardware)
    for problem in wish.named():
        found = reader.best(problem, scope)
        if found is None:
            raise UserError(f"nothing is known for {problem.text} on {hardware.name}; run tuner search for it first")
        answers.append(found)
    return _Found(answers, [])


def _all_answers(reader: Reader, hardware: Hardware, wish: ExportWish) -> _Found:
    """The answers to all problems of the wish that were measured on this GPU, and why the others that were are left out."""
    answers: list[BestAnswer] = []
    left_out: dict[str, list[Problem]] = {}
    scope = wish.scope(hardware)
    ordered = set(reader.tuned_problems(scope))
    for problem in reader.tuned_problems(replace(scope, unordered=True)):
        if not wish.is_of(problem):
            why = "not of the --dtype, --out-dtype or --layout asked for"
        elif not scope.unordered and problem not in ordered:
            why = "measured with schedules only whose bits may differ from run to run; --unordered takes them"
        else:
            try:
                found = reader.best(problem, scope)
            except DamagedRow as error:
                why = str(error)
            else:
                if found is not None and found.measured:
                    answers.append(found)
                    continue
                why = "of what was measured nothing holds any more; search again"
        left_out.setdefault(why, []).append(problem)
    return _Found(answers, [f"left out, {why}: {_names(problems)}" for why, problems in left_out.items()])


def _names(problems: Sequence[Problem]) -> str:
    return "; ".join(problem.text for problem in problems)


def _about(entries: Sequence[Entry]) -> list[str]:
    """What a person should know of entries that are exported."""
    about: dict[str, list[Problem]] = {}
    for one in entries:
        for words in (*one.cautions, *(["not measured, exported as the model's first choice"] if one.median_us is None else [])):
            about.setdefault(words, []).append(one.problem)
    return [
        f"{words}: {f'all {len(entries)} of them' if 1 < len(problems) == len(entries) else _names(problems)}"
        for words, problems in about.items()
    ]


def _here(hardware: Hardware) -> Environment:
    """This machine now; without a GPU, or with one that cannot be asked, its versions only."""
    device = None
    with suppress(UserError, MachineFault):
        device = device_present()
    return environment(hardware.name, device)


def entry(answer: BestAnswer, hardware: Hardware, here: Environment) -> Entry:
    record, finalist = answer.record, answer.finalist
    env = record.environment
    device = _short(env.device_name) if env.device_name else f"{_short(record.gpu)}, not measured"
    versions = [f"{title} {_short(getattr(env, name))}" for name, title in VERSIONS.items() if getattr(env, name)]
    day = [f"{record.recorded:%Y-%m-%d}"] if record.recorded else []
    return Entry(
        problem=record.problem,
        schedule=record.schedule,
        median_us=finalist.median_us if finalist else record.measurement.median_us,
        library_ratio=finalist.ratio if finalist else None,
        provenance=", ".join([device, *versions, *day]),
        cautions=tuple(_cautions(answer, hardware, here)),
    )


def _cautions(answer: BestAnswer, hardware: Hardware, here: Environment) -> list[str]:
    """What was otherwise when the answer was found."""
    env, found = answer.record.environment, []
    if env.device_name and hardware.device_names and not env.device_name.startswith(hardware.device_names):
        found.append(f"measured on {_short(env.device_name)}, which is no {hardware.title}")
    for name, title in VERSIONS.items():
        then, now = getattr(env, name), getattr(here, name)
        comparable = answer.measured and (name != "driver" or here.device_name == env.device_name)
        if comparable and then and now and then != now:
            found.append(f"measured with {title} {_short(then)}, not {now}")
    if answer.stale:
        found.append(f"the kernel's source has changed since it was {'measured' if answer.measured else 'compiled'}")
    return found


def _short(text: str) -> str:
    return shown(text, quotes=False)
