"""The current tables and their column types, as a new database gets them; migrations/ brings an older one to them."""

from __future__ import annotations

import json
import secrets
import zlib
from datetime import UTC, datetime, timedelta
from typing import Any

from sqlalchemy import (
    BigInteger,
    Boolean,
    Column,
    Connection,
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
    event,
)
from sqlalchemy.types import TypeDecorator

from planner.service.history.errors import HistoryError

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_FAST = 1
"""zlib's level: a plan of a thousand holders shrinks tenfold within 2 ms; more effort gains little."""


def microseconds(moment: datetime) -> int:
    return (moment - _EPOCH) // timedelta(microseconds=1)


class UtcMicroseconds(TypeDecorator[datetime]):
    """A moment with its time zone, as microseconds since 1970: the same order in every database."""

    impl = BigInteger
    cache_ok = True

    def process_bind_param(self, value: datetime | None, dialect: Dialect) -> int | None:  # noqa: ARG002
        return None if value is None else microseconds(value)

    def process_result_value(self, value: int | None, dialect: Dialect) -> datetime | None:  # noqa: ARG002
        return None if value is None else _EPOCH + timedelta(microseconds=value)


class JsonText(TypeDecorator[Any]):
    impl = Text
    cache_ok = True

    def process_bind_param(self, value: Any, dialect: Dialect) -> str:  # noqa: ARG002
        return compact_json(value)

    def process_result_value(self, value: str | None, dialect: Dialect) -> Any:  # noqa: ARG002
        return None if value is None else json.loads(value)


class CompressedText(TypeDecorator[Any]):
    impl = LargeBinary
    cache_ok = True

    def process_bind_param(self, value: Any, dialect: Dialect) -> bytes:  # noqa: ARG002
        return zlib.compress((value or "").encode("utf-8"), _FAST)

    def process_result_value(self, value: bytes | None, dialect: Dialect) -> Any:  # noqa: ARG002
        return "" if value is None else zlib.decompress(value).decode("utf-8")


class CompressedJson(CompressedText):
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
            f"this is not a JSON value: {wrong}", allowed="numbers that are finite, texts, lists, objects"
        ) from wrong


METADATA = MetaData()
VERSION_TABLE = "planner_schema"


def _key(name: str, *references: ForeignKey, kind: Any = Text) -> Column[Any]:
    return Column(name, kind, *references, primary_key=True, autoincrement=False)


def _columns(kind: Any, *names: str, nullable: bool = False) -> list[Column[Any]]:
    return [Column(name, kind, nullable=nullable) for name in names]


def _of_plan() -> Column[Any]:
    return _key("plan_id", ForeignKey("plans.plan_id", ondelete="CASCADE"))


PLANS = Table(
    "plans",
    METADATA,
    _key("plan_id"),
    *_columns(Text, "trace_id", "verdict", "name", "team", "queue", "gpu"),
    *_columns(UtcMicroseconds, "stored_at", "used_at"),
    *_columns(Boolean, "calibrated", "advised"),
    *_columns(BigInteger, "ranks", "requested_bytes", "predicted_bytes"),
    *_columns(BigInteger, "nodes", "host_bytes", nullable=True),
    *_columns(BigInteger, "host_capacity_bytes", "host_predicted_bytes", nullable=True),
    *_columns(Double, "gpus", "gpu_fraction"),
    *_columns(BigInteger, "gpu_memory", "held_by_others_bytes"),
    Index("plans_by_trace", "trace_id"),
    Index("plans_by_time", "stored_at"),
    Index("plans_by_use", "used_at"),
)

PLAN_DOCUMENTS = Table("plan_documents", METADATA, _of_plan(), *_columns(CompressedText, "document"))
"""Apart from `plans`, so that a walk over all plans does not turn the pages of their documents."""

RANK_CLASSES = Table(
    "rank_classes",
    METADATA,
    _of_plan(),
    _key("representative", kind=Integer),
    *_columns(Text, "ranks", "verdict"),
    *_columns(BigInteger, "count", "capacity_bytes", "allocated_bytes", "reserved_bytes", "device_bytes"),
    *_columns(BigInteger, "lowest_bytes", "highest_bytes"),
    *_columns(JsonText, "at_peak"),
)

TRACES = Table(
    "traces",
    METADATA,
    _key("trace_id"),
    _key("representative", kind=Integer),
    *_columns(UtcMicroseconds, "used_at"),
    *_columns(CompressedText, "document"),
    Index("traces_by_use", "used_at"),
)

