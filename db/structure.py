"""Is this a tuner's database? Its objects, its version, and whether every table and column of the schema is there, as a plain table.

A file may be someone else's. Views, triggers, virtual tables and computed columns under our tables' names would run what their writer
wants, for as long as they like: they are refused. Without them every question takes a time bounded by the size of the file.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from db.damage import COLUMNS, Row
from db.faults import OTHER_FILE, SCHEMA_VERSION, VERSION_TABLE
from search_spaces.errors import UserError
from search_spaces.plain_text import shown

Look = Callable[[str], Iterable[Row]]

_VERSION = re.compile(r"[0-9]{4}", re.ASCII)
_VIRTUAL = re.compile(r"\s*CREATE\s+VIRTUAL\b", re.IGNORECASE)
_REFERENCES = (("run", "environment"), ("trial", "run"), ("trial", "environment"), ("finalist", "run"), ("finalist", "trial"))


def not_ours(location: str, why: str) -> UserError:
    return UserError(f"{location} is not a tuner database ({why}); it was left as it is: {OTHER_FILE}")


def file_version(location: str, look: Look, *, older: bool = False) -> str | None:
    """The schema's version of a SQLite file; None where there is nothing in it at all. Raises UserError where it is no tuner's, a newer
    tuner's, or an older one's unless `older` is welcome."""
    objects = [row for row in look("SELECT type, name, tbl_name, sql FROM sqlite_master ORDER BY name") if not _is_own(row)]
    if not objects:
        return None
    plain = {row["name"] for row in objects if row["type"] == "table" and not _VIRTUAL.match(row["sql"] or "")}
    for row in objects:
        ours = _ours(row["tbl_name"])
        if ours and (row["type"] not in ("table", "index") or (row["type"] == "table" and row["name"] not in plain)):
            kind = row["type"] if row["type"] != "table" else "virtual table"
            raise not_ours(location, f"it has a {kind} {shown(row['name'])} where a tuner has the table '{ours}'")
    if VERSION_TABLE not in plain:
        raise not_ours(location, f"it has the {objects[0]['type']} {shown(objects[0]['name'])} and no tuner's schema")
    columns = {table: list(look(f"PRAGMA table_xinfo({table})")) for table in (VERSION_TABLE, *COLUMNS) if table in plain}
    computed = [f"{table}.{column['name']}" for table, found in columns.items() for column in found if column["hidden"]]
    if computed:
        raise not_ours(location, f"the column {shown(computed[0])} is computed")
    keyed = [table for table in ("run", "environment", "trial") if table in columns and not _has_id(columns[table])]
    if keyed:
        raise not_ours(location, f"the ids of its table {keyed[0]!r} are not its primary key")
    return check_version(location, {table: {column["name"] for column in found} for table, found in columns.items()}, look, older=older)


def _is_own(row: Row) -> bool:
    """SQLite's own tables, such as that of its statistics."""
    return str(row["name"]).startswith("sqlite_") and not _ours(row["tbl_name"])


def _ours(name: object) -> str | None:
    """Names are the same to SQLite in capitals."""
    return next((table for table in (VERSION_TABLE, *COLUMNS) if str(name).lower() == table), None)


def _has_id(columns: list[Row]) -> bool:
    return any(column["name"] == "id" and column["pk"] == 1 and str(column["type"]).upper() == "INTEGER" for column in columns)


def server_version(location: str, look: Look, *, older: bool = False) -> str | None:
    """`file_version` of a server's database."""
    sql = (
        "SELECT c.table_name AS name, c.column_name AS entry FROM information_schema.columns c JOIN information_schema.tables t"
        " ON t.table_schema = c.table_schema AND t.table_name = c.table_name"
        " WHERE c.table_schema = current_schema() AND t.table_type = 'BASE TABLE' ORDER BY c.table_name"
    )
    columns: dict[str, set[str]] = {}
    for row in look(sql):
        columns.setdefault(row["name"], set()).add(row["entry"])
    if not columns:
        return None
    if VERSION_TABLE not in columns:
        raise not_ours(location, f"it has the table {shown(min(columns))} and no tuner's schema")
    return check_version(location, columns, look, older=older)


def check_version(location: str, columns: Mapping[str, set[str]], look: Look, *, older: bool = False) -> str:
    """columns: of the tables that are there."""
    if "version_num" not in columns[VERSION_TABLE]:
        raise not_ours(location, f"its table '{VERSION_TABLE}' has no column 'version_num'")
    found = [row["version_num"] for row in look(f"SELECT version_num FROM {VERSION_TABLE} LIMIT 2")]
    if len(found) != 1:
        raise not_ours(location, f"it names {'two or more versions' if found else 'no version'} of the schema, and a tuner names one")
    version: Any = found[0]
    if type(version) is not str or not _VERSION.fullmatch(version) or version == "0000":
        what = "NULL" if version is None else shown(version[:100] if isinstance(version, bytes) else version)
        raise not_ours(location, f"the version of its schema is {what}, and a tuner's is such as {SCHEMA_VERSION}")
    if version > SCHEMA_VERSION:
        raise UserError(f"{location} was written by a newer tuner (schema {version}, this one knows {SCHEMA_VERSION}): upgrade the tool")
    lost = [table for table in COLUMNS if table not in columns]
    if version == SCHEMA_VERSION:
        lost += [f"{table}.{name}" for table in COLUMNS if table in columns for name in COLUMNS[table] if name not in columns[table]]
    if lost:
        raise not_ours(location, f"its schema is said to be {version}, and {shown(lost[0], quotes=False)} is missing")
    if version < SCHEMA_VERSION and not older:
        raise UserError(
            f"{location} was written by an older tuner (schema {version}, this one has {SCHEMA_VERSION}): run `tuner db upgrade`"
        )
    return version


def dangling(look: Look) -> list[str]:
    """A sentence for each column that refers to rows which are not there."""
    found = []
    for table, parent in _REFERENCES:
        rows = look(
            f"SELECT COUNT(*) AS amount FROM {table} WHERE NOT EXISTS (SELECT 1 FROM {parent} WHERE {parent}.id = {table}.{parent}_id)"
        )
        amount = sum(row["amount"] for row in rows)
        found += [f"{amount} of table {table} name a row of {parent} that is not there"] if amount else []
    return found
