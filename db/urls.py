"""A server's URL as it may be printed. What is not known to be harmless is not shown: passwords stand in more than one place of a URL."""

from __future__ import annotations

import re
from urllib.parse import parse_qsl, unquote

from search_spaces.plain_text import visible

MASK = "***"
_URL = re.compile(  # as SQLAlchemy reads it
    r"(?P<name>[\w+]+)://(?:(?P<user>[^:/]*)(?::(?P<password>[^@]*))?@)?"
    r"(?P<host>\[[^/?]+\]|[^/:?]+)?(?::(?P<port>[^/?]*))?(?:/(?P<database>[^?]*))?(?:\?(?P<query>.*))?",
    re.DOTALL,
)
_HARMLESS_KEYS = {"host", "hostaddr", "port", "user", "dbname", "sslmode", "application_name", "connect_timeout", "target_session_attrs"}
_HARMLESS = re.compile(r"[\w.,:\-/ \[\]~]*")
_WITHIN = re.compile(r"(?:pass\w*\s*=|:)\s*'?([^\s'&]+)", re.IGNORECASE)  # of a text that is left out, what a driver may repeat alone
_NAME = re.compile(r"[\w.,\-/ \[\]~]*")  # without a colon, after which a password may stand


def printable_location(location: str) -> str:
    """A file's path, or a URL with *** for whatever may be secret."""
    return _parts(location)[0] if "://" in location else visible(location)


def secrets(url: str) -> tuple[str, ...]:
    """The texts of a URL that are never to be printed, longest first: as they are written, and as they are meant."""
    found = {text for hidden in _parts(url)[1] for text in (hidden, unquote(hidden), unquote(hidden.replace("+", " "))) if text}
    found |= {word for text in found for word in _WITHIN.findall(text)}
    return tuple(sorted(found, key=len, reverse=True))


def without(hidden: tuple[str, ...], text: str) -> str:
    """A driver's words with the secrets masked."""
    for secret in hidden:
        text = text.replace(secret, MASK)
    return text


def _parts(url: str) -> tuple[str, list[str]]:
    """(the URL to print, what it leaves out)."""
    match = _URL.fullmatch(url)
    if match is None:
        return MASK, [url]
    left_out: list[str] = []

    def harmless(text: str, allowed: re.Pattern[str]) -> str:
        if allowed.fullmatch(unquote(text)):
            return text
        left_out.append(text)
        return MASK

    user, *rest = re.split("%3a", match["user"] or "", maxsplit=1, flags=re.IGNORECASE)
    left_out += [text for text in (match["password"], *rest) if text]
    shown = f"{match['name']}://"
    if match["user"] is not None:
        shown += harmless(user, _NAME) + (f":{MASK}" if match["password"] is not None or rest else "") + "@"
    host = (match["host"] or "").rpartition("@")
    left_out += [host[0]] if host[0] else []
    shown += harmless(host[2], _HARMLESS) + (f":{harmless(match['port'], re.compile('[0-9]*'))}" if match["port"] is not None else "")
    shown += f"/{harmless(match['database'], _NAME)}" if match["database"] is not None else ""
    if match["query"]:
        pairs = parse_qsl(match["query"], keep_blank_values=True)
        kept = []
        for key, value in pairs:
            allowed = key.lower() in _HARMLESS_KEYS and _NAME.fullmatch(value)
            left_out += [] if allowed or not value else [value]
            kept.append(f"{key if _NAME.fullmatch(key) else MASK}={value if allowed else MASK}")
        shown += "?" + "&".join(kept)
    return visible(shown), left_out
