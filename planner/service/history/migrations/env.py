"""Run by alembic, over the connection that planner.service.history.database opened and will commit."""

from __future__ import annotations

from alembic import context

from planner.service.history.schema import METADATA, VERSION_TABLE

context.configure(
    connection=context.config.attributes["connection"],
    target_metadata=METADATA,
    version_table=VERSION_TABLE,
    transactional_ddl=True,  # SQLite's too: the transaction is opened by hand
)
context.run_migrations()
