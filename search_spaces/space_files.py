"""What a space file and `--axis` say: axes of each family, or what is to change in those of a named space. Which schedules they make is
asked of `space`."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from importlib import resources
from pathlib import Path

import yaml

from search_spaces.errors import UserError, did_you_mean
from search_spaces.families import families
from search_spaces.schedule import AXES

Axes = Mapping[str, Mapping[str, tuple[int, ...]]]  # family -> axis -> values

ALL, BASE = "all", "base"
HOW = "give a number, a list of numbers, or {add: [..], remove: [..]}"
HOW_FILE = f"give family: {{axis: [values]}}, with {BASE}: a space's name to change that one, and {ALL}: for every family"
HOW_AXIS = "give axis=64,128 for these values, axis=+32 for one more, axis=-3 for one less, and family.axis for one family only"


@dataclass(frozen=True, kw_only=True)
class AxisChange:
    """What becomes of an axis: `only` takes the place of its values where it is given; `add` comes and `remove` goes."""

    family: str  # or `all`, which means every family that has the axis
    axis: str
    only: tuple[int, ...] = ()
    add: tuple[int, ...] = ()
    remove: tuple[int, ...] = ()


def space_names() -> tuple[str, ...]:
    files = resources.files("search_spaces").joinpath("spaces").iterdir()
    return tuple(sorted(file.name.removesuffix(".yaml") for file in files if file.name.endswith(".yaml")))


def read_space(name_or_path: str) -> tuple[str, Axes]:
    """The name and the axes of a space, by its name or from a YAML file."""
    path = Path(name_or_path)
    if path.suffix not in (".yaml", ".yml"):
        return name_or_path, _named(name_or_path, ", or a YAML file")
    if not path.is_file():
        raise UserError(f"no space file {name_or_path}; {HOW_FILE}")
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"space file {name_or_path} cannot be read: {error}") from None
    return path.stem, parse_axes(path.stem, text)


def _named(name: str, otherwise: str = "") -> Axes:
    if name not in space_names():
        raise UserError(f"no space named {name!r}; known: {', '.join(space_names())}{otherwise}{did_you_mean(name, space_names())}")
    return parse_axes(name, resources.files("search_spaces").joinpath("spaces", f"{name}.yaml").read_text(encoding="utf-8"))


def parse_axes(name: str, text: str) -> Axes:
    """What a space file says."""
    try:
        content = yaml.safe_load(text)
    except (yaml.YAMLError, ValueError) as error:
        raise UserError(f"space {name} is not YAML: {str(error).splitlines()[0]}") from None
    if not isinstance(content, dict) or not content:
        raise UserError(f"space {name} is not a mapping; {HOW_FILE}")
    base = content.pop(BASE, None)
    start = _named(str(base)) if base is not None else {}
    left_out = [family for family, axes in content.items() if axes is False]
    for family in left_out:
        if family not in start:
            raise UserError(f"space {name}: {family!r} cannot be left out; {_based_on(base, start)}{did_you_mean(family, start)}")
    kept = {family: axes for family, axes in start.items() if family not in left_out}
    changes = [
        _parse_change(name, family, axis, values)
        for family, axes in content.items()
        if axes is not False
        for axis, values in _mapping(name, family, axes).items()
    ]
    new: Axes = {change.family: {} for change in changes if change.family not in (ALL, *kept)}
    if not kept and not new:
        raise UserError(f"space {name} is left with no family; {HOW_FILE}")
    return change_axes(name, {**kept, **new}, changes)


def _based_on(base: object, start: Axes) -> str:
    return f"{base} has {', '.join(start)}" if base is not None else f"there is no {BASE} to leave it out of"


def _mapping(name: str, family: object, axes: object) -> dict[object, object]:
    if not isinstance(axes, dict):
        raise UserError(f"space {name} is not a mapping of axes at {family!r}, but {axes!r}; {HOW_FILE}, or family: off to leave one out")
    if family not in (ALL, *families()):
        known = (*families(), ALL, BASE)
        raise UserError(f"space {name}: no family named {family!r}; known: {', '.join(families())}{did_you_mean(family, known)}")
    return axes


def _parse_change(name: str, family: str, axis: object, values: object) -> AxisChange:
    where = f"space {name}: {family}.{axis}"
    if axis not in AXES:
        raise UserError(f"space {name}: {_no_axis(family, axis)}")
    if not isinstance(values, dict):
        return AxisChange(family=family, axis=str(axis), only=_numbers(where, values))
    if not values or set(values) - {"add", "remove"}:
        raise UserError(f"{where} is {values}; {HOW}")
    return AxisChange(family=family, axis=str(axis), **{str(key): _numbers(where, value) for key, value in values.items()})


def _numbers(where: str, values: object) -> tuple[int, ...]:
    listed = values if isinstance(values, list) else [values]
    if not listed or not all(isinstance(value, int) and not isinstance(value, bool) for value in listed):
        raise UserError(f"{where} is {listed}; give a list of whole numbers")
    return tuple(dict.fromkeys(listed))


def _no_axis(family: str, axis: object) -> str:
    if family == ALL:
        return f"no family has an axis {axis!r}; known: {', '.join(AXES)}{did_you_mean(axis, AXES)}"
    known = families()[family].axes
    return f"family {family} has no axis {axis!r}; it has {', '.join(known)}{did_you_mean(axis, known)}"


def change_axes(name: str, axes: Axes, changes: Iterable[AxisChange]) -> Axes:
    """The axes with the changes made: those for all families first, so that a family's own have the last word."""
    found = {family: dict(values) for family, values in axes.items()}
    for change in sorted(changes, key=lambda change: change.family != ALL):
        if change.family not in (ALL, *found):
            raise UserError(f"space {name} has no family {change.family!r}; it has {', '.join(found)}{did_you_mean(change.family, found)}")
        among = [family for family in found if change.family in (ALL, family)]
        having = [family for family in among if change.axis in families()[family].axes]
        if not having:
            why = _no_axis(change.family, change.axis) if change.family != ALL else f"no axis {change.axis} in {' or '.join(among)}"
            raise UserError(f"space {name}: {why}")
        before = {family: found[family].get(change.axis, _unused(change.axis)) for family in having}
        _check_removal(name, change, [value for values in before.values() for value in values])
        for family in having:
            values = dict.fromkeys((*(change.only or before[family]), *change.add))
            found[family][change.axis] = tuple(value for value in values if value not in change.remove)
            if not found[family][change.axis]:
                raise UserError(f"space {name}: nothing is left of {family}.{change.axis}; leave at least one value")
    return found


