"""What a job may use of each of its GPUs, and how many GPUs that makes; of earlier plans as their documents say.
Failures by plan: jobs that share a trace need not share what is wrong with them."""

from __future__ import annotations

import json
import zlib

import sqlalchemy as sa
from alembic import op

revision = "0009"
down_revision = "0008"

_PLANS = sa.table("plans", *map(sa.column, ("plan_id", "gpus", "gpu_fraction", "gpu_memory", "held_by_others_bytes")))


def upgrade() -> None:
    op.add_column("plans", sa.Column("gpus", sa.Double, nullable=False, server_default="0"))
    op.add_column("plans", sa.Column("gpu_fraction", sa.Double, nullable=False, server_default="1"))
    op.add_column("plans", sa.Column("gpu_memory", sa.BigInteger, nullable=False, server_default="0"))
    op.add_column("plans", sa.Column("held_by_others_bytes", sa.BigInteger, nullable=False, server_default="0"))
    op.execute("UPDATE plans SET gpus = ranks")
    op.execute("ALTER TABLE failures RENAME COLUMN trace_id TO plan_id")
    connection = op.get_bind()
    # Only those of jobs: who asks for another plan gets one of this version.
    documents = "SELECT plan_id, document FROM plan_documents WHERE plan_id IN (SELECT plan_id FROM jobs)"
    for plan_id, document in connection.execute(sa.text(documents)).all():
        cluster = json.loads(zlib.decompress(document)).get("job", {}).get("cluster", {})
        fraction, memory = cluster.get("gpu_fraction", 1.0), cluster.get("gpu_memory", 0)
        share = min(fraction, memory / cluster["gpu"]["total_bytes"] if memory else 1.0, 1.0)
        changes = {
            "gpus": _PLANS.c.gpus * share, "gpu_fraction": fraction, "gpu_memory": memory,
            "held_by_others_bytes": cluster.get("held_by_others_bytes", 0),
        }  # fmt: skip
        connection.execute(sa.update(_PLANS).where(_PLANS.c.plan_id == plan_id).values(changes))
