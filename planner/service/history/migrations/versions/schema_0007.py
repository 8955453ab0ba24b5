"""Why jobs ran out of memory, and the words in which that was told."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0007"
down_revision = "0006"


def upgrade() -> None:
    op.add_column("jobs", sa.Column("cause", sa.Text, nullable=True))
    op.add_column("jobs", sa.Column("failure", sa.Text, nullable=True))
