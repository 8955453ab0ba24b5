"""What measurements say: validations, and the calibrations learnt from them."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"


def upgrade() -> None:
    op.create_table(
        "validations",
        sa.Column("validation_id", sa.Text, primary_key=True),
        *(sa.Column(name, sa.Text, nullable=False) for name in ("plan_id", "state", "mode", "gpu", "torch")),
        sa.Column("asked_at", sa.BigInteger, nullable=False),
        sa.Column("finished_at", sa.BigInteger),
        sa.Column("out_of_memory", sa.Boolean),
        sa.Column("error_percent", sa.Double),
        sa.Column("result", sa.LargeBinary, nullable=False),
        sa.Column("problem", sa.Text, nullable=False),
    )
    op.create_index("validations_by_time", "validations", ["asked_at"])
    op.create_index("validations_by_plan", "validations", ["plan_id"])
    op.create_table(
        "calibrations",
        sa.Column("calibration_id", sa.Text, primary_key=True),
        sa.Column("stored_at", sa.BigInteger, nullable=False),
        sa.Column("measurements", sa.BigInteger, nullable=False),
        sa.Column("document", sa.LargeBinary, nullable=False),
    )
    op.create_index("calibrations_by_time", "calibrations", ["stored_at"])
