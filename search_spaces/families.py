"""What a kernel family is to the arithmetic: how it loads, which dtypes it takes, which axes it has. The kernels themselves are in
`tuner/kernels/`."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache
from importlib import resources

from search_spaces.errors import UserError, did_you_mean
from search_spaces.plain_text import shown, visible
from search_spaces.problem import DTYPE_BYTES
from search_spaces.schedule import AXES
from search_spaces.text_files import read_text_file
from search_spaces.yaml_text import read_yaml

LOADS = ("pointer", "tma", "ring", "stream")


@dataclass(frozen=True, kw_only=True)
class Family:
    """A kernel family. An axis it does not name stays at the value that means "not used"."""

    name: str
    title: str
    loads: str
    dtypes: tuple[str, ...]
    axes: tuple[str, ...]

    def __post_init__(self) -> None:
        if self.loads not in LOADS:
            raise UserError(f"family {self.name} loads by {shown(self.loads)}; known: {', '.join(LOADS)}")
        unknown = sorted(set(self.axes) - set(AXES))
        if unknown:
            raise UserError(f"family {self.name} names the axis {unknown[0]!r}; known: {', '.join(AXES)}")


KEYS = ("title", "loads", "dtypes", "axes")


def families() -> dict[str, Family]:
    """Every family whose file in `search_spaces/families/` can be read, by name."""
    return _read_all()[0]


def family_faults() -> dict[str, str]:
    """A sentence for each file that cannot be read, by the family's name: one bad file takes nothing from the others."""
    return _read_all()[1]


def family(name: str) -> Family:
    if name in family_faults():
        raise UserError(family_faults()[name])
    if name not in families():
        raise UserError(f"no family named {shown(name)}; known: {', '.join(families())}{did_you_mean(name, families())}")
    return families()[name]


@cache
def _read_all() -> tuple[dict[str, Family], dict[str, str]]:
    found, faults = {}, {}
    with resources.as_file(resources.files("search_spaces").joinpath("families")) as folder:
        for file in sorted(folder.glob("*.yaml")):
            try:
                text = read_text_file(file, "the family file", "give a YAML file, or remove it")
                found[file.stem] = parse_family(file.stem, text)
            except UserError as error:
                faults[file.stem] = str(error)
    return found, faults


def parse_family(name: str, text: str) -> Family:
    """What a family's file says: exactly `KEYS`, a text, a way to load, and two lists."""
    label = f"family {name}"
    content = read_yaml(label, text)
    if not isinstance(content, dict):
        raise UserError(f"{label} is no mapping; give {', '.join(KEYS)}")
    unknown = [key for key in content if key not in KEYS]
    missing = [key for key in KEYS if key not in content]
    if unknown:
        raise UserError(f"{label} has the key {shown(unknown[0])}; known: {', '.join(KEYS)}{did_you_mean(unknown[0], KEYS)}")
    if missing:
        raise UserError(f"{label} has no {missing[0]}; give {', '.join(KEYS)}")
    title = content["title"]
    if not isinstance(title, str) or not title.strip():
        raise UserError(f"{label}: title is {shown(title, quotes=isinstance(title, str))}; give a line of text")
    return Family(
        name=name,
        title=" ".join(visible(title).split()),
        loads=str(content["loads"]),
        dtypes=_words(label, "dtypes", content["dtypes"], DTYPE_BYTES),
        axes=_words(label, "axes", content["axes"], AXES),
    )


def _words(label: str, key: str, listed: object, known: Iterable[str]) -> tuple[str, ...]:
    """A list of known words, each once."""
    if not isinstance(listed, list) or not listed or not all(isinstance(word, str) for word in listed):
        raise UserError(f"{label}: {key} is {shown(listed, quotes=isinstance(listed, str))}; give a list of {', '.join(known)}")
    for word in listed:
        if word not in known:
            raise UserError(f"{label}: {key} names {shown(word)}; known: {', '.join(known)}{did_you_mean(word, known)}")
        if listed.count(word) > 1:
            raise UserError(f"{label}: {key} names {word} {listed.count(word)} times; leave one")
    return tuple(listed)
