"""What a kernel family is to the arithmetic: how it loads, which dtypes it takes, which axes it has. The kernels themselves are in
`tuner/kernels/`."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from importlib import resources

import yaml

from search_spaces.errors import UserError
from search_spaces.plain_text import shown
from search_spaces.schedule import AXES

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
            raise UserError(f"family {self.name} loads by {self.loads!r}; known: {', '.join(LOADS)}")
        unknown = sorted(set(self.axes) - set(AXES))
        if unknown:
            raise UserError(f"family {self.name} names the axis {unknown[0]!r}; known: {', '.join(AXES)}")


@cache
def families() -> dict[str, Family]:
    """Every family that has a file in `search_spaces/families/`, by name."""
    found = {}
    for file in sorted(resources.files("search_spaces").joinpath("families").iterdir(), key=lambda file: file.name):
        if file.name.endswith(".yaml"):
            name = file.name.removesuffix(".yaml")
            content = yaml.safe_load(file.read_text(encoding="utf-8"))
            found[name] = Family(
                name=name,
                title=content["title"],
                loads=content["loads"],
                dtypes=tuple(content["dtypes"]),
                axes=tuple(content["axes"]),
            )
    return found


def family(name: str) -> Family:
    try:
        return families()[name]
    except KeyError:
        raise UserError(f"no family named {shown(name)}; known: {', '.join(families())}") from None
