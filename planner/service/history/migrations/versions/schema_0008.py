"""What the nodes of a plan hold on the host; nothing of plans that were made before it was asked."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0008"
down_revision = "0007"

_COLUMNS = ("nodes", "host_bytes", "host_capacity_bytes", "host_predicted_bytes")


def upgrade() -> None:
    for name in _COLUMNS:
        op.add_column("plans", sa.Column(name, sa.BigInteger, nullable=True))
