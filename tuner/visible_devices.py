"""Which devices CUDA_VISIBLE_DEVICES leaves visible, by CUDA's own rules: those of the CUDA programming guide (environment variables), and
where it is silent, what driver 580 does on an H200.

Identifiers are taken in turn, and the first that names nothing hides itself and all after it. What the first one looks like decides how
all are read: GPU- as UUIDs of cards, MIG- as UUIDs of slices, anything else as the C function strtoul reads a number. Naming a device
twice hides all.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

NUMBER = re.compile(r"[ \t\n\v\f\r]*([+-]?)([0-9]+)", re.ASCII)
UUID_CHARACTERS = 40  # with its GPU- or MIG-; what follows is not looked at
LONGEST = 20  # digits of 2^64


def visible_cards(text: str, uuids: Sequence[str]) -> list[int]:
    """Of cards, whose UUIDs are given in the order of the PCI bus, those that are visible, in the order that CUDA counts them in."""
    entries = text.split(",")
    if entries[0].startswith("GPU-"):
        return _in_turn(entries, lambda entry: _by_uuid(entry, "GPU-", uuids))
    return _in_turn(entries, lambda entry: _by_number(entry, len(uuids)))


def visible_slices(text: str, names: Sequence[Sequence[str]]) -> list[int]:
    """Of MIG slices, those that are visible. names: of each one all that it goes by, its UUID and MIG-GPU-<uuid>/<instance>/<instance>."""
    return _in_turn(text.split(","), lambda entry: _by_any_name(entry, names))


def names_slices(text: str) -> bool:
    return text.startswith("MIG-")


def _in_turn(entries: Sequence[str], find: Callable[[str], int | None]) -> list[int]:
    found: list[int] = []
    for entry in entries:
        index = find(entry)
        if index is None:
            break
        if index in found:
            return []
        found.append(index)
    return found


def _by_number(entry: str, count: int) -> int | None:
    """What follows the digits is not looked at; 32 bits of the number are."""
    match = NUMBER.match(entry)
    if match is None:
        return None
    digits = match[2].lstrip("0")
    if len(digits) > LONGEST or int(digits or "0") >= 2**64:
        return None
    number = (-int(digits or "0") if match[1] == "-" else int(digits or "0")) % 2**32
    return number if number < count else None


def _by_uuid(entry: str, prefix: str, uuids: Sequence[str]) -> int | None:
    """Enough of its beginning to tell a device from the others names it; case does not matter after the prefix."""
    if not entry.startswith(prefix) or entry == prefix:
        return None
    wanted = entry[:UUID_CHARACTERS].lower()
    found = [index for index, uuid in enumerate(uuids) if uuid.lower().startswith(wanted)]
    return found[0] if len(found) == 1 else None


def _by_any_name(entry: str, names: Sequence[Sequence[str]]) -> int | None:
    exact = [index for index, known in enumerate(names) if entry in known]
    return exact[0] if exact else _by_uuid(entry, "MIG-", [known[0] for known in names])
