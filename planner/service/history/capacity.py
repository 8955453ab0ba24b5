"""Sums GPU memory requested, predicted and measured, and computes which stored jobs would fit other GPUs."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, replace
from datetime import datetime
from typing import Any

from sqlalchemy import BigInteger, ColumnElement, Row, Select, and_, case, func, or_, select, type_coerce

from planner.hardware.catalog import gpus
from planner.hardware.gpus import GpuRecord
from planner.report.statement import Verdict
from planner.service.history.database import Database
from planner.service.history.job_changes import Outcome, memory_of
from planner.service.history.job_table import ended_since, is_open, rank_of_job
from planner.service.history.plan_table import rank_classes_of
from planner.service.history.schema import JOBS, MEASURED_RANKS, PLANS, microseconds


@dataclass(frozen=True, slots=True, kw_only=True)
class CapacitySums:
    """Sums. Bytes are of all ranks together; requested, predicted and measured are of jobs that have not ended.

    `measured_bytes` are device bytes of the `measured_gpus` ranks that told them, for which their plans had said
    `predicted_of_measured_bytes`. `judged` jobs ended and are remembered; a verdict was wrong if it said that the job
    fits and it ran out of memory, or that it exceeds and it ran.
    """

    jobs: int
    gpus: int
    requested_bytes: int
    predicted_bytes: int
    headroom_bytes: int
    """Requested and not needed, by the prediction; negative if more is needed."""
    measured_bytes: int
    measured_gpus: int
    predicted_of_measured_bytes: int
    gpu_seconds: int = 0
    """GPUs times seconds, from the start of a job to its end or now: of jobs that have started and not ended, and of
    those remembered that ended; within `since`, if it is given."""
    host_requested_bytes: int = 0
    """Main memory that the jobs say their nodes have."""
    host_predicted_bytes: int = 0
    """Main memory that all of their nodes will take."""
    judged: int
    """A `tight` verdict warns of both and is never wrong. Of a job that the host's memory ended, the GPU's verdict is
    not judged."""
    wrong_verdicts: int
    said_fits_ran_out: int
    said_exceeds_ran: int
    ran_out_gpu: int
    """Remembered jobs that ended out of GPU memory; those of which no cause was told are counted here."""
    ran_out_host: int
    """Out of the host's memory."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Capacity(CapacitySums):
    """One team in one queue on one type of GPU."""

    team: str
    queue: str
    gpu: str


COUNTS = tuple(field.name for field in fields(CapacitySums))


def sum_capacity(rows: Sequence[CapacitySums]) -> dict[str, int]:
    """The sums of all rows, by name."""
    return {name: sum(getattr(row, name) for row in rows) for name in COUNTS}


