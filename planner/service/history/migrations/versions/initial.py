"""The first schema. planner.service.history.database makes a new database as planner.service.history.schema has it and
marks it as the newest, so this version has nothing to do; a later one changes databases that exist."""

from __future__ import annotations

revision = "initial"
down_revision = None


def upgrade() -> None:
    pass
