"""What a space file and `--axis` say: axes of each family, or what is to change in those of a named space. Which schedules they make is
asked of `space`."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from importlib import resources
from pathlib import Path

from search_spaces.errors import UserError, did_you_mean
from search_spaces.families import families, family_faults
from search_spaces.plain_text import shown, whole_number
from search_spaces.schedule import AXES, LARGEST_VALUE
from search_spaces.text_files import named, read_text_file
from search_spaces.yaml_text import read_yaml

Axes = Mapping[str, Mapping[str, tuple[int, ...]]]  # family -> axis -> values

ALL, BASE = "all", "base"
LEFT_OUT = ("off", "no", "false")  # words for a family that is left out
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
    return named(path.stem), parse_axes(named(path.stem), read_text_file(path, "the space file", HOW_FILE))


def _named(name: str, otherwise: str = "") -> Axes:
    if name not in space_names():
        raise UserError(f"no space named {name!r}; known: {', '.join(space_names())}{otherwise}{did_you_mean(name, space_names())}")
    return parse_axes(name, resources.files("search_spaces").joinpath("spaces", f"{name}.yaml").read_text(encoding="utf-8"))


def parse_axes(name: str, text: str) -> Axes:
    """What a space file says."""
    content = read_yaml(f"space {name}", text)
    if not isinstance(content, dict) or not content:
        raise UserError(f"space {name} is not a mapping; {HOW_FILE}")
    base = content.pop(BASE, None)
    start = _named(str(base)) if base is not None else {}
    left_out = [family for family, axes in content.items() if _is_off(axes)]
    for family in left_out:
        if family not in start:
            raise UserError(f"space {name}: {shown(family)} cannot be left out; {_based_on(base, start)}{did_you_mean(family, start)}")
    kept = {family: axes for family, axes in start.items() if family not in left_out}
    changes = [
        _parse_change(name, family, axis, values)
        for family, axes in content.items()
        if family not in left_out
        for axis, values in _mapping(name, family, axes).items()
    ]
    new: Axes = {change.family: {} for change in changes if change.family not in (ALL, *kept)}
    if not kept and not new:
        raise UserError(f"space {name} is left with no family; {HOW_FILE}")
    return change_axes(name, {**kept, **new}, changes)


def _is_off(axes: object) -> bool:
    return axes is False or (isinstance(axes, str) and axes.lower() in LEFT_OUT)


def _based_on(base: object, start: Axes) -> str:
    return f"{base} has {', '.join(start)}" if base is not None else f"there is no {BASE} to leave it out of"


def _mapping(name: str, family: str, axes: object) -> dict[str, object]:
    if not isinstance(axes, dict):
        what = f"space {name} is not a mapping of axes at {shown(family)}, but {shown(axes, quotes=isinstance(axes, str))}"
        raise UserError(f"{what}; {HOW_FILE}, or family: off to leave one out")
    _check_family(f"space {name}", family, (*families(), ALL, BASE))
    return axes


def _check_family(where: str, family: str, known: Sequence[str]) -> None:
    if family in family_faults():
        raise UserError(f"{where}: {family_faults()[family]}")
    if family not in (ALL, *families()):
        raise UserError(f"{where}: no family named {shown(family)}; known: {', '.join(families())}{did_you_mean(family, known)}")


def _parse_change(name: str, family: str, axis: str, values: object) -> AxisChange:
    if axis not in AXES:
        raise UserError(f"space {name}: {_no_axis(family, axis)}")
    where = f"space {name}: {family}.{axis}"
    if not isinstance(values, dict):
        return AxisChange(family=family, axis=axis, only=_numbers(where, values))
    if not values or set(values) - {"add", "remove"}:
        raise UserError(f"{where} is {shown(values, quotes=False)}; {HOW}")
    return AxisChange(family=family, axis=axis, **{key: _numbers(where, value) for key, value in values.items()})


def _numbers(where: str, values: object) -> tuple[int, ...]:
    listed = values if isinstance(values, list) else [values]
    numbers = [value for value in listed if isinstance(value, int) and not isinstance(value, bool)]
    if not numbers or len(numbers) < len(listed):
        raise UserError(f"{where} is {shown(listed, quotes=False)}; give a list of whole numbers")
    wrong = [value for value in numbers if not 0 <= value <= LARGEST_VALUE]
    if wrong:
        raise UserError(f"{where} is {wrong[0]}; give whole numbers from 0 to {LARGEST_VALUE}")
    return tuple(dict.fromkeys(numbers))


def _no_axis(family: str, axis: str) -> str:
    if family == ALL:
        return f"no family has an axis {shown(axis)}; known: {', '.join(AXES)}{did_you_mean(axis, AXES)}"
    known = families()[family].axes
    return f"family {family} has no axis {shown(axis)}; it has {', '.join(known)}{did_you_mean(axis, known)}"


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
        raise UserError(f"--axis {shown(text)} is no axis and its values; {HOW_AXIS}")
    where, family, axis = f"--axis {shown(text)}", match[1] or ALL, match[2]
    words = [word.strip() for word in match[3].split(",")]
    if not all(re.fullmatch(r"[+-]?[0-9]+", word) for word in words) or len({word[0] in "+-" for word in words}) > 1:
        raise UserError(f"{where}: {shown(match[3])} is neither numbers nor numbers that all have a sign; {HOW_AXIS}")
    _check_family(where, family, tuple(families()))
    if axis not in AXES:
        raise UserError(f"{where}: {_no_axis(family, axis)}")
    numbers = {sign: _signed(f"{where}: {axis}", words, sign) for sign in ("", "+", "-")}
    return AxisChange(family=family, axis=axis, only=numbers[""], add=numbers["+"], remove=numbers["-"])


def _signed(where: str, words: Sequence[str], sign: str) -> tuple[int, ...]:
    chosen = [word.lstrip("+-") for word in words if (word[0] if word[0] in "+-" else "") == sign]
    return tuple(whole_number(word, where, most=LARGEST_VALUE) for word in chosen)
