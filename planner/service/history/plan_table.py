"""Stores plans, runs of programs, the traces that plans were made from, and traces that failed."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from sqlalchemy import Connection, Row, Select, delete, func, insert, select, update

from planner.allocator.host.statement import HostStatement
from planner.events import Category
from planner.job.rank_sets import RankSet
from planner.report.statement import Plan, ProgramStatement, RankClassStatement, Verdict, from_json, to_json
from planner.service.history.database import Database, put, put_if_absent
from planner.service.history.errors import HistoryError, HistoryUnavailableError, label
from planner.service.history.schema import FAILURES, PLAN_DOCUMENTS, PLANS, RANK_CLASSES, TRACES, compact_json
from planner.tracing import rank_trace
from planner.tracing.rank_trace import Trace

LARGEST = 2**62
"""Bytes, and ranks: what a column of whole numbers can hold, with room for a sum of two."""
USE_IS_NOTED_EVERY = timedelta(hours=1)
"""A plan that is read ten times a second is not written ten times a second."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanSummary:
    """A plan in a list. Requested and predicted bytes are sums over all ranks of the job."""

    plan_id: str
    trace_id: str
    stored_at: datetime
    verdict: Verdict
    calibrated: bool
    name: str
    team: str
    queue: str
    gpu: str
    ranks: int
    requested_bytes: int
    predicted_bytes: int
    fullest_bytes: int
    """Device bytes of the rank that takes the most."""
    capacity_bytes: int
    """What a rank has."""
    host: HostSummary | None = None
    """None of the run of a program, and of plans that were made before hosts were planned."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HostSummary:
    """The main memory of a plan's nodes. Bytes are those of the fullest node, `predicted_bytes` those of all nodes;
    `capacity_bytes` is what one node has, 0 where the job does not say."""

    nodes: int
    fullest_bytes: int
    interval_bytes: tuple[int, int]
    capacity_bytes: int
    predicted_bytes: int

    @property
    def requested_bytes(self) -> int:
        """What all nodes have."""
        return self.nodes * self.capacity_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class RankClassSummary:
    """One rank class of a stored plan; bytes are those of one rank."""

    representative: int
    ranks: str
    count: int
    verdict: Verdict
    capacity_bytes: int
    allocated_bytes: int
    reserved_bytes: int
    device_bytes: int
    interval_bytes: tuple[int, int]
    at_peak: Mapping[Category, int]


class Plans:
    """What was planned."""

    def __init__(self, database: Database, now: Callable[[], datetime]) -> None:
        self._database, self._now = database, now

    def put(self, plan: Plan | ProgramStatement) -> None:
        """Store the plan; again, and at the same moment as others, is the same as once.

        The later plan of an id stands (its metadata are those of the last who asked), but one without advice does
        not take the place of one with it. Raises HistoryError if its sums are beyond what a database holds.
        """
        row, classes, text = _row(plan, self._now()), _classes(plan), document_text(plan)
        with self._database.writing() as connection:
            if not put_if_absent(connection, PLANS, row) and not _replace(connection, row):
                return
            connection.execute(insert(PLAN_DOCUMENTS).values(plan_id=plan.plan_id, document=text))
            if classes:
                connection.execute(insert(RANK_CLASSES), classes)

    def text(self, plan_id: str) -> str | None:
        """The plan as JSON text, exactly what `planner.report.statement.to_json` gave; None if there is none."""
        query = (
            select(PLAN_DOCUMENTS.c.document, PLANS.c.used_at)
            .join(PLANS, PLANS.c.plan_id == PLAN_DOCUMENTS.c.plan_id)
            .where(PLANS.c.plan_id == label(plan_id))
        )
        with self._database.reading() as connection:
            found = connection.execute(query).one_or_none()
        if found is None:
            return None
        self._note_use(plan_id, found.used_at)
        return str(found.document)

    def document(self, plan_id: str) -> dict[str, Any] | None:
        """The plan as the JSON object of the contract; None if there is none."""
        text = self.text(plan_id)
        return None if text is None else json.loads(text)

    def get(self, plan_id: str) -> Plan | None:
        """The plan, equal to the one that was stored; None if there is none.

        Raises PlannerError for the run of a program, which is of another schema.
        """
        document = self.document(plan_id)
        return None if document is None else from_json(document)

    def newest(
        self,
        limit: int = 100,
        *,
        before: datetime | None = None,
        trace_id: str | None = None,
        team: str | None = None,
        queue: str | None = None,
        verdict: Verdict | None = None,
    ) -> tuple[PlanSummary, ...]:
        """At most `limit` plans, newest first; `before` the moment of the last one goes on from there."""
        query = summaries().order_by(PLANS.c.stored_at.desc(), PLANS.c.plan_id).limit(limit)
        if before is not None:
            query = query.where(PLANS.c.stored_at < before)
        wanted = {"trace_id": trace_id, "team": team, "queue": queue, "verdict": verdict and verdict.value}
        for name, value in wanted.items():
            if value is not None:
                query = query.where(PLANS.c[name] == label(value))
        with self._database.reading() as connection:
            return tuple(plan_summary(row) for row in connection.execute(query))

    def counts(self) -> dict[Verdict, int]:
        """How many plans are remembered, by verdict."""
        query = select(PLANS.c.verdict, func.count()).group_by(PLANS.c.verdict)
        with self._database.reading() as connection:
            return {Verdict(verdict): count for verdict, count in connection.execute(query)}

    def rank_classes(self, plan_id: str) -> tuple[RankClassSummary, ...]:
        """The rank classes of a plan, by representative; none if the plan is not there."""
        with self._database.reading() as connection:
            return rank_classes_of(connection, [label(plan_id)]).get(plan_id, ())

    def _note_use(self, plan_id: str, used_at: datetime) -> None:
        now = self._now()
        if now - used_at < USE_IS_NOTED_EVERY:
            return
        # Who reads is not refused because the disk is full or others write: the next reader notes it.
        with suppress(HistoryUnavailableError), self._database.writing() as connection:
            connection.execute(update(PLANS).where(PLANS.c.plan_id == plan_id).values(used_at=now))


def summaries() -> Select[Any]:
    """Plans with what :func:`plan_summary` wants of them."""
    of_plan = RANK_CLASSES.c.plan_id == PLANS.c.plan_id
    fullest, capacity = (
        select(func.coalesce(func.max(column), 0)).where(of_plan).scalar_subquery()
        for column in (RANK_CLASSES.c.device_bytes, RANK_CLASSES.c.capacity_bytes)
    )
    return select(PLANS, fullest.label("fullest_bytes"), capacity.label("capacity_bytes"))


def plan_summary(row: Row[Any]) -> PlanSummary:
    """A row of :func:`summaries` as a value."""
    return PlanSummary(
        plan_id=row.plan_id, trace_id=row.trace_id, stored_at=row.stored_at, verdict=Verdict(row.verdict),
        calibrated=row.calibrated, name=row.name, team=row.team, queue=row.queue, gpu=row.gpu, ranks=row.ranks,
        requested_bytes=row.requested_bytes, predicted_bytes=row.predicted_bytes,
        fullest_bytes=row.fullest_bytes, capacity_bytes=row.capacity_bytes, host=host_summary(row),
    )  # fmt: skip


def host_summary(row: Row[Any]) -> HostSummary | None:
    """What a row of the table of plans says of nodes; None where it says nothing."""
    if row.nodes is None:
        return None
    return HostSummary(
        nodes=row.nodes, fullest_bytes=row.host_bytes, interval_bytes=(row.host_lowest_bytes, row.host_highest_bytes),
        capacity_bytes=row.host_capacity_bytes, predicted_bytes=row.host_predicted_bytes,
    )  # fmt: skip


def rank_classes_of(connection: Connection, plan_ids: Sequence[str]) -> dict[str, tuple[RankClassSummary, ...]]:
    """The rank classes of some plans, by plan."""
    query: Select[Any] = (
        select(RANK_CLASSES).where(RANK_CLASSES.c.plan_id.in_(plan_ids)).order_by(RANK_CLASSES.c.representative)
    )
    found: dict[str, list[RankClassSummary]] = {}
    for row in connection.execute(query):
        found.setdefault(row.plan_id, []).append(_class_summary(row))
    return {plan_id: tuple(classes) for plan_id, classes in found.items()}


def gpu_type(job: Mapping[str, Any]) -> str:
    """What the GPUs of a bundle are called: the catalog's name, else the architecture, else `unnamed`."""
    gpu = job.get("cluster", {}).get("gpu", {}) or {}
    return label(gpu.get("name") or gpu.get("arch") or "unnamed")


