"""Jobs that cannot be traced, so that nobody has to wait for that again."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0004"
down_revision = "0003"


def upgrade() -> None:
    op.create_table(
        "failures",
        sa.Column("trace_id", sa.Text, primary_key=True),
        sa.Column("kind", sa.Text, nullable=False),
        sa.Column("problem", sa.Text, nullable=False),
        sa.Column("allowed", sa.Text, nullable=False),
        sa.Column("remedy", sa.Text, nullable=False),
        sa.Column("place", sa.Text, nullable=False),
        sa.Column("trace_seconds", sa.Double, nullable=False),
        sa.Column("trace_memory_bytes", sa.BigInteger, nullable=False),
        sa.Column("failed_at", sa.BigInteger, nullable=False),
        sa.Column("used_at", sa.BigInteger, nullable=False),
    )
    op.create_index("failures_by_use", "failures", ["used_at"])
