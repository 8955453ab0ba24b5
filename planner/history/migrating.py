"""Migrates a database to this planner's schema, once, however many processes open it together."""

from __future__ import annotations

from pathlib import Path

from alembic import command
from alembic.config import Config
from alembic.runtime.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import Connection, text

from planner.history.history_errors import HistoryUnavailableError
from planner.history.schema import VERSION_TABLE

_FOLDER = Path(__file__).parent / "migrations"
_LOCK = 0x706C616E  # "plan": the advisory lock under which one of many processes migrates


def is_current(connection: Connection, place: str) -> bool:
    """Whether there is nothing to do. Raises HistoryUnavailableError if a newer planner wrote the schema."""
    scripts = ScriptDirectory.from_config(_config())
    options = {"version_table": VERSION_TABLE}
    current = MigrationContext.configure(connection, opts=options).get_current_revision()
    known = {script.revision for script in scripts.walk_revisions()}
    if current is not None and current not in known:
        raise HistoryUnavailableError(
            f"its schema {current} is newer than this planner",
            allowed=", ".join(sorted(known)),
            remedy="update this planner, or give it a database of its own",
            place=place,
        )
    return current == scripts.get_current_head()


def migrate(connection: Connection, place: str, revision: str = "head") -> None:
    """Every step up to `revision`, inside the transaction of `connection`: all of them or none."""
    if connection.dialect.name == "postgresql":
        connection.execute(text("SELECT pg_advisory_xact_lock(:key)"), {"key": _LOCK})
    if is_current(connection, place):
        return
    config = _config()
    config.attributes["connection"] = connection
    command.upgrade(config, revision)


def _config() -> Config:
    config = Config()
    config.set_main_option("script_location", str(_FOLDER).replace("%", "%%"))
    config.set_main_option("path_separator", "os")
    return config
