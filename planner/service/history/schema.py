"""The current tables and their column types; migrations/ brings a database to them. A test holds the two equal."""

from __future__ import annotations

import json
import zlib
from datetime import UTC, datetime, timedelta
from typing import Any

from sqlalchemy import (
    BigInteger,
    Boolean,
    Column,
    Dialect,
    Double,
    ForeignKey,
    ForeignKeyConstraint,
    Index,
    Integer,
    LargeBinary,
    MetaData,
    Table,
    Text,
)
from sqlalchemy.types import TypeDecorator

from planner.service.history.errors import HistoryError

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_FAST = 1
"""zlib's level: a plan of a thousand holders shrinks tenfold within 2 ms; more effort gains little."""


class UtcMicroseconds(TypeDecorator[datetime]):
    """A moment with its time zone, as microseconds since 1970: the same order in every database."""

    impl = BigInteger
    cache_ok = True

    def process_bind_param(self, value: datetime | None, dialect: Dialect) -> int | None:  # noqa: ARG002
        if value is None:
            return None
        return (value - _EPOCH) // timedelta(microseconds=1)

    def process_result_value(self, value: int | None, dialect: Dialect) -> datetime | None:  # noqa: ARG002
        return None if value is None else _EPOCH + timedelta(microseconds=value)


class JsonText(TypeDecorator[Any]):
    """A small JSON value as text, its keys in the order in which they came."""

    impl = Text
    cache_ok = True

    def process_bind_param(self, value: Any, dialect: Dialect) -> str:  # noqa: ARG002
        return compact_json(value)

    def process_result_value(self, value: str | None, dialect: Dialect) -> Any:  # noqa: ARG002
        return None if value is None else json.loads(value)


class CompressedText(TypeDecorator[Any]):
    """A long text, compressed."""

    impl = LargeBinary
    cache_ok = True

    def process_bind_param(self, value: Any, dialect: Dialect) -> bytes:  # noqa: ARG002
        return zlib.compress((value or "").encode("utf-8"), _FAST)

    def process_result_value(self, value: bytes | None, dialect: Dialect) -> Any:  # noqa: ARG002
        return "" if value is None else zlib.decompress(value).decode("utf-8")


class CompressedJson(CompressedText):
    """A long JSON value, compressed."""

    cache_ok = True

    def process_bind_param(self, value: Any, dialect: Dialect) -> bytes:
        return super().process_bind_param(compact_json(value), dialect)

    def process_result_value(self, value: bytes | None, dialect: Dialect) -> Any:
        return json.loads(super().process_result_value(value, dialect))


def compact_json(value: Any) -> str:
    """JSON without blanks, in ASCII: no character that a database would refuse.

    Raises HistoryError for what JSON does not have, such as NaN.
    """
    try:
        return json.dumps(value, separators=(",", ":"), allow_nan=False)
    except (TypeError, ValueError) as wrong:
        raise HistoryError(
            f"this is no JSON value: {wrong}", allowed="numbers that are finite, texts, lists, objects"
        ) from wrong


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
    Column("result", CompressedJson, nullable=False),
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
    Column("request", CompressedJson, nullable=False),
    Column("document", CompressedJson, nullable=False),
    Column("answers", CompressedJson, nullable=False),
    Index("searches_by_time", "asked_at"),
    Index("searches_by_state", "state"),
)

CALIBRATIONS = Table(
    "calibrations",
    METADATA,
    Column("calibration_id", Text, primary_key=True),
    Column("stored_at", UtcMicroseconds, nullable=False),
    _count("measurements"),
    Column("document", CompressedJson, nullable=False),
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