def capacity(database: Database, now: datetime, since: datetime | None = None) -> tuple[Capacity, ...]:
    """By team, queue and GPU type, in that order. `since` leaves out verdicts of jobs that ended before it."""
    group = (JOBS.c.team, JOBS.c.queue, PLANS.c.gpu)
    of_plans = JOBS.join(PLANS, PLANS.c.plan_id == JOBS.c.plan_id)
    # Bytes are summed below, not in SQL: a hostile spec may claim so many that SQLite's sum would overflow.
    open_jobs = select(
        *group,
        PLANS.c.ranks,
        PLANS.c.requested_bytes,
        PLANS.c.predicted_bytes,
        PLANS.c.nodes,
        PLANS.c.host_capacity_bytes,
        PLANS.c.host_predicted_bytes,
    )
    measured = select(
        *group,
        func.sum(MEASURED_RANKS.c.device_bytes).label("bytes"),
        func.count().label("gpus"),
        func.sum(MEASURED_RANKS.c.predicted_bytes).label("predicted"),
    )
    ended = select(*group, PLANS.c.verdict, JOBS.c.outcome, JOBS.c.cause, func.count().label("jobs")).where(
        JOBS.c.outcome.in_([Outcome.FINISHED.value, Outcome.OUT_OF_MEMORY.value])
    )
    begins: ColumnElement[int] = type_coerce(JOBS.c.started_at, BigInteger)
    if since is not None:
        ended = ended.where(JOBS.c.ended_at >= since)
        begins = case((begins < microseconds(since), microseconds(since)), else_=begins)
    lasted = (func.coalesce(type_coerce(JOBS.c.ended_at, BigInteger), microseconds(now)) - begins) // 1_000_000
    worked = select(*group, PLANS.c.ranks, func.sum(lasted).label("seconds")).where(
        JOBS.c.started_at.is_not(None), lasted > 0, or_(is_open(now), JOBS.c.ended_at.is_not(None))
    )
    queries: tuple[tuple[Select[Any], Callable[[Row[Any]], dict[str, int]]], ...] = (
        (open_jobs.select_from(of_plans).where(is_open(now)), _count_open_job),
        (
            measured.select_from(of_plans.join(MEASURED_RANKS, rank_of_job))
            .where(is_open(now), MEASURED_RANKS.c.device_bytes.is_not(None))
            .group_by(*group, JOBS.c.system, JOBS.c.job_id),
            _count_measured_ranks,
        ),
        (
            ended.select_from(of_plans).group_by(*group, PLANS.c.verdict, JOBS.c.outcome, JOBS.c.cause),
            _count_ended_jobs,
        ),
        (worked.select_from(of_plans).group_by(*group, PLANS.c.ranks), _count_seconds),
    )
    sums: dict[tuple[str, str, str], Counter[str]] = defaultdict(Counter)
    with database.reading() as connection:
        for query, count in queries:
            for row in connection.execute(query):
                sums[row.team, row.queue, row.gpu].update(count(row))
    return tuple(
        Capacity(team=team, queue=queue, gpu=gpu, **{name: counts[name] for name in COUNTS})
        for (team, queue, gpu), counts in sorted(sums.items())
    )


def _count_open_job(row: Row[Any]) -> dict[str, int]:
    return {
        "jobs": 1,
        "gpus": row.ranks,
        "requested_bytes": row.requested_bytes,
        "predicted_bytes": row.predicted_bytes,
        "headroom_bytes": row.requested_bytes - row.predicted_bytes,
        "host_requested_bytes": (row.nodes or 0) * (row.host_capacity_bytes or 0),
        "host_predicted_bytes": row.host_predicted_bytes or 0,
    }


def _count_seconds(row: Row[Any]) -> dict[str, int]:
    return {"gpu_seconds": row.ranks * int(row.seconds)}


def _count_measured_ranks(row: Row[Any]) -> dict[str, int]:
    # PostgreSQL's sum is a decimal number.
    return {
        "measured_bytes": int(row.bytes),
        "measured_gpus": row.gpus,
        "predicted_of_measured_bytes": int(row.predicted),
    }


def _count_ended_jobs(row: Row[Any]) -> dict[str, int]:
    ran_out = row.outcome == Outcome.OUT_OF_MEMORY
    if ran_out and memory_of(row.cause) == "host":
        return {"ran_out_host": row.jobs}
    counts = {"judged": row.jobs, "ran_out_gpu": row.jobs if ran_out else 0}
    if row.verdict == (Verdict.FITS if ran_out else Verdict.EXCEEDS):
        counts["said_fits_ran_out" if ran_out else "said_exceeds_ran"] = counts["wrong_verdicts"] = row.jobs
    return counts