def document_text(plan: Plan | ProgramStatement) -> str:
    """As it is stored and answered: `planner.plan/1`, or `planner.run/1`."""
    return compact_json(to_json(plan))


def _replace(connection: Connection, row: Mapping[str, Any]) -> bool:
    """Make place for the documents of a plan that is there already; whether the new ones are wanted."""
    here = PLANS.c.plan_id == row["plan_id"]
    advised = connection.execute(select(PLANS.c.advised).where(here).with_for_update()).scalar_one()
    if advised and not row["advised"]:
        connection.execute(update(PLANS).where(here).values(used_at=row["used_at"]))
        return False
    changed = {name: value for name, value in row.items() if name not in ("plan_id", "stored_at")}
    connection.execute(update(PLANS).where(here).values(changed))
    connection.execute(delete(PLAN_DOCUMENTS).where(PLAN_DOCUMENTS.c.plan_id == row["plan_id"]))
    connection.execute(delete(RANK_CLASSES).where(RANK_CLASSES.c.plan_id == row["plan_id"]))
    return True


def _row(plan: Plan | ProgramStatement, now: datetime) -> dict[str, Any]:
    if isinstance(plan, Plan):
        metadata, gpu, advised = plan.job.get("metadata", {}) or {}, gpu_type(plan.job), bool(plan.advice)
    else:
        metadata, gpu, advised = plan.metadata, label(plan.gpu), False
    counted = [(len(RankSet.parse(each.ranks)), each) for each in plan.rank_classes]
    sums = {
        "ranks": sum(count for count, _ in counted),
        "requested_bytes": sum(count * each.capacity_bytes for count, each in counted),
        "predicted_bytes": sum(count * each.peak.device_bytes for count, each in counted),
    }
    sums |= _host_columns(plan.host)
    for name, value in sums.items():
        if abs(value) > LARGEST:
            raise HistoryError(f"{name} of the plan is {value}", allowed=f"at most {LARGEST}", place=plan.plan_id)
    return {
        "plan_id": plan.plan_id,
        "trace_id": plan.trace_id,
        "stored_at": now,
        "used_at": now,
        "verdict": plan.verdict.value,
        "calibrated": plan.calibrated,
        "advised": advised,
        **{name: label(metadata.get(name) or "") for name in ("name", "team", "queue")},
        "gpu": gpu,
        **sums,
    }


