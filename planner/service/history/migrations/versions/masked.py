"""Masks secrets in what was stored before texts were masked when they are stored (planner.job.masking)."""

from __future__ import annotations

import json
import zlib
from collections.abc import Callable, Iterator
from typing import Any

from alembic import op
from sqlalchemy import Connection, Table, select, update

from planner.job.masking import CommandMask, mask_json, mask_text
from planner.service.history import schema
from planner.service.history.database import batches

revision = "masked"
down_revision = "initial"

_OVER = ("done", "stopped", "failed", "refused")
"""States of searches and validations that are not run again as they were stored."""
_TEXTS = {
    schema.PLANS: ("name", "team", "queue"),
    schema.MEASURED_RANKS: ("report",),
    schema.JOBS: ("team", "queue", "failure"),
    schema.FAILURES: ("problem", "allowed", "remedy", "place"),
    schema.CHECKS: ("name", "team", "queue"),
    schema.VALIDATIONS: ("problem", "result"),
    schema.SEARCHES: ("request", "document", "answers"),
}
_ROWS = 50
"""At a time: a plan and a search may have megabytes."""


def upgrade() -> None:
    connection = op.get_bind()
    if connection.dialect.name == "sqlite":
        connection.exec_driver_sql("PRAGMA secure_delete = ON")  # what is overwritten stays in no free page
    _rewrite(connection, schema.PLAN_DOCUMENTS, ("document",), _mask_document)
    for table, names in _TEXTS.items():
        _rewrite(connection, table, names, mask_json)


def _rewrite(connection: Connection, table: Table, names: tuple[str, ...], change: Callable[[Any], Any]) -> None:
    for row in _rows(connection, table, names):
        may_change = "state" not in table.c or row["state"] in _OVER
        changed = {name: value for name in names if (value := change(row[name])) != row[name] and may_change}
        if changed:
            here = [column == row[column.name] for column in table.primary_key]
            connection.execute(update(table).where(*here).values(changed))


def _rows(connection: Connection, table: Table, names: tuple[str, ...]) -> Iterator[dict[str, Any]]:
    key = list(table.primary_key)
    columns = [*key, *(table.c[name] for name in names), *([table.c.state] if "state" in table.c else [])]
    for some in batches(connection.execute(select(*key)).all(), _ROWS):
        for place in some:
            here = [column == value for column, value in zip(key, place, strict=True)]
            try:
                row = connection.execute(select(*columns).where(*here)).one()
            except (zlib.error, ValueError):  # damaged: nobody can read it either
                continue
            yield dict(row._mapping)


def _mask_document(text: str) -> str:
    try:
        document = json.loads(text)
    except ValueError:  # damaged
        return mask_text(text)
    if document.get("command"):
        document |= CommandMask(document["command"]).mask_run(document)
        text = schema.compact_json(document)
    return mask_text(text)