@dataclass(frozen=True, slots=True, kw_only=True)
class JobOnGpu:
    """One job; bytes are those of its fullest rank. It cannot do without `least_bytes`."""

    system: str
    job_id: str
    name: str
    team: str
    queue: str
    planned_gpu: str
    ranks: int
    waits: bool
    """Bound to its plan, and neither started nor ended."""
    verdict: Verdict
    least_bytes: int
    """The allocated peak and what lies outside the allocator, which may hold more (`device_bytes`) and give it back
    where there is less."""
    device_bytes: int
    highest_bytes: int
    """Upper end of the interval, or what a rank told if that is more."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JobNeed(JobOnGpu):
    """A job on the GPU for which it was planned, and what it may use of that."""

    capacity_bytes: int


def read_needs(
    database: Database, since: datetime | None, limit: int, now: datetime
) -> tuple[tuple[JobNeed, ...], int]:
    """Jobs that have not ended, and those that ended `since`: at most `limit`, those told of first; how many are left.

    Without `since` those that ended are left out.
    """
    asked = is_open(now) if since is None else or_(is_open(now), ended_since(since, now))
    chosen = (
        select(JOBS, PLANS.c.name, PLANS.c.gpu, PLANS.c.ranks, PLANS.c.verdict)
        .join(PLANS, PLANS.c.plan_id == JOBS.c.plan_id)
        .where(asked)
        .order_by(JOBS.c.updated_at, JOBS.c.system, JOBS.c.job_id)
        .limit(limit)
    )
    peaks = (
        select(JOBS.c.system, JOBS.c.job_id, func.max(MEASURED_RANKS.c.device_bytes).label("device_bytes"))
        .join(MEASURED_RANKS, rank_of_job)
        .where(and_(asked, MEASURED_RANKS.c.device_bytes.is_not(None)))
        .group_by(JOBS.c.system, JOBS.c.job_id)
    )
    with database.reading() as connection:
        count = connection.execute(select(func.count()).select_from(JOBS).where(asked)).scalar_one()
        rows = connection.execute(chosen).all()
        measured = {(row.system, row.job_id): row.device_bytes for row in connection.execute(peaks)}
        classes = rank_classes_of(connection, list(dict.fromkeys(row.plan_id for row in rows)))
    needs = tuple(
        JobNeed(
            system=row.system, job_id=row.job_id, name=row.name, team=row.team, queue=row.queue, planned_gpu=row.gpu,
            ranks=row.ranks, verdict=Verdict(row.verdict), waits=row.started_at is None and row.ended_at is None,
            capacity_bytes=min(one.capacity_bytes for one in of_plan),
            least_bytes=max(one.allocated_bytes + one.device_bytes - one.reserved_bytes for one in of_plan),
            device_bytes=max(one.device_bytes for one in of_plan),
            highest_bytes=max(*(one.interval_bytes[1] for one in of_plan), measured.get((row.system, row.job_id), 0)),
        )
        for row in rows
        if (of_plan := classes.get(row.plan_id))
    )  # fmt: skip
    return needs, max(count - len(rows), 0)


@dataclass(frozen=True, slots=True, kw_only=True)
class VerdictCounts:
    """By verdict."""

    fits: int
    tight: int
    exceeds: int


@dataclass(frozen=True, slots=True, kw_only=True)
class JobsOnGpu:
    """The jobs on one type of GPU; `listed` has those that need most first, at most 200."""

    gpu: str
    total_bytes: int
    jobs: VerdictCounts
    gpus: VerdictCounts
    listed: tuple[JobOnGpu, ...]


MOST_LISTED = 200
"""Jobs listed for each GPU; all are counted."""


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueNeed:
    """GPUs that waiting jobs need: each the smallest on which it does not exceed; none is large enough for gpu ""."""

    queue: str
    gpu: str
    jobs: int
    gpus: int


@dataclass(frozen=True, slots=True, kw_only=True)
class AddedNodes:
    """New nodes, and the jobs that wait: those that would start, still wait, or are too large for this GPU."""

    gpu: str
    nodes: int
    gpus: int
    started_jobs: int
    started_gpus: int
    idle_gpus: int
    waiting_jobs: int
    """Those that would fit, and for which there are not enough GPUs."""
    waiting_gpus: int
    too_large_jobs: int


def verdict_on(need: JobNeed, gpu: GpuRecord) -> Verdict:
    """Of the fullest rank there. What others hold of the GPU it was planned for, they hold of this one too."""
    if gpu.name == need.planned_gpu:
        return need.verdict
    planned = gpus().get(need.planned_gpu)
    held = max(planned.total_bytes - need.capacity_bytes, 0) if planned else 0
    capacity = gpu.total_bytes - held
    if need.least_bytes > capacity:
        return Verdict.EXCEEDS
    return Verdict.FITS if max(need.device_bytes, need.highest_bytes) <= capacity else Verdict.TIGHT


def judge_on(needs: Sequence[JobNeed], gpu: GpuRecord) -> JobsOnGpu:
    """All of the jobs, those that need most first."""
    ordered = sorted(needs, key=lambda need: (-need.least_bytes, need.system, need.job_id))
    judged = [replace(need, verdict=verdict_on(need, gpu)) for need in ordered]
    jobs, ranks = ({verdict.value: 0 for verdict in Verdict} for _ in range(2))
    for job in judged:
        jobs[job.verdict] += 1
        ranks[job.verdict] += job.ranks
    return JobsOnGpu(
        gpu=gpu.name, total_bytes=gpu.total_bytes, jobs=VerdictCounts(**jobs), gpus=VerdictCounts(**ranks),
        listed=tuple(judged[:MOST_LISTED]),
    )  # fmt: skip


def queue_needs(needs: Sequence[JobNeed], candidates: Sequence[GpuRecord]) -> tuple[QueueNeed, ...]:
    """For each waiting job the smallest GPU on which it does not exceed; counted by queue and type."""
    by_size = sorted(candidates, key=lambda gpu: (gpu.total_bytes, gpu.name))
    ranks: dict[tuple[str, str], list[int]] = defaultdict(list)
    for need in needs:
        if need.waits:
            fitting = (gpu.name for gpu in by_size if verdict_on(need, gpu) is not Verdict.EXCEEDS)
            ranks[need.queue, next(fitting, "")].append(need.ranks)
    return tuple(
        QueueNeed(queue=queue, gpu=gpu, jobs=len(of_jobs), gpus=sum(of_jobs))
        for (queue, gpu), of_jobs in sorted(ranks.items())
    )


def simulate_added_nodes(needs: Sequence[JobNeed], gpu: GpuRecord, nodes: int, gpus_per_node: int) -> AddedNodes:
    """The waiting jobs in their order, each started if there is room for it; later ones may pass one that has none.

    A job of more ranks than a node has GPUs takes whole nodes and, for what is left, a part of one.
    """
    free = [0] * gpus_per_node + [nodes]
    started: list[int] = []
    waiting: list[int] = []
    too_large = 0
    for need in needs:
        if not need.waits:
            continue
        if verdict_on(need, gpu) is Verdict.EXCEEDS:
            too_large += 1
        else:
            (started if _place(free, need.ranks) else waiting).append(need.ranks)
    return AddedNodes(
        gpu=gpu.name, nodes=nodes, gpus=nodes * gpus_per_node, started_jobs=len(started), started_gpus=sum(started),
        idle_gpus=nodes * gpus_per_node - sum(started), waiting_jobs=len(waiting), waiting_gpus=sum(waiting),
        too_large_jobs=too_large,
    )  # fmt: skip


def _place(free: list[int], ranks: int) -> bool:
    """Takes the GPUs, if there are enough. `free[n]` counts the nodes that have n GPUs left: nodes are all alike."""
    gpus_per_node = len(free) - 1
    whole, rest = divmod(ranks, gpus_per_node)
    after = list(free)
    after[gpus_per_node] -= whole
    after[0] += whole
    if rest:
        fullest = next((left for left in range(rest, gpus_per_node + 1) if after[left] > 0), None)
        if fullest is None:
            return False
        after[fullest] -= 1
        after[fullest - rest] += 1
    if after[gpus_per_node] < 0:
        return False
    free[:] = after
    return True
