"""Run by Alembic for every command. The connection comes from the caller: there is no alembic.ini."""

from alembic import context

from db.faults import VERSION_TABLE
from db.schema import METADATA

context.configure(
    connection=context.config.attributes["connection"],
    target_metadata=METADATA,
    version_table=VERSION_TABLE,
    transactional_ddl=True,  # SQLite's tables are made in a transaction too, once Python's driver leaves transactions to us
)
with context.begin_transaction():
    context.run_migrations()
