"""Sums GPU bytes requested, predicted and measured by team, queue and GPU; counts wrong verdicts."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

from sqlalchemy import Connection, Row, and_, func, select

from planner.history.database import Database
from planner.history.failed_jobs import memory_of
from planner.history.job_values import Outcome
from planner.history.openness import is_open
from planner.history.schema import JOBS, MEASURED_RANKS, PLANS
from planner.report.statement import Verdict


@dataclass(frozen=True, slots=True, kw_only=True)
class Capacity:
    """One team in one queue on one type of GPU.

    Requested, predicted and measured are of the jobs that have not ended. Not every rank tells its peak:
    `measured_bytes` are device bytes of `measured_gpus` ranks, for which the plans said `predicted_of_measured_bytes`.
    The verdicts are of jobs that ended and are still remembered: `said_fits_ran_out` and `said_exceeds_ran`, of
    `judged`. A `tight` verdict warns of both and is never wrong. Of a job that the host's memory ended, the GPU's
    verdict is not judged. `ran_out_gpu` and `ran_out_host` are all that ended out of memory.
    """

    team: str
    queue: str
    gpu: str
    jobs: int = 0
    gpus: int = 0
    requested_bytes: int = 0
    predicted_bytes: int = 0
    measured_bytes: int = 0
    measured_gpus: int = 0
    predicted_of_measured_bytes: int = 0
    host_requested_bytes: int = 0
    """Main memory that open jobs say their nodes have."""
    host_predicted_bytes: int = 0
    """Main memory that all nodes of open jobs will take."""
    judged: int = 0
    said_fits_ran_out: int = 0
    said_exceeds_ran: int = 0
    ran_out_gpu: int = 0
    ran_out_host: int = 0

    @property
    def headroom_bytes(self) -> int:
        """What was requested and will not be needed, by the prediction; negative if more is needed."""
        return self.requested_bytes - self.predicted_bytes

    @property
    def wrong_verdicts(self) -> int:
        return self.said_fits_ran_out + self.said_exceeds_ran


_Key = tuple[str, str, str]
_GROUP = (JOBS.c.team, JOBS.c.queue, PLANS.c.gpu)


def capacity(database: Database, now: datetime, since: datetime | None = None) -> tuple[Capacity, ...]:
    """By team, queue and GPU type, in that order. `since` leaves out verdicts of jobs that ended before it."""
    found: dict[_Key, Capacity] = {}
    with database.reading() as connection:
        for key, more in [
            *_sum_open_jobs(connection, now),
            *_sum_measured_ranks(connection, now),
            *_count_judged_jobs(connection, since),
        ]:
            before = found.get(key, Capacity(team=key[0], queue=key[1], gpu=key[2]))
            found[key] = replace(before, **{name: getattr(before, name) + value for name, value in more.items()})
    return tuple(found[key] for key in sorted(found))


# Bytes are summed here, not in SQL: a hostile spec may claim so many that SQLite's sum would overflow.


def _sum_open_jobs(connection: Connection, now: datetime) -> Iterable[tuple[_Key, dict[str, int]]]:
    query = (
        select(
            *_GROUP,
            PLANS.c.ranks,
            PLANS.c.requested_bytes,
            PLANS.c.predicted_bytes,
            PLANS.c.nodes,
            PLANS.c.host_capacity_bytes,
            PLANS.c.host_predicted_bytes,
        )
        .join(PLANS, PLANS.c.plan_id == JOBS.c.plan_id)
        .where(is_open(now))
    )
    jobs = (
        (*counts, (nodes or 0) * (each or 0), taken or 0)
        for *counts, nodes, each, taken in (
            (team, queue, gpu, 1, *counts) for team, queue, gpu, *counts in connection.execute(query).all()
        )
    )
    names = ("jobs", "gpus", "requested_bytes", "predicted_bytes", "host_requested_bytes", "host_predicted_bytes")
    return _sum_by_group(names, jobs)


def _sum_measured_ranks(connection: Connection, now: datetime) -> Iterable[tuple[_Key, dict[str, int]]]:
    same_job = and_(MEASURED_RANKS.c.system == JOBS.c.system, MEASURED_RANKS.c.job_id == JOBS.c.job_id)
    query = (
        select(
            *_GROUP,
            func.sum(MEASURED_RANKS.c.device_bytes),
            func.count(),
            func.sum(MEASURED_RANKS.c.predicted_bytes),
        )
        .select_from(MEASURED_RANKS)
        .join(JOBS, same_job)
        .join(PLANS, PLANS.c.plan_id == JOBS.c.plan_id)
        .where(is_open(now), MEASURED_RANKS.c.device_bytes.is_not(None))
        .group_by(*_GROUP, JOBS.c.system, JOBS.c.job_id)
    )
    names = ("measured_bytes", "measured_gpus", "predicted_of_measured_bytes")
    return _sum_by_group(names, connection.execute(query).all())


def _sum_by_group(names: Sequence[str], rows: Iterable[Sequence[Any]]) -> Iterable[tuple[_Key, dict[str, int]]]:
    sums: dict[_Key, list[int]] = {}
    for team, queue, gpu, *counts in rows:
        total = sums.setdefault((team, queue, gpu), [0] * len(names))
        for index, count in enumerate(counts):
            total[index] += int(count)  # PostgreSQL's sum is a decimal number
    return [(key, dict(zip(names, total, strict=True))) for key, total in sums.items()]


def _count_judged_jobs(connection: Connection, since: datetime | None) -> Iterable[tuple[_Key, dict[str, int]]]:
    told = [Outcome.FINISHED.value, Outcome.OUT_OF_MEMORY.value]
    query = (
        select(*_GROUP, PLANS.c.verdict, JOBS.c.outcome, JOBS.c.cause, func.count().label("jobs"))
        .join(PLANS, PLANS.c.plan_id == JOBS.c.plan_id)
        .where(JOBS.c.outcome.in_(told))
        .group_by(*_GROUP, PLANS.c.verdict, JOBS.c.outcome, JOBS.c.cause)
    )
    if since is not None:
        query = query.where(JOBS.c.ended_at >= since)
    return [(_key(row), _verdicts(row)) for row in connection.execute(query)]


def _verdicts(row: Row[Any]) -> dict[str, int]:
    ran_out = row.outcome == Outcome.OUT_OF_MEMORY
    if ran_out and memory_of(row.cause) == "host":
        return {"ran_out_host": row.jobs}
    counts = {"judged": row.jobs, "ran_out_gpu": row.jobs if ran_out else 0}
    if row.verdict == Verdict.FITS and row.outcome == Outcome.OUT_OF_MEMORY:
        counts["said_fits_ran_out"] = row.jobs
    if row.verdict == Verdict.EXCEEDS and row.outcome == Outcome.FINISHED:
        counts["said_exceeds_ran"] = row.jobs
    return counts


def _key(row: Row[Any]) -> _Key:
    return row.team, row.queue, row.gpu
