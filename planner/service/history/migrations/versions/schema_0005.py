"""Until when a job counts whose end nobody may live to tell."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0005"
down_revision = "0004"


def upgrade() -> None:
    op.add_column("jobs", sa.Column("lapses_at", sa.BigInteger, nullable=True))
