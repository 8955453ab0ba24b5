"""Reads the plans in use: a bounded set, however many are stored."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from sqlalchemy import and_, func, or_, select

from planner.history.database import Database
from planner.history.job_table import jobs_of
from planner.history.job_values import BoundJob
from planner.history.openness import is_open
from planner.history.plan_table import PlanSummary, RankClassSummary, plan_summary, rank_classes_of, summaries
from planner.history.schema import JOBS, PLANS


@dataclass(frozen=True, slots=True, kw_only=True)
class ActivePlan:
    """A plan, its rank classes, and the jobs bound to it that have not ended."""

    summary: PlanSummary
    rank_classes: tuple[RankClassSummary, ...]
    jobs: tuple[BoundJob, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ActivePlans:
    """The chosen plans, and how many were left out."""

    plans: tuple[ActivePlan, ...]
    left_out: int


def active_plans(database: Database, limit: int, since: datetime, now: datetime) -> ActivePlans:
    """At most `limit` plans: those of jobs that have not ended, then those asked for `since`; each newest first."""
    has_job = PLANS.c.plan_id.in_(select(JOBS.c.plan_id).where(is_open(now)))
    recent = and_(~has_job, PLANS.c.used_at >= since)
    with database.reading() as connection:
        count = connection.execute(select(func.count()).select_from(PLANS).where(or_(has_job, recent))).scalar_one()
        ids: list[str] = []
        for kind in (has_job, recent):  # one after the other: each is found along an index, without sorting all
            query = select(PLANS.c.plan_id).where(kind).order_by(PLANS.c.stored_at.desc(), PLANS.c.plan_id)
            ids += connection.execute(query.limit(limit - len(ids))).scalars()
        rows = connection.execute(summaries().where(PLANS.c.plan_id.in_(ids))).all()
        chosen = sorted((plan_summary(row) for row in rows), key=lambda plan: ids.index(plan.plan_id))
        classes, jobs = rank_classes_of(connection, ids), jobs_of(connection, ids, now)
    return ActivePlans(
        plans=tuple(
            ActivePlan(summary=plan, rank_classes=classes.get(plan.plan_id, ()), jobs=jobs.get(plan.plan_id, ()))
            for plan in chosen
        ),
        left_out=count - len(chosen),
    )
