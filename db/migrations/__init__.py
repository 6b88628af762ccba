"""Brings a database to a version of the schema. One file in `versions` a step, written out in full: a released step never changes again."""

from __future__ import annotations

from pathlib import Path

from alembic import command
from alembic.config import Config
from sqlalchemy import Connection


def upgrade(connection: Connection, version: str) -> None:
    """Runs inside the caller's transaction, so that it happens as a whole or not at all."""
    config = Config()
    config.set_main_option("script_location", str(Path(__file__).parent).replace("%", "%%"))
    config.set_main_option("path_separator", "newline")
    config.attributes["connection"] = connection
    command.upgrade(config, version)