def _host_columns(host: HostStatement | None) -> dict[str, int]:
    if host is None or not host.nodes:
        return {}
    nodes = [(len(RankSet.parse(each.nodes)), each) for each in host.nodes]
    fullest = host.fullest.peak
    return {
        "nodes": sum(count for count, _ in nodes),
        "host_bytes": fullest.bytes,
        "host_lowest_bytes": fullest.interval_bytes[0],
        "host_highest_bytes": fullest.interval_bytes[1],
        "host_capacity_bytes": host.capacity_bytes,
        "host_predicted_bytes": sum(count * each.peak.bytes for count, each in nodes),
    }


def _classes(plan: Plan | ProgramStatement) -> list[dict[str, Any]]:
    return [_class_row(plan.plan_id, each) for each in plan.rank_classes]


def _class_row(plan_id: str, statement: RankClassStatement) -> dict[str, Any]:
    peak = statement.peak
    return {
        "plan_id": plan_id,
        "representative": statement.representative,
        "ranks": statement.ranks,
        "count": len(RankSet.parse(statement.ranks)),
        "verdict": statement.verdict.value,
        "capacity_bytes": statement.capacity_bytes,
        "allocated_bytes": peak.allocated_bytes,
        "reserved_bytes": peak.reserved_bytes,
        "device_bytes": peak.device_bytes,
        "lowest_bytes": peak.interval_bytes[0],
        "highest_bytes": peak.interval_bytes[1],
        "at_peak": {category.value: statement.at_peak.get(category, 0) for category in Category},
    }


