"""Draws the key with which ids of what has secrets are made from now on (planner.service.orders)."""

from __future__ import annotations

from alembic import op

from planner.service.history.schema import KEYS

revision = "keyed"
down_revision = "masked"


def upgrade() -> None:
    KEYS.create(op.get_bind(), checkfirst=True)
