"""The current tables; migrations/ brings a database to them. A test holds the two equal."""

from __future__ import annotations

from sqlalchemy import (
    BigInteger,
    Boolean,
    Column,
    Double,
    ForeignKey,
    ForeignKeyConstraint,
    Index,
    Integer,
    MetaData,
    Table,
    Text,
)

from planner.history.columns import CompressedText, JsonText, UtcMicroseconds

METADATA = MetaData()
VERSION_TABLE = "planner_schema"


def _text(name: str) -> Column[str]:
    return Column(name, Text, nullable=False)


def _count(name: str) -> Column[int]:
    return Column(name, BigInteger, nullable=False)


PLANS = Table(
    "plans",
    METADATA,
    Column("plan_id", Text, primary_key=True),
    _text("trace_id"),
    Column("stored_at", UtcMicroseconds, nullable=False),
    Column("used_at", UtcMicroseconds, nullable=False),
    _text("verdict"),
    Column("calibrated", Boolean, nullable=False),
    Column("advised", Boolean, nullable=False),
    _text("name"),
    _text("team"),
    _text("queue"),
    _text("gpu"),
    _count("ranks"),
    _count("requested_bytes"),
    _count("predicted_bytes"),
    Column("nodes", BigInteger),
    Column("host_bytes", BigInteger),
    Column("host_lowest_bytes", BigInteger),
    Column("host_highest_bytes", BigInteger),
    Column("host_capacity_bytes", BigInteger),
    Column("host_predicted_bytes", BigInteger),
    Index("plans_by_trace", "trace_id"),
    Index("plans_by_time", "stored_at"),
    Index("plans_by_use", "used_at"),
)

PLAN_DOCUMENTS = Table(
    "plan_documents",
    METADATA,
    Column("plan_id", Text, ForeignKey("plans.plan_id", ondelete="CASCADE"), primary_key=True),
    Column("document", CompressedText, nullable=False),
)
"""Apart from `plans`, so that a walk over all plans does not turn the pages of their documents."""

RANK_CLASSES = Table(
    "rank_classes",
    METADATA,
    Column("plan_id", Text, ForeignKey("plans.plan_id", ondelete="CASCADE"), primary_key=True),
    Column("representative", Integer, primary_key=True, autoincrement=False),
    _text("ranks"),
    _count("count"),
    _text("verdict"),
    _count("capacity_bytes"),
    _count("allocated_bytes"),
    _count("reserved_bytes"),
    _count("device_bytes"),
    _count("lowest_bytes"),
    _count("highest_bytes"),
    Column("at_peak", JsonText, nullable=False),
)

TRACES = Table(
    "traces",
    METADATA,
    Column("trace_id", Text, primary_key=True),
    Column("representative", Integer, primary_key=True, autoincrement=False),
    Column("used_at", UtcMicroseconds, nullable=False),
    Column("document", CompressedText, nullable=False),
    Index("traces_by_use", "used_at"),
)

JOBS = Table(
    "jobs",
    METADATA,
    Column("system", Text, primary_key=True),
    Column("job_id", Text, primary_key=True),
    Column("plan_id", Text, ForeignKey("plans.plan_id"), nullable=False),
    _text("team"),
    _text("queue"),
    Column("hosts", JsonText, nullable=False),
    Column("gpu_uuids", JsonText, nullable=False),
    Column("started_at", UtcMicroseconds),
    Column("ended_at", UtcMicroseconds),
    _text("outcome"),
    Column("updated_at", UtcMicroseconds, nullable=False),
    Column("lapses_at", UtcMicroseconds),
    Column("cause", Text),
    Column("failure", Text),
    Index("jobs_by_plan", "plan_id"),
    Index("jobs_by_end", "ended_at"),
)

MEASURED_RANKS = Table(
    "measured_ranks",
    METADATA,
    Column("system", Text, primary_key=True),
    Column("job_id", Text, primary_key=True),
    Column("rank", Integer, primary_key=True, autoincrement=False),
    _text("host"),
    _text("gpu_uuid"),
    Column("allocated_bytes", BigInteger),
    Column("reserved_bytes", BigInteger),
    Column("device_bytes", BigInteger),
    _count("predicted_bytes"),
    Column("report", CompressedText, nullable=False),
    ForeignKeyConstraint(["system", "job_id"], ["jobs.system", "jobs.job_id"], ondelete="CASCADE"),
)

FAILURES = Table(
    "failures",
    METADATA,
    Column("trace_id", Text, primary_key=True),
    _text("kind"),
    _text("problem"),
    _text("allowed"),
    _text("remedy"),
    _text("place"),
    Column("trace_seconds", Double, nullable=False),
    _count("trace_memory_bytes"),
    Column("failed_at", UtcMicroseconds, nullable=False),
    Column("used_at", UtcMicroseconds, nullable=False),
    Index("failures_by_use", "used_at"),
)
"""Jobs that cannot be traced, and the limits under which that was found out."""

CHECKS = Table(
    "checks",
    METADATA,
    Column("check_id", Text, primary_key=True),
    _text("plan_id"),
    Column("asked_at", UtcMicroseconds, nullable=False),
    _text("verdict"),
    _text("system"),
    _text("name"),
    _text("team"),
    _text("queue"),
    Index("checks_by_time", "asked_at"),
    Index("checks_by_verdict", "verdict"),
)

VALIDATIONS = Table(
    "validations",
    METADATA,
    Column("validation_id", Text, primary_key=True),
    _text("plan_id"),
    _text("state"),
    _text("mode"),
    _text("gpu"),
    _text("torch"),
    Column("asked_at", UtcMicroseconds, nullable=False),
    Column("finished_at", UtcMicroseconds),
    Column("out_of_memory", Boolean),
    Column("error_percent", Double),
    Column("result", CompressedText, nullable=False),
    _text("problem"),
    Index("validations_by_time", "asked_at"),
    Index("validations_by_plan", "plan_id"),
    Index("validations_by_state", "state"),
)

SEARCHES = Table(
    "searches",
    METADATA,
    Column("search_id", Text, primary_key=True),
    _text("state"),
    Column("asked_at", UtcMicroseconds, nullable=False),
    Column("finished_at", UtcMicroseconds),
    Column("request", CompressedText, nullable=False),
    Column("document", CompressedText, nullable=False),
    Column("answers", CompressedText, nullable=False),
    Index("searches_by_time", "asked_at"),
    Index("searches_by_state", "state"),
)

CALIBRATIONS = Table(
    "calibrations",
    METADATA,
    Column("calibration_id", Text, primary_key=True),
    Column("stored_at", UtcMicroseconds, nullable=False),
    _count("measurements"),
    Column("document", CompressedText, nullable=False),
    Index("calibrations_by_time", "stored_at"),
)

TOTALS = Table(
    "totals",
    METADATA,
    Column("name", Text, primary_key=True),
    Column("labels", Text, primary_key=True),
    Column("value", Double, nullable=False),
)
"""What only ever grows, of all processes together; it does not age."""

WRITERS = Table(
    "writers",
    METADATA,
    Column("writer", Text, primary_key=True),
    _count("batch"),
    Column("updated_at", UtcMicroseconds, nullable=False),
    Index("writers_by_time", "updated_at"),
)
"""The last batch of each process that adds to the totals: one that was added is not added again."""

LEVELS = Table(
    "levels",
    METADATA,
    Column("writer", Text, ForeignKey("writers.writer", ondelete="CASCADE"), primary_key=True),
    Column("name", Text, primary_key=True),
    Column("labels", Text, primary_key=True),
    Column("value", Double, nullable=False),
)
"""What rises and falls, as each process last told it: true while the process lives."""
