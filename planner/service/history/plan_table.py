"""Stores plans, runs of programs, the traces that plans were made from, and traces that failed."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from sqlalchemy import Connection, Row, Select, delete, func, insert, select, update

from planner.events import Category
from planner.job.masking import map_texts, mask_text
from planner.job.rank_sets import RankSet
from planner.job.schema import Cluster, Gpu
from planner.report.statement import Plan, RankClassStatement, Verdict, from_json, to_json
from planner.service.history.database import Store, batches, put, put_if_absent, read_record, to_row
from planner.service.history.errors import HistoryError, label
from planner.service.history.schema import FAILURES, PLAN_DOCUMENTS, PLANS, RANK_CLASSES, TRACES, compact_json

LARGEST = 2**62
"""Bytes, and ranks: what a column of whole numbers can hold, with room for a sum of two."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanSummary:
    """A plan in a list. Requested and predicted bytes are sums over all ranks of the job, the others those of the rank
    that takes the most, and of its GPU."""

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
    capacity_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class HostSummary:
    """The main memory that a plan's nodes take at least, the fullest node and all (`predicted_bytes`) of them;
    `capacity_bytes` is what one node has, 0 where the job does not say."""

    nodes: int
    fullest_bytes: int
    capacity_bytes: int
    predicted_bytes: int


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

    @property
    def outside_bytes(self) -> int:
        """Outside of the allocator."""
        return self.device_bytes - self.reserved_bytes

    @property
    def least_bytes(self) -> int:
        """What a rank cannot do without: the allocator gives back what it holds besides."""
        return self.allocated_bytes + self.outside_bytes


class Plans(Store):
    def put(self, plan: Plan) -> None:
        """Store the plan; again, and at the same moment as others, is the same as once.

        The later plan of an id stands (its metadata are those of the last who asked), but one without advice does
        not take the place of one with it. Raises HistoryError if its sums are beyond what a database holds.
        """
        row, text = _row(plan, self._now()), document_text(plan)
        with self._database.writing() as connection:
            if not put_if_absent(connection, PLANS, row) and not _replace(connection, row):
                return
            connection.execute(insert(PLAN_DOCUMENTS).values(plan_id=plan.plan_id, document=text))
            if plan.rank_classes:
                classes = [_class_row(plan.plan_id, statement) for statement in plan.rank_classes]
                connection.execute(insert(RANK_CLASSES), classes)

    def text(self, plan_id: str) -> str | None:
        """The plan as JSON text, exactly what `planner.report.statement.to_json` gave; None if there is none."""
        query = (
            select(PLAN_DOCUMENTS.c.document, PLANS.c.used_at)
            .join(PLANS, PLANS.c.plan_id == PLAN_DOCUMENTS.c.plan_id)
            .where(PLANS.c.plan_id == label(plan_id))
        )
        row = self._read_one(query)
        if row is None:
            return None
        self._note_use(PLANS.c.plan_id, plan_id, row.used_at)
        return str(row.document)

    def document(self, plan_id: str) -> dict[str, Any] | None:
        text = self.text(plan_id)
        return None if text is None else json.loads(text)

    def get(self, plan_id: str) -> Plan | None:
        """The plan, equal to the one that was stored; None if there is none."""
        document = self.document(plan_id)
        return None if document is None else from_json(document)

    def newest(
        self,
        limit: int = 100,
        *,
        before: datetime | None = None,
        team: str | None = None,
        queue: str | None = None,
        verdict: Verdict | None = None,
    ) -> tuple[PlanSummary, ...]:
        query = summaries().order_by(PLANS.c.stored_at.desc(), PLANS.c.plan_id).limit(limit)
        if before is not None:
            query = query.where(PLANS.c.stored_at < before)
        wanted = {"team": team, "queue": queue, "verdict": verdict and verdict.value}
        for name, value in wanted.items():
            if value is not None:
                query = query.where(PLANS.c[name] == label(value))
        return tuple(plan_summary(row) for row in self._read(query))

    def counts(self) -> dict[Verdict, int]:
        query = select(PLANS.c.verdict, func.count()).group_by(PLANS.c.verdict)
        return {Verdict(verdict): count for verdict, count in self._read(query)}

    def rank_classes(self, plan_id: str) -> tuple[RankClassSummary, ...]:
        with self._database.reading() as connection:
            return select_rank_classes(connection, [label(plan_id)]).get(plan_id, ())


def summaries() -> Select[Any]:
    """Plans with what :func:`plan_summary` wants of them."""
    of_plan = RANK_CLASSES.c.plan_id == PLANS.c.plan_id
    fullest, capacity = (
        select(func.coalesce(func.max(column), 0)).where(of_plan).scalar_subquery()
        for column in (RANK_CLASSES.c.device_bytes, RANK_CLASSES.c.capacity_bytes)
    )
    return select(PLANS, fullest.label("fullest_bytes"), capacity.label("capacity_bytes"))


