"""A new database gets the tables of the schema; one of a schema that this planner does not know is left alone."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from alembic.autogenerate import compare_metadata
from alembic.runtime.migration import MigrationContext

from planner.service.history import database as database_module
from planner.service.history import schema
from planner.service.history.database import Database
from planner.service.history.errors import HistoryUnavailableError
from planner.service.history.store import History


def opened(url: str) -> Database:
    """As it is, without its schema being looked at."""
    return Database(database_module._engine(database_module._parse_url(url)))


def version(database: Database) -> str:
    with database.reading() as connection:
        return str(connection.exec_driver_sql(f"SELECT version_num FROM {schema.VERSION_TABLE}").scalar_one())


def test_an_empty_database_gets_the_tables_of_the_schema_and_no_others(shared_url: str) -> None:
    with History.open(shared_url) as history, history._database.reading() as connection:
        options = {"version_table": schema.VERSION_TABLE, "compare_type": True}
        context = MigrationContext.configure(connection, opts=options)

        assert compare_metadata(context, schema.METADATA) == []
        assert context.get_current_revision() == "keyed"


@pytest.mark.parametrize("other", ["9999", "0009"])
def test_a_schema_that_this_planner_does_not_know_is_refused_and_left_as_it_is(shared_url: str, other: str) -> None:
    with History.open(shared_url) as history, history._database.writing() as connection:
        connection.exec_driver_sql(f"UPDATE {schema.VERSION_TABLE} SET version_num = '{other}'")

    with pytest.raises(HistoryUnavailableError, match=f"its schema {other} is not one of this planner") as refused:
        History.open(shared_url)

    assert (refused.value.allowed, refused.value.remedy) == (
        "initial, keyed, masked",
        "name a new database, or update this planner",
    )
    assert version(opened(shared_url)) == other


def test_a_schema_that_cannot_be_made_whole_is_not_made_at_all(
    shared_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = database_module.migrate

    def fails_at_the_end(connection: Any, place: str) -> None:
        real(connection, place)
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(database_module, "migrate", fails_at_the_end)
        with pytest.raises(KeyboardInterrupt):
            History.open(shared_url)

    with opened(shared_url).reading() as connection:
        assert not connection.dialect.has_table(connection, schema.VERSION_TABLE)
        assert not connection.dialect.has_table(connection, "plans")
    with History.open(shared_url) as history:
        assert version(history._database) == "keyed"


def test_tables_of_somebody_else_are_not_taken_over(shared_url: str) -> None:
    with opened(shared_url).writing() as connection:
        connection.exec_driver_sql("CREATE TABLE jobs (name TEXT)")

    with pytest.raises(HistoryUnavailableError, match="already exists"):
        History.open(shared_url)

    with opened(shared_url).reading() as connection:
        assert not connection.dialect.has_table(connection, "plans")


def test_the_file_is_in_wal_mode(tmp_path: Path) -> None:
    with History.open(f"sqlite:///{tmp_path}/history.db") as history, history._database.reading() as connection:
        assert connection.exec_driver_sql("PRAGMA journal_mode").scalar_one() == "wal"
        assert connection.exec_driver_sql("PRAGMA foreign_keys").scalar_one() == 1
