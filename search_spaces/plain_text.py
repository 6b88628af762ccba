"""Between text that people, files and databases hold and what we make of it: whole numbers read from it, and text made safe to print.

Every number that a person or a file writes as text goes through `whole_number`, and every text of unknown origin that is printed through
`visible`: what one of them refuses is refused everywhere.
"""

from __future__ import annotations

import re
import unicodedata

from search_spaces.errors import UserError

LARGEST = 2**63 - 1  # what a database's integer column and a 64-bit argument of a kernel hold
SHOWN = 60  # characters of a wrong text that its sentence repeats
_DIGITS = re.compile(r"[+-]?[0-9]+", re.ASCII)


def whole_number(text: str, what: str, *, least: int = 0, most: int = LARGEST, how: str = "") -> int:
    """The number that `text` writes in decimal digits; `what` names it in the sentence, `how` says what to do.

    Other digits than 0 to 9, which `str.isdigit` takes, are refused, and so are texts of thousands of digits, before they are converted.
    """
    word = text.strip()
    end = f"; {how}" if how else ""
    if not _DIGITS.fullmatch(word):
        raise UserError(f"{what} is {shown(text)}, which is no whole number{end}")
    if len(word.lstrip("+-").lstrip("0")) > len(str(LARGEST)) or not least <= int(word) <= most:
        raise UserError(f"{what} is {shown(word, quotes=False)}; it is a whole number from {least} to {most}{end}")
    return int(word)


def shown(text: object, *, quotes: bool = True) -> str:
    """A wrong text as a sentence may repeat it: escaped, and cut where it is long."""
    whole = str(text)
    plain = visible(whole[: SHOWN + 1]).replace("\n", "\\n").replace("\t", "\\t")  # of millions of characters the first are enough
    cut = plain if len(plain) <= SHOWN else f"{plain[:SHOWN]}... ({len(whole)} characters)"
    return f"'{cut}'" if quotes else cut


def visible(text: str) -> str:
    """The text without anything that a terminal would obey: control characters, but for newline and tab, and those that change the
    direction of writing are written as escapes."""
    if text.isascii() and text.replace("\n", "").replace("\t", "").isprintable():
        return text
    return "".join(character if _harmless(character) else _escaped(character) for character in text)


def _harmless(character: str) -> bool:
    return character in "\n\t" or unicodedata.category(character) not in ("Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp")


def _escaped(character: str) -> str:
    code = ord(character)
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"