JOBS = Table(
    "jobs",
    METADATA,
    _key("system"),
    _key("job_id"),
    Column("plan_id", Text, ForeignKey("plans.plan_id"), nullable=False),
    *_columns(Text, "team", "queue", "outcome"),
    *_columns(Text, "cause", "failure", nullable=True),
    *_columns(JsonText, "hosts", "gpu_uuids"),
    *_columns(UtcMicroseconds, "updated_at"),
    *_columns(UtcMicroseconds, "started_at", "ended_at", "lapses_at", nullable=True),
    Index("jobs_by_plan", "plan_id"),
    Index("jobs_by_end", "ended_at"),
)

MEASURED_RANKS = Table(
    "measured_ranks",
    METADATA,
    _key("system"),
    _key("job_id"),
    _key("rank", kind=Integer),
    *_columns(Text, "host", "gpu_uuid"),
    *_columns(BigInteger, "allocated_bytes", "reserved_bytes", "device_bytes", nullable=True),
    *_columns(BigInteger, "predicted_bytes"),
    *_columns(CompressedText, "report"),
    ForeignKeyConstraint(["system", "job_id"], ["jobs.system", "jobs.job_id"], ondelete="CASCADE"),
)

FAILURES = Table(
    "failures",
    METADATA,
    _key("plan_id"),
    *_columns(Text, "kind", "problem", "allowed", "remedy", "place"),
    *_columns(Double, "trace_seconds"),
    *_columns(BigInteger, "trace_memory_bytes"),
    *_columns(UtcMicroseconds, "failed_at", "used_at"),
    Index("failures_by_use", "used_at"),
)
"""Jobs that cannot be traced, and the limits under which that was found out."""

CHECKS = Table(
    "checks",
    METADATA,
    _key("check_id"),
    *_columns(Text, "plan_id", "verdict", "system", "name", "team", "queue"),
    *_columns(UtcMicroseconds, "asked_at"),
    Index("checks_by_time", "asked_at"),
    Index("checks_by_verdict", "verdict"),
)

VALIDATIONS = Table(
    "validations",
    METADATA,
    _key("validation_id"),
    *_columns(Text, "plan_id", "state", "mode", "gpu", "torch", "problem"),
    *_columns(UtcMicroseconds, "asked_at"),
    *_columns(UtcMicroseconds, "finished_at", nullable=True),
    *_columns(Boolean, "out_of_memory", nullable=True),
    *_columns(Double, "error_percent", nullable=True),
    *_columns(CompressedJson, "result"),
    Index("validations_by_time", "asked_at"),
    Index("validations_by_plan", "plan_id"),
    Index("validations_by_state", "state"),
)

SEARCHES = Table(
    "searches",
    METADATA,
    _key("search_id"),
    *_columns(Text, "state"),
    *_columns(UtcMicroseconds, "asked_at"),
    *_columns(UtcMicroseconds, "finished_at", nullable=True),
    *_columns(CompressedJson, "request", "document", "answers"),
    Index("searches_by_time", "asked_at"),
    Index("searches_by_state", "state"),
)

CALIBRATIONS = Table(
    "calibrations",
    METADATA,
    _key("calibration_id"),
    *_columns(UtcMicroseconds, "stored_at"),
    *_columns(BigInteger, "measurements"),
    *_columns(CompressedJson, "document"),
    Index("calibrations_by_time", "stored_at"),
)

KEYS = Table("keys", METADATA, _key("name"), *_columns(LargeBinary, "value"))
"""Drawn once for each database, and never shown: ids of what has secrets are keyed with them."""
IDS = "ids"


@event.listens_for(KEYS, "after_create")
def _draw_key(table: Table, connection: Connection, **_: Any) -> None:
    connection.execute(table.insert().values(name=IDS, value=secrets.token_bytes(32)))


TOTALS = Table("totals", METADATA, _key("name"), _key("labels"), *_columns(Double, "value"))
"""What only ever grows, of all processes together; it does not age."""

WRITERS = Table(
    "writers",
    METADATA,
    _key("writer"),
    *_columns(BigInteger, "batch"),
    *_columns(UtcMicroseconds, "updated_at"),
    Index("writers_by_time", "updated_at"),
)
"""The last batch of each process that adds to the totals: one that was added is not added again."""

LEVELS = Table(
    "levels",
    METADATA,
    _key("writer", ForeignKey("writers.writer", ondelete="CASCADE")),
    _key("name"),
    _key("labels"),
    *_columns(Double, "value"),
)
"""What rises and falls, as each process last told it: true while the process lives."""
