"""Searches, so that any replica tells of them and one that ended early goes on."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0006"
down_revision = "0005"


def upgrade() -> None:
    op.create_table(
        "searches",
        sa.Column("search_id", sa.Text, primary_key=True),
        sa.Column("state", sa.Text, nullable=False),
        sa.Column("asked_at", sa.BigInteger, nullable=False),
        sa.Column("finished_at", sa.BigInteger),
        sa.Column("request", sa.LargeBinary, nullable=False),
        sa.Column("document", sa.LargeBinary, nullable=False),
        sa.Column("answers", sa.LargeBinary, nullable=False),
    )
    op.create_index("searches_by_time", "searches", ["asked_at"])
    op.create_index("searches_by_state", "searches", ["state"])
