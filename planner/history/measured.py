"""Lists the keys of jobs and validations with measurements, so that a reader reads only new ones."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from sqlalchemy import exists, select

from planner.history.database import Database
from planner.history.schema import JOBS, MEASURED_RANKS, VALIDATIONS

NO_GPU = "cpu"
"""What stands in the place of the GPU of a validation that ran on a CPU."""


@dataclass(frozen=True, slots=True)
class MeasuredJob:
    """A job of which some rank has reported what it took; when that, or anything else of it, was told last."""

    system: str
    job_id: str
    updated_at: datetime


def measured_jobs(database: Database, limit: int) -> tuple[MeasuredJob, ...]:
    """At most `limit` jobs, those told of last first."""
    here = (MEASURED_RANKS.c.system == JOBS.c.system) & (MEASURED_RANKS.c.job_id == JOBS.c.job_id)
    reported = exists().where(here, MEASURED_RANKS.c.reserved_bytes.is_not(None))
    query = (
        select(JOBS.c.system, JOBS.c.job_id, JOBS.c.updated_at)
        .where(reported)
        .order_by(JOBS.c.updated_at.desc(), JOBS.c.system, JOBS.c.job_id)
        .limit(limit)
    )
    with database.reading() as connection:
        return tuple(MeasuredJob(*row) for row in connection.execute(query))


def measured_validations(database: Database, limit: int) -> tuple[str, ...]:
    """The ids of at most `limit` validations that measured on a GPU to the end, newest first."""
    query = (
        select(VALIDATIONS.c.validation_id)
        .where(VALIDATIONS.c.state == "done", VALIDATIONS.c.gpu.not_in(("", NO_GPU)))
        .order_by(VALIDATIONS.c.asked_at.desc(), VALIDATIONS.c.validation_id)
        .limit(limit)
    )
    with database.reading() as connection:
        return tuple(connection.execute(query).scalars())
