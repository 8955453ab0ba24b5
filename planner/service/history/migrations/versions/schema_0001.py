"""Plans, their traces, the jobs that they are bound to, and checks."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None


def upgrade() -> None:
    op.create_table(
        "plans",
        sa.Column("plan_id", sa.Text, primary_key=True),
        *_texts("trace_id"),
        *_counts("stored_at", "used_at"),
        *_texts("verdict"),
        sa.Column("calibrated", sa.Boolean, nullable=False),
        sa.Column("advised", sa.Boolean, nullable=False),
        *_texts("name", "team", "queue", "gpu"),
        *_counts("ranks", "requested_bytes", "predicted_bytes"),
    )
    op.create_index("plans_by_trace", "plans", ["trace_id"])
    op.create_index("plans_by_time", "plans", ["stored_at"])
    op.create_index("plans_by_use", "plans", ["used_at"])
    op.create_table(
        "plan_documents",
        sa.Column("plan_id", sa.Text, sa.ForeignKey("plans.plan_id", ondelete="CASCADE"), primary_key=True),
        sa.Column("document", sa.LargeBinary, nullable=False),
    )
    op.create_table(
        "rank_classes",
        sa.Column("plan_id", sa.Text, sa.ForeignKey("plans.plan_id", ondelete="CASCADE"), primary_key=True),
        sa.Column("representative", sa.Integer, primary_key=True, autoincrement=False),
        *_texts("ranks"),
        *_counts("count"),
        *_texts("verdict"),
        *_counts("capacity_bytes", "allocated_bytes", "reserved_bytes", "device_bytes"),
        *_counts("lowest_bytes", "highest_bytes"),
        *_texts("at_peak"),
    )
    op.create_table(
        "traces",
        sa.Column("trace_id", sa.Text, primary_key=True),
        sa.Column("representative", sa.Integer, primary_key=True, autoincrement=False),
        *_counts("used_at"),
        sa.Column("document", sa.LargeBinary, nullable=False),
    )
    op.create_index("traces_by_use", "traces", ["used_at"])
    op.create_table(
        "jobs",
        sa.Column("system", sa.Text, primary_key=True),
        sa.Column("job_id", sa.Text, primary_key=True),
        sa.Column("plan_id", sa.Text, sa.ForeignKey("plans.plan_id"), nullable=False),
        *_texts("team", "queue", "hosts", "gpu_uuids"),
        sa.Column("started_at", sa.BigInteger),
        sa.Column("ended_at", sa.BigInteger),
        *_texts("outcome"),
        *_counts("updated_at"),
    )
    op.create_index("jobs_by_plan", "jobs", ["plan_id"])
    op.create_index("jobs_by_end", "jobs", ["ended_at"])
    op.create_table(
        "measured_ranks",
        sa.Column("system", sa.Text, primary_key=True),
        sa.Column("job_id", sa.Text, primary_key=True),
        sa.Column("rank", sa.Integer, primary_key=True, autoincrement=False),
        *_texts("host", "gpu_uuid"),
        sa.Column("allocated_bytes", sa.BigInteger),
        sa.Column("reserved_bytes", sa.BigInteger),
        sa.Column("device_bytes", sa.BigInteger),
        *_counts("predicted_bytes"),
        sa.Column("report", sa.LargeBinary, nullable=False),
        sa.ForeignKeyConstraint(["system", "job_id"], ["jobs.system", "jobs.job_id"], ondelete="CASCADE"),
    )
    op.create_table(
        "checks",
        sa.Column("check_id", sa.Text, primary_key=True),
        *_texts("plan_id"),
        *_counts("asked_at"),
        *_texts("verdict", "system", "name", "team", "queue"),
    )
    op.create_index("checks_by_time", "checks", ["asked_at"])


def _texts(*names: str) -> list[sa.Column[str]]:
    return [sa.Column(name, sa.Text, nullable=False) for name in names]


def _counts(*names: str) -> list[sa.Column[int]]:
    return [sa.Column(name, sa.BigInteger, nullable=False) for name in names]