def _class_summary(row: Row[Any]) -> RankClassSummary:
    return RankClassSummary(
        representative=row.representative,
        ranks=row.ranks,
        count=row._mapping["count"],  # a row, being a tuple, has a method of that name
        verdict=Verdict(row.verdict),
        capacity_bytes=row.capacity_bytes,
        allocated_bytes=row.allocated_bytes,
        reserved_bytes=row.reserved_bytes,
        device_bytes=row.device_bytes,
        interval_bytes=(row.lowest_bytes, row.highest_bytes),
        at_peak={Category(name): count for name, count in row.at_peak.items()},
    )


class Traces:
    """What was traced: one trace for each rank class, under the rank that represents it."""

    def __init__(self, database: Database, now: Callable[[], datetime]) -> None:
        self._database, self._now = database, now

    def put(self, trace_id: str, traces: Mapping[int, Trace]) -> None:
        """Store the traces of a job by representative: all of them or, if this fails, none."""
        self.put_texts(trace_id, {rank: rank_trace.dumps(trace) for rank, trace in traces.items()})

    def put_texts(self, trace_id: str, texts: Mapping[int, str]) -> None:
        """As :meth:`put`, for traces that are text already."""
        now = self._now()
        with self._database.writing() as connection:
            for rank, text in sorted(texts.items()):
                row = {"trace_id": trace_id, "representative": rank, "used_at": now, "document": text}
                put(connection, TRACES, row)

    def get(self, trace_id: str) -> dict[int, Trace]:
        """The traces of a job by representative; empty if there are none."""
        return {rank: rank_trace.loads(text) for rank, text in self.texts(trace_id).items()}

    def texts(self, trace_id: str) -> dict[int, str]:
        """As :meth:`get`, as the text that was stored, unread."""
        query = select(TRACES).where(TRACES.c.trace_id == label(trace_id)).order_by(TRACES.c.representative)
        with self._database.reading() as connection:
            rows = connection.execute(query).all()
        if rows and self._now() - rows[0].used_at >= USE_IS_NOTED_EVERY:
            self._note_use(trace_id)
        return {row.representative: row.document for row in rows}

    def _note_use(self, trace_id: str) -> None:
        # As for plans: who reads is not refused because nothing can be written.
        with suppress(HistoryUnavailableError), self._database.writing() as connection:
            connection.execute(update(TRACES).where(TRACES.c.trace_id == trace_id).values(used_at=self._now()))


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    """Why a job cannot be traced, and the limits that its trace had."""

    trace_id: str
    kind: str
    """The name of the error's class."""
    problem: str
    allowed: str = ""
    remedy: str = ""
    place: str = ""
    trace_seconds: float
    trace_memory_bytes: int


class Failures:
    """The last failure of each trace. The id of a trace names the software, so other software starts without any."""

    def __init__(self, database: Database, now: Callable[[], datetime]) -> None:
        self._database, self._now = database, now

    def put(self, failure: Failure) -> None:
        """Store it, in the place of an earlier one of the same trace."""
        now = self._now()
        with self._database.writing() as connection:
            put(connection, FAILURES, {**dataclasses.asdict(failure), "failed_at": now, "used_at": now})

    def get(self, trace_id: str) -> Failure | None:
        """The failure of that trace; its use is noted, so that retention keeps it."""
        query = select(FAILURES).where(FAILURES.c.trace_id == label(trace_id))
        with self._database.reading() as connection:
            row = connection.execute(query).one_or_none()
        if row is None:
            return None
        if self._now() - row.used_at >= USE_IS_NOTED_EVERY:
            self._note_use(trace_id)
        return Failure(**{each.name: getattr(row, each.name) for each in dataclasses.fields(Failure)})

    def _note_use(self, trace_id: str) -> None:
        # As for plans: who reads is not refused because nothing can be written.
        with suppress(HistoryUnavailableError), self._database.writing() as connection:
            connection.execute(update(FAILURES).where(FAILURES.c.trace_id == trace_id).values(used_at=self._now()))