def _check_removal(name: str, change: AxisChange, there: Sequence[int]) -> None:
    """A value that is in none of the families is more likely a slip than a wish."""
    absent = [value for value in change.remove if value not in (*there, *change.add)]
    if absent:
        have = ", ".join(map(str, dict.fromkeys(there))) or "no values"
        raise UserError(f"space {name}: there is no {change.axis} of {absent[0]} to remove; there are {have}")


def _unused(axis: str) -> tuple[int, ...]:
    """What an axis stands at where a space does not name it; nothing where every space has to."""
    letter, value = AXES[axis]
    return () if letter in ("", "w", "s") else (value,)


def parse_axis_option(text: str) -> AxisChange:
    """`cta_m=64,128`, `stages=4`, `group_m=+32`, `split_k=-3,-5`, `tma.stages=4`."""
    match = re.fullmatch(r"(?:(\w+)\.)?(\w+)=(.+)", text.strip())
    if not match:
        raise UserError(f"--axis {text!r} is no axis and its values; {HOW_AXIS}")
    family, axis = match[1] or ALL, match[2]
    words = [word.strip() for word in match[3].split(",")]
    if not all(re.fullmatch(r"[+-]?\d+", word) for word in words) or len({word[0] in "+-" for word in words}) > 1:
        raise UserError(f"--axis {text!r}: {match[3]!r} is neither numbers nor numbers that all have a sign; {HOW_AXIS}")
    if family not in (ALL, *families()):
        raise UserError(f"--axis {text!r}: no family named {family!r}; known: {', '.join(families())}{did_you_mean(family, families())}")
    if axis not in AXES:
        raise UserError(f"--axis {text!r}: {_no_axis(family, axis)}")
    return AxisChange(family=family, axis=axis, only=_signed(words, ""), add=_signed(words, "+"), remove=_signed(words, "-"))


def _signed(words: Sequence[str], sign: str) -> tuple[int, ...]:
    return tuple(int(word.lstrip("+-")) for word in words if (word[0] if word[0] in "+-" else "") == sign)
