"""Lists jobs with what was predicted and measured of each: of the rank that took the most of its device."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from sqlalchemy import ColumnElement, Connection, and_, func, select, tuple_

from planner.history.database import Database
from planner.history.job_values import Outcome
from planner.history.names import label
from planner.history.schema import JOBS, MEASURED_RANKS, PLANS
from planner.report.statement import Verdict


@dataclass(frozen=True, slots=True, kw_only=True)
class JobSummary:
    """A job in a list. Bytes are those of the rank that told the most device bytes; None where none told any."""

    system: str
    job_id: str
    plan_id: str
    name: str
    team: str
    queue: str
    gpu: str
    ranks: int
    verdict: Verdict
    started_at: datetime | None
    ended_at: datetime | None
    updated_at: datetime
    outcome: Outcome
    cause: str
    """Why it ran out of memory; empty where it did not, or nobody told."""
    measured_ranks: int
    measured_bytes: int | None
    predicted_bytes: int | None


def list_jobs(database: Database, limit: int, plan_id: str | None = None) -> tuple[JobSummary, ...]:
    """At most `limit` jobs, those told of last first; of one plan, or of all."""
    query = (
        select(JOBS, PLANS.c.name, PLANS.c.gpu, PLANS.c.ranks, PLANS.c.verdict)
        .join(PLANS, PLANS.c.plan_id == JOBS.c.plan_id)
        .order_by(JOBS.c.updated_at.desc(), JOBS.c.system, JOBS.c.job_id)
        .limit(limit)
    )
    if plan_id is not None:
        query = query.where(JOBS.c.plan_id == label(plan_id))
    with database.reading() as connection:
        rows = connection.execute(query).all()
        fullest = _fullest_ranks(connection, [(row.system, row.job_id) for row in rows])
    found = []
    for row in rows:
        count, measured, predicted = fullest.get((row.system, row.job_id), (0, None, None))
        summary = JobSummary(
            system=row.system, job_id=row.job_id, plan_id=row.plan_id, name=row.name, team=row.team, queue=row.queue,
            gpu=row.gpu, ranks=row.ranks, verdict=Verdict(row.verdict), started_at=row.started_at,
            ended_at=row.ended_at, updated_at=row.updated_at, outcome=Outcome(row.outcome), measured_ranks=count,
            measured_bytes=measured, predicted_bytes=predicted, cause=row.cause or "",
        )  # fmt: skip
        found.append(summary)
    return tuple(found)


def _fullest_ranks(
    connection: Connection, jobs: Sequence[tuple[str, str]]
) -> dict[tuple[str, str], tuple[int, int, int]]:
    """How many ranks told their device bytes, the most of them, and what was predicted for that rank."""
    found: dict[tuple[str, str], tuple[int, int, int]] = {}
    for start in range(0, len(jobs), 500):  # as many as any database takes as parameters of one query
        some = tuple_(MEASURED_RANKS.c.system, MEASURED_RANKS.c.job_id).in_(jobs[start : start + 500])
        told = MEASURED_RANKS.c.device_bytes.is_not(None)
        peaks = (
            select(
                MEASURED_RANKS.c.system,
                MEASURED_RANKS.c.job_id,
                func.max(MEASURED_RANKS.c.device_bytes).label("most"),
                func.count().label("told"),
            )
            .where(some, told)
            .group_by(MEASURED_RANKS.c.system, MEASURED_RANKS.c.job_id)
            .subquery()
        )
        here: ColumnElement[bool] = and_(
            peaks.c.system == MEASURED_RANKS.c.system,
            peaks.c.job_id == MEASURED_RANKS.c.job_id,
            peaks.c.most == MEASURED_RANKS.c.device_bytes,
        )
        query = select(
            peaks, MEASURED_RANKS.c.predicted_bytes
        ).join(MEASURED_RANKS, here).order_by(MEASURED_RANKS.c.rank)  # fmt: skip
        for row in connection.execute(query):
            found.setdefault((row.system, row.job_id), (row.told, row.most, row.predicted_bytes))
    return found
