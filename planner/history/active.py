"""The plans that matter now: a bounded set, however many are stored."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from sqlalchemy import exists, func, or_, select

from planner.history.database import Database
from planner.history.job_values import BoundJob
from planner.history.jobs import jobs_of
from planner.history.plans import PlanSummary, RankClassSummary, plan_summary, rank_classes_of
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


def active_plans(database: Database, limit: int, since: datetime) -> ActivePlans:
    """At most `limit` plans: those of jobs that have not ended, then those asked for `since`; each newest first."""
    has_job = exists().where(JOBS.c.plan_id == PLANS.c.plan_id, JOBS.c.ended_at.is_(None))
    active = or_(has_job, PLANS.c.used_at >= since)
    order = (has_job.desc(), PLANS.c.stored_at.desc(), PLANS.c.plan_id)
    with database.reading() as connection:
        count = connection.execute(select(func.count()).select_from(PLANS).where(active)).scalar_one()
        chosen = [
            plan_summary(row) for row in connection.execute(select(PLANS).where(active).order_by(*order).limit(limit))
        ]
        ids = [plan.plan_id for plan in chosen]
        classes, jobs = rank_classes_of(connection, ids), jobs_of(connection, ids)
    return ActivePlans(
        plans=tuple(
            ActivePlan(summary=plan, rank_classes=classes.get(plan.plan_id, ()), jobs=jobs.get(plan.plan_id, ()))
            for plan in chosen
        ),
        left_out=count - len(chosen),
    )