def plan_summary(row: Row[Any]) -> PlanSummary:
    return read_record(PlanSummary, row, verdict=Verdict(row.verdict))


def select_rank_classes(connection: Connection, plan_ids: Sequence[str]) -> dict[str, tuple[RankClassSummary, ...]]:
    classes: dict[str, list[RankClassSummary]] = defaultdict(list)
    for some in batches(plan_ids):
        query = select(RANK_CLASSES).where(RANK_CLASSES.c.plan_id.in_(some)).order_by(RANK_CLASSES.c.representative)
        for row in connection.execute(query):
            rank_class = read_record(
                RankClassSummary, row, verdict=Verdict(row.verdict),
                interval_bytes=(row.lowest_bytes, row.highest_bytes),
                at_peak={Category(name): size for name, size in row.at_peak.items()},
            )  # fmt: skip
            classes[row.plan_id].append(rank_class)
    return {plan_id: tuple(of_plan) for plan_id, of_plan in classes.items()}


def document_text(plan: Plan) -> str:
    """As it is stored and answered."""
    return mask_text(compact_json(to_json(plan)))


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


def _row(plan: Plan, now: datetime) -> dict[str, Any]:
    asked = plan.job.get("cluster", {})
    metadata = plan.job.get("metadata") or plan.metadata
    total_bytes = (asked.get("gpu") or {}).get("total_bytes", 0)
    shares = {name: asked[name] for name in ("gpu_fraction", "gpu_memory", "held_by_others_bytes") if name in asked}
    cluster = Cluster(gpu=Gpu(total_bytes=total_bytes), **shares)
    counted = [(len(RankSet.parse(one.ranks)), one) for one in plan.rank_classes]
    sums = {
        "ranks": sum(count for count, _ in counted),
        "requested_bytes": sum(count * one.capacity_bytes for count, one in counted),
        "predicted_bytes": sum(count * one.peak.device_bytes for count, one in counted),
    }
    if plan.host is not None and plan.host.nodes:
        nodes = [(len(RankSet.parse(node.nodes)), node) for node in plan.host.nodes]
        sums |= {
            "nodes": sum(count for count, _ in nodes),
            "host_bytes": plan.host.fullest.peak.bytes,
            "host_capacity_bytes": plan.host.capacity_bytes,
            "host_predicted_bytes": sum(count * node.peak.bytes for count, node in nodes),
        }
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
        "advised": bool(plan.advice),
        **{name: label(metadata.get(name) or "") for name in ("name", "team", "queue")},
        "gpu": label(plan.gpu),
        "gpus": sums["ranks"] * cluster.gpu_share,
        "gpu_fraction": cluster.gpu_fraction,
        "gpu_memory": cluster.gpu_memory,
        "held_by_others_bytes": cluster.held_by_others_bytes,
        **sums,
    }


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


class Traces(Store):
    """What was traced: one trace for each rank class, under the rank that represents it."""

    def put(self, trace_id: str, texts: Mapping[int, str]) -> None:
        """Store the traces of a job by representative: all of them or, if this fails, none."""
        now = self._now()
        with self._database.writing() as connection:
            for rank, text in sorted(texts.items()):
                row = {"trace_id": trace_id, "representative": rank, "used_at": now, "document": text}
                put(connection, TRACES, row)

    def texts(self, trace_id: str) -> dict[int, str]:
        """The traces of a job by representative, unread; empty if there are none."""
        rows = self._read(select(TRACES).where(TRACES.c.trace_id == label(trace_id)).order_by(TRACES.c.representative))
        if rows:
            self._note_use(TRACES.c.trace_id, trace_id, rows[0].used_at)
        return {row.representative: row.document for row in rows}


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    """Why a job cannot be traced, and the limits that its trace had."""

    plan_id: str
    kind: str
    problem: str
    allowed: str = ""
    remedy: str = ""
    place: str = ""
    trace_seconds: float
    trace_memory_bytes: int


class Failures(Store):
    """The last failure of each plan. The id of a plan names the software, so other software starts without any."""

    def put(self, failure: Failure) -> None:
        now = self._now()
        with self._database.writing() as connection:
            put(connection, FAILURES, map_texts(to_row(failure), mask_text) | {"failed_at": now, "used_at": now})

    def get(self, plan_id: str) -> Failure | None:
        row = self._read_one(select(FAILURES).where(FAILURES.c.plan_id == label(plan_id)))
        if row is None:
            return None
        self._note_use(FAILURES.c.plan_id, plan_id, row.used_at)
        return read_record(Failure, row)
