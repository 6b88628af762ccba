"""The one reader of YAML: GPUs, architectures, spaces, families and calibrations. It takes the part of YAML that these files use.

Mappings, lists, texts, true and false, null, and numbers in decimal digits. What YAML 1.1 would turn into another number or another
thing (0x84, 12:30:45, 1_000, .inf, yes, dates) stays text, and whoever wanted a number refuses it. Aliases, tags, merge keys, keys
that stand twice and second documents are refused, so that what a file says can be seen in it and costs no more than its size.
"""

from __future__ import annotations

import math
import re
from typing import Any

import yaml

from search_spaces.errors import UserError
from search_spaces.plain_text import LARGEST, shown, visible

MOST_NODES = 50_000  # a file of ours has some hundred
MOST_DEPTH = 20
MOST_DIGITS = 40  # a longer text is no figure of anything

Node = Any  # dict[str, Node], list[Node], str, bool, int, float or None

# libyaml reads every GPU's file in a tenth of the time, and a name may need them all
_LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
_WORDS = {word: value for value, words in {True: "true True TRUE", False: "false False FALSE"}.items() for word in words.split()}
_NOTHING = ("", "~", "null", "Null", "NULL")
_WHOLE = re.compile(r"[+-]?(0|[1-9][0-9]*)", re.ASCII)
_DECIMAL = re.compile(r"[+-]?((0|[1-9][0-9]*)(\.[0-9]*)?|\.[0-9]+)([eE][+-]?[0-9]{1,3})?", re.ASCII)


def read_yaml(label: str, text: str) -> Node:
    """What the text says; None where it says nothing. Keys are texts. `label` is what sentences call the file.

    Raises UserError in a sentence that names the line.
    """
    try:
        loader = _LOADER(text)
    except (yaml.YAMLError, UnicodeError) as error:
        raise UserError(_not_yaml(label, error)) from None
    try:
        return _Reader(label, loader).document()
    except yaml.YAMLError as error:
        raise UserError(_not_yaml(label, error)) from None
    finally:
        loader.dispose()


def _not_yaml(label: str, error: Exception) -> str:
    mark, problem = getattr(error, "problem_mark", None), getattr(error, "problem", None)
    if mark is None or problem is None:
        return f"{label} is not YAML: {visible(' '.join(str(error).split()))}"
    return f"{label} is not YAML, line {mark.line + 1}: {visible(str(problem))}"


def scalar(text: str) -> Node:
    """What an unquoted text stands for."""
    if text in _NOTHING:
        return None
    if text[0] not in "0123456789+-." or len(text) > MOST_DIGITS:
        return _WORDS.get(text, text)
    if _WHOLE.fullmatch(text):
        return whole if abs(whole := int(text)) <= LARGEST else text
    return _decimal(text) if _DECIMAL.fullmatch(text) else text


def _decimal(text: str) -> float | str:
    """The number, or the text where a float has nothing like it: 1e999, 1e-999."""
    value = float(text)
    digits = text.lower().partition("e")[0]
    return text if math.isinf(value) or (value == 0 and digits.strip("+-0.")) else value


class _Reader:
    """From events to values, counting nodes and levels as they come."""

    def __init__(self, label: str, loader: Any) -> None:
        self._label, self._next = label, loader.get_event
        self._nodes = 0

    def document(self) -> Node:
        self._next()  # the stream's start
        event = self._next()
        if isinstance(event, yaml.StreamEndEvent):
            return None
        found = self._node(self._next(), 0)
        self._next()  # the document's end
        event = self._next()
        if not isinstance(event, yaml.StreamEndEvent):
            raise self._refused(event, "a second document begins; give one")
        return found

    def _node(self, event: Any, depth: int) -> Node:
        self._nodes += 1
        if self._nodes > MOST_NODES:
            raise self._refused(event, f"more than {MOST_NODES} values")
        kind = type(event)
        if kind is yaml.ScalarEvent and event.anchor is None and event.tag is None:
            return scalar(event.value) if event.implicit[0] else event.value
        if kind is yaml.AliasEvent or event.anchor is not None:
            raise self._refused(event, f"anchors and aliases such as {shown(f'&{event.anchor}', quotes=False)} are not read; write it out")
        if event.tag is not None:
            raise self._refused(event, f"the tag {shown(event.tag)} is not read; leave it out")
        if depth >= MOST_DEPTH:
            raise self._refused(event, f"more than {MOST_DEPTH} levels")
        return self._list(depth + 1) if kind is yaml.SequenceStartEvent else self._mapping(depth + 1)

    def _list(self, depth: int) -> list[Node]:
        found = []
        while type(event := self._next()) is not yaml.SequenceEndEvent:
            found.append(self._node(event, depth))
        return found

    def _mapping(self, depth: int) -> dict[str, Node]:
        found: dict[str, Node] = {}
        lines: dict[str, int] = {}
        while type(event := self._next()) is not yaml.MappingEndEvent:
            if type(event) is not yaml.ScalarEvent or event.anchor is not None or event.tag is not None:
                raise self._refused(event, "a key is no plain text; give key: value")
            key = event.value
            if key == "<<" and event.implicit[0]:
                raise self._refused(event, "merge keys (<<) are not read; write it out")
            if key in lines:
                both = f"lines {lines[key]} and {_line(event)}"
                raise UserError(f"{self._label}: {shown(key)} stands twice, on {both}; leave one")
            lines[key] = _line(event)
            found[key] = self._node(self._next(), depth)
        return found

    def _refused(self, event: Any, why: str) -> UserError:
        return UserError(f"{self._label}, line {_line(event)}: {why}")


def _line(event: Any) -> int:
    return int(event.start_mark.line) + 1
