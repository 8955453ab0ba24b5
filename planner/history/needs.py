"""Reads what stored jobs need of a GPU, from their plans, for questions such as whether another GPU would do."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from sqlalchemy import ColumnElement, func, or_, select

from planner.history.database import Database
from planner.history.openness import ended_since, is_open
from planner.history.plan_table import RankClassSummary, rank_classes_of
from planner.history.schema import JOBS, MEASURED_RANKS, PLANS
from planner.report.statement import Verdict

_AT_ONCE = 500
"""As many as any database takes as parameters of one query."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JobNeed:
    """One job, with the figures of its fullest rank in bytes.

    `least_bytes` is what a rank cannot do without: its allocated peak and what lies outside the allocator. The
    allocator may hold more (`device_bytes`) and give it back where there is less.
    """

    system: str
    job_id: str
    name: str
    team: str
    queue: str
    gpu: str
    """For which it was planned."""
    ranks: int
    verdict: Verdict
    """There."""
    waits: bool
    """Bound to its plan, and neither started nor ended."""
    capacity_bytes: int
    least_bytes: int
    device_bytes: int
    highest_bytes: int
    """Upper end of the interval, or what a rank told if that is more."""


def read_needs(
    database: Database, since: datetime | None, limit: int, now: datetime
) -> tuple[tuple[JobNeed, ...], int]:
    """Jobs that have not ended, and those that ended `since`: at most `limit`, those told of first; how many are left.

    Without `since` those that ended are left out.
    """
    asked: ColumnElement[bool] = is_open(now)
    if since is not None:
        asked = or_(asked, ended_since(since, now))
    chosen = (
        select(JOBS, PLANS.c.name, PLANS.c.gpu, PLANS.c.ranks, PLANS.c.verdict)
        .join(PLANS, PLANS.c.plan_id == JOBS.c.plan_id)
        .where(asked)
        .order_by(JOBS.c.updated_at, JOBS.c.system, JOBS.c.job_id)
        .limit(limit)
    )
    peaks = (
        select(JOBS.c.system, JOBS.c.job_id, func.max(MEASURED_RANKS.c.device_bytes).label("device_bytes"))
        .join(MEASURED_RANKS, (MEASURED_RANKS.c.system == JOBS.c.system) & (MEASURED_RANKS.c.job_id == JOBS.c.job_id))
        .where(asked, MEASURED_RANKS.c.device_bytes.is_not(None))
        .group_by(JOBS.c.system, JOBS.c.job_id)
    )
    with database.reading() as connection:
        count = connection.execute(select(func.count()).select_from(JOBS).where(asked)).scalar_one()
        rows = connection.execute(chosen).all()
        measured = {(row.system, row.job_id): row.device_bytes for row in connection.execute(peaks)}
        plan_ids = list(dict.fromkeys(row.plan_id for row in rows))
        classes: dict[str, tuple[RankClassSummary, ...]] = {}
        for start in range(0, len(plan_ids), _AT_ONCE):
            classes |= rank_classes_of(connection, plan_ids[start : start + _AT_ONCE])
    found = []
    for row in rows:
        of_plan = classes.get(row.plan_id)
        if not of_plan:
            continue
        least = max(each.allocated_bytes + each.device_bytes - each.reserved_bytes for each in of_plan)
        highest = max(each.interval_bytes[1] for each in of_plan)
        need = JobNeed(
            system=row.system, job_id=row.job_id, name=row.name, team=row.team, queue=row.queue, gpu=row.gpu,
            ranks=row.ranks, verdict=Verdict(row.verdict), waits=row.started_at is None and row.ended_at is None,
            capacity_bytes=min(each.capacity_bytes for each in of_plan), least_bytes=least,
            device_bytes=max(each.device_bytes for each in of_plan),
            highest_bytes=max(highest, measured.get((row.system, row.job_id), 0)),
        )  # fmt: skip
        found.append(need)
    return tuple(found), max(count - len(rows), 0)
