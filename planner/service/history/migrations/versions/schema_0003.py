"""What all replicas count together, and what each of them tells of itself."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"


def upgrade() -> None:
    op.create_table(
        "totals",
        sa.Column("name", sa.Text, primary_key=True),
        sa.Column("labels", sa.Text, primary_key=True),
        sa.Column("value", sa.Double, nullable=False),
    )
    op.create_table(
        "writers",
        sa.Column("writer", sa.Text, primary_key=True),
        sa.Column("batch", sa.BigInteger, nullable=False),
        sa.Column("updated_at", sa.BigInteger, nullable=False),
    )
    op.create_index("writers_by_time", "writers", ["updated_at"])
    op.create_table(
        "levels",
        sa.Column("writer", sa.Text, sa.ForeignKey("writers.writer", ondelete="CASCADE"), primary_key=True),
        sa.Column("name", sa.Text, primary_key=True),
        sa.Column("labels", sa.Text, primary_key=True),
        sa.Column("value", sa.Double, nullable=False),
    )
    op.create_index("checks_by_verdict", "checks", ["verdict"])
    op.create_index("validations_by_state", "validations", ["state"])
