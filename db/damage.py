"""Is a row what this program writes? SQLite takes any value in any column, and a database may be someone else's: each value is compared
with the type of the field that it is for before anything is made of it."""

from __future__ import annotations

import json
import types
from collections.abc import Callable, Mapping
from datetime import datetime
from functools import cache
from typing import Any, Literal, TypeVar, get_args, get_origin, get_type_hints

from search_spaces.errors import UserError
from search_spaces.plain_text import shown

MEND = "leave that row out, or name another file"
_WORDS: Mapping[type, str] = {int: "whole number", float: "number", str: "text", bool: "truth value"}
Noun = TypeVar("Noun")


class DamagedRow(UserError):
    """A row holds what this program never writes."""


def made(noun: Callable[..., Noun], values: Mapping[str, Any]) -> Noun:
    """The dataclass, once every value is found to be of its field's type. Raises DamagedRow."""
    for name, value in values.items():
        allowed = _field_types(noun)[name]
        if allowed and type(value) not in allowed:
            raise DamagedRow(f"column {name} holds {shown(value)}, which is no {_WORDS[allowed[0]]}; {MEND}")
    try:
        return noun(**values)
    except (UserError, ValueError) as error:
        raise DamagedRow(f"a row of the database cannot be right: {shown(error, quotes=False)}; {MEND}") from None


@cache
def _field_types(noun: Any) -> dict[str, tuple[type, ...]]:
    """Field -> the types that a column may have; none for what is read from JSON beforehand."""
    return {name: _plain_types(hint) for name, hint in get_type_hints(noun).items()}


def _plain_types(hint: Any) -> tuple[type, ...]:
    if isinstance(hint, types.UnionType):
        return tuple(plain for part in get_args(hint) for plain in _plain_types(part))
    if get_origin(hint) is Literal:
        return (str,)
    if hint is bool:
        return (bool, int)  # SQLite has no truth values
    if hint is float:
        return (float, int)
    return (hint,) if hint in (int, str, types.NoneType) else ()


def numbers(text: Any, column: str) -> list[float]:
    """The JSON list that a column holds."""
    found = _json(text)
    if not isinstance(found, list) or not _are_numbers(found):
        raise DamagedRow(f"column {column} holds {shown(text)}, which is no list of numbers; {MEND}")
    return found


def named_numbers(text: Any, column: str) -> dict[str, float]:
    """The JSON object that a column holds."""
    found = _json(text)
    if not isinstance(found, dict) or not _are_numbers(list(found.values())):
        raise DamagedRow(f"column {column} holds {shown(text)}, which is no list of named numbers; {MEND}")
    return found


def _json(text: Any) -> Any:
    try:
        return json.loads(text)
    except (TypeError, ValueError, RecursionError):
        return None


def _are_numbers(values: list[Any]) -> bool:
    return all(type(value) in (int, float) for value in values)


def moment(text: Any, column: str) -> datetime | None:
    """The time, in ISO 8601, that a column holds."""
    try:
        return None if text is None else datetime.fromisoformat(text)
    except (TypeError, ValueError):
        raise DamagedRow(f"column {column} holds {shown(text)}, which is no time; {MEND}") from None
