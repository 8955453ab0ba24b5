"""Sums GPU memory requested, predicted and measured, also of shared GPUs, and judges stored jobs on other GPUs."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from datetime import datetime
from typing import Any

from sqlalchemy import BigInteger, ColumnElement, Row, Select, case, func, or_, select, type_coerce

from planner.hardware.catalog import by_name
from planner.hardware.gpu_records import GpuRecord
from planner.job.schema import Cluster, Gpu
from planner.service.history.database import Database
from planner.service.history.job_table import Outcome, ended_since, fullest_ranks, is_open, rank_of_job, whose_memory
from planner.service.history.plan_table import RankClassSummary, select_rank_classes
from planner.service.history.schema import JOBS, MEASURED_RANKS, PLANS, microseconds
from planner.verdict import Verdict, decide


@dataclass(frozen=True, slots=True, kw_only=True)
class CapacitySums:
    """Sums. Bytes are of all ranks together; requested, predicted and measured are of jobs that have not ended.

    `measured_bytes` are device bytes of the `measured_gpus` ranks that told them, for which their plans had said
    `predicted_of_measured_bytes`. `judged` jobs ended and are remembered; a verdict was wrong if it said that the job
    fits and it ran out of memory, or that it exceeds and it ran.
    """

    jobs: int
    gpus: int | float
    requested_bytes: int
    predicted_bytes: int
    headroom_bytes: int
    """Requested and not needed, by the prediction; negative if more is needed."""
    measured_bytes: int
    measured_gpus: int
    predicted_of_measured_bytes: int
    gpu_seconds: int | float = 0
    """GPUs times seconds, from the start of a job to its end or now: of jobs that have started and not ended, and of
    those remembered that ended; within `since`, if it is given."""
    host_requested_bytes: int = 0
    host_predicted_bytes: int = 0
    judged: int
    """A `tight` verdict warns of both and is never wrong. Of a job that the host's memory ended, the GPU's verdict is
    not judged."""
    wrong_verdicts: int
    said_fits_ran_out: int
    said_exceeds_ran: int
    ran_out_gpu: int
    """Remembered jobs that ended out of GPU memory; those of which no cause was told are counted here."""
    ran_out_host: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Capacity(CapacitySums):
    """One team in one queue on one type of GPU."""

    team: str
    queue: str
    gpu: str


COUNTS = tuple(field.name for field in fields(CapacitySums))


def sum_capacity(rows: Sequence[CapacitySums]) -> dict[str, Any]:
    return {name: _rounded(sum(getattr(row, name) for row in rows)) for name in COUNTS}


def _rounded(count: float) -> Any:
    """A sum of shares of GPUs to the thousandth; a whole number as such."""
    return int(count) if count == int(count) else round(count, 3)


def capacity(database: Database, now: datetime, since: datetime | None = None) -> tuple[Capacity, ...]:
    group = (JOBS.c.team, JOBS.c.queue, PLANS.c.gpu)
    of_plans = JOBS.join(PLANS, PLANS.c.plan_id == JOBS.c.plan_id)
    # Bytes are summed below, not in SQL: a hostile spec may claim so many that SQLite's sum would overflow.
    open_jobs = select(
        *group,
        PLANS.c.gpus,
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
    worked = select(*group, PLANS.c.gpus, func.sum(lasted).label("seconds")).where(
        JOBS.c.started_at.is_not(None), lasted > 0, or_(is_open(now), JOBS.c.ended_at.is_not(None))
    )
    queries: tuple[tuple[Select[Any], Callable[[Row[Any]], Mapping[str, float]]], ...] = (
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
        (worked.select_from(of_plans).group_by(*group, PLANS.c.gpus), _count_seconds),
    )
    sums: dict[tuple[str, str, str], dict[str, float]] = defaultdict(lambda: defaultdict(int))
    with database.reading() as connection:
        for query, count in queries:
            for row in connection.execute(query):
                for name, value in count(row).items():
                    sums[row.team, row.queue, row.gpu][name] += value
    return tuple(
        Capacity(team=team, queue=queue, gpu=gpu, **{name: _rounded(counts[name]) for name in COUNTS})
        for (team, queue, gpu), counts in sorted(sums.items())
    )


def _count_open_job(row: Row[Any]) -> Mapping[str, float]:
    return {
        "jobs": 1,
        "gpus": row.gpus,
        "requested_bytes": row.requested_bytes,
        "predicted_bytes": row.predicted_bytes,
        "headroom_bytes": row.requested_bytes - row.predicted_bytes,
        "host_requested_bytes": (row.nodes or 0) * (row.host_capacity_bytes or 0),
        "host_predicted_bytes": row.host_predicted_bytes or 0,
    }


def _count_seconds(row: Row[Any]) -> Mapping[str, float]:
    return {"gpu_seconds": row.gpus * int(row.seconds)}


def _count_measured_ranks(row: Row[Any]) -> dict[str, int]:
    # PostgreSQL's sum is a decimal number.
    return {
        "measured_bytes": int(row.bytes),
        "measured_gpus": row.gpus,
        "predicted_of_measured_bytes": int(row.predicted),
    }


def _count_ended_jobs(row: Row[Any]) -> dict[str, int]:
    ran_out = row.outcome == Outcome.OUT_OF_MEMORY
    if ran_out and whose_memory(row.cause) == "host":
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


@dataclass(frozen=True, slots=True, kw_only=True)
class JobNeed(JobOnGpu):
    """A job on the GPU for which it was planned, and what it may use of that and of any other."""

    cluster: Cluster
    own_fraction: float = 1.0
    """Of the GPU, besides what lies outside the allocator: the limit that its process sets itself."""
    outside_bytes: int


def read_needs(
    database: Database, since: datetime | None, limit: int, now: datetime
) -> tuple[tuple[JobNeed, ...], int]:
    """Jobs that have not ended, and those that ended `since`: at most `limit`, those reported first; how many are left.

    Without `since` those that ended are left out.
    """
    asked = is_open(now) if since is None else or_(is_open(now), ended_since(since, now))
    chosen = (
        select(
            JOBS,
            *(PLANS.c[name] for name in ("name", "gpu", "ranks", "verdict")),
            *(PLANS.c[name] for name in ("gpu_fraction", "gpu_memory", "held_by_others_bytes")),
        )
        .join(PLANS, PLANS.c.plan_id == JOBS.c.plan_id)
        .where(asked)
        .order_by(JOBS.c.updated_at, JOBS.c.system, JOBS.c.job_id)
        .limit(limit)
    )
    with database.reading() as connection:
        count = connection.execute(select(func.count()).select_from(JOBS).where(asked)).scalar_one()
        rows = connection.execute(chosen).all()
        measured = fullest_ranks(connection, [(row.system, row.job_id) for row in rows])
        classes = select_rank_classes(connection, list(dict.fromkeys(row.plan_id for row in rows)))
    needs = tuple(
        _need(row, of_plan, measured.get((row.system, row.job_id), (0, 0, 0))[1])
        for row in rows
        if (of_plan := classes.get(row.plan_id))
    )
    return needs, max(count - len(rows), 0)


def _need(row: Row[Any], classes: Sequence[RankClassSummary], measured_bytes: int) -> JobNeed:
    planned = by_name(row.gpu)
    cluster = Cluster(
        gpu=Gpu(name=row.gpu, total_bytes=planned.total_bytes if planned else 0), gpu_fraction=row.gpu_fraction,
        gpu_memory=row.gpu_memory, held_by_others_bytes=row.held_by_others_bytes,
    )  # fmt: skip
    least = min(classes, key=lambda one: one.capacity_bytes)
    outside, fraction = least.outside_bytes, 1.0
    if planned is not None and least.capacity_bytes < cluster.capacity_bytes:
        # As planner.planning.judging.Judge has it, the other way round; to the digits that people write.
        fraction = round((least.capacity_bytes - outside) / planned.total_bytes, 9)
    return JobNeed(
        system=row.system, job_id=row.job_id, name=row.name, team=row.team, queue=row.queue, planned_gpu=row.gpu,
        ranks=row.ranks, verdict=Verdict(row.verdict), waits=row.started_at is None and row.ended_at is None,
        cluster=cluster, own_fraction=fraction, outside_bytes=outside,
        least_bytes=max(one.least_bytes for one in classes),
        device_bytes=max(one.device_bytes for one in classes),
        highest_bytes=max(*(one.interval_bytes[1] for one in classes), measured_bytes),
    )  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class VerdictCounts:
    fits: int | float
    tight: int | float
    exceeds: int | float


@dataclass(frozen=True, slots=True, kw_only=True)
class JobsOnGpu:
    """The jobs on one type of GPU; `listed` has those that need most first, at most 200."""

    gpu: str
    total_bytes: int
    jobs: VerdictCounts
    gpus: VerdictCounts
    listed: tuple[JobOnGpu, ...]


MOST_LISTED = 200


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueNeed:
    """GPUs that waiting jobs need: each the smallest on which it does not exceed; none is large enough for gpu ""."""

    queue: str
    gpu: str
    jobs: int
    gpus: int | float


def capacity_on(need: JobNeed, gpu: GpuRecord) -> int:
    """What a rank may use there: as if the job were planned for that GPU."""
    allowed = int(need.own_fraction * gpu.total_bytes) + need.outside_bytes
    return min(_cluster_on(need, gpu).capacity_bytes, allowed if need.own_fraction < 1 else gpu.total_bytes)


def verdict_on(need: JobNeed, gpu: GpuRecord) -> Verdict:
    if gpu.name == need.planned_gpu:
        return need.verdict
    capacity = capacity_on(need, gpu)
    highest = max(need.device_bytes, need.highest_bytes)
    return decide(runs_out=need.least_bytes > capacity, highest_bytes=highest, capacity_bytes=capacity)


def _cluster_on(need: JobNeed, gpu: GpuRecord) -> Cluster:
    return replace(need.cluster, gpu=Gpu(name=gpu.name, total_bytes=gpu.total_bytes))


def _gpus_on(need: JobNeed, gpu: GpuRecord) -> float:
    return need.ranks * _cluster_on(need, gpu).gpu_share


def judge_on(needs: Sequence[JobNeed], gpu: GpuRecord) -> JobsOnGpu:
    ordered = sorted(needs, key=lambda need: (-need.least_bytes, need.system, need.job_id))
    jobs = {verdict.value: 0 for verdict in Verdict}
    counts = {verdict.value: 0.0 for verdict in Verdict}
    judged = []
    for need in ordered:
        verdict = verdict_on(need, gpu)
        judged.append(replace(need, verdict=verdict))
        jobs[verdict] += 1
        counts[verdict] += _gpus_on(need, gpu)
    return JobsOnGpu(
        gpu=gpu.name, total_bytes=gpu.total_bytes,
        jobs=VerdictCounts(**jobs), gpus=VerdictCounts(**{name: _rounded(count) for name, count in counts.items()}),
        listed=tuple(judged[:MOST_LISTED]),
    )  # fmt: skip


def queue_needs(needs: Sequence[JobNeed], candidates: Sequence[GpuRecord]) -> tuple[QueueNeed, ...]:
    """For each waiting job the smallest GPU on which it does not exceed; counted by queue and type."""
    by_size = sorted(candidates, key=lambda gpu: (gpu.total_bytes, gpu.name))
    counts: dict[tuple[str, str], list[float]] = defaultdict(list)
    for need in needs:
        if need.waits:
            gpu = next((gpu for gpu in by_size if verdict_on(need, gpu) is not Verdict.EXCEEDS), None)
            counts[need.queue, gpu.name if gpu else ""].append(_gpus_on(need, gpu) if gpu else need.ranks)
    return tuple(
        QueueNeed(queue=queue, gpu=name, jobs=len(of_jobs), gpus=_rounded(sum(of_jobs)))
        for (queue, name), of_jobs in sorted(counts.items())
    )


MOST_SHARED = 200
_MOST_JOBS = 10_000


@dataclass(frozen=True, slots=True, kw_only=True)
class SharedGpu:
    """A GPU with more than one open job; bytes are sums over its jobs, of the fullest rank of each."""

    gpu_uuid: str
    gpu: str
    jobs: tuple[str, ...]
    """`SYSTEM/JOB`."""
    least_bytes: int
    """Allocated at the peaks, and what lies outside of the allocators: every process has its own context."""
    predicted_bytes: int
    highest_bytes: int
    total_bytes: int
    """What CUDA reports, which is without the driver's reserve; 0 where the catalog does not know the GPU."""
    verdict: Verdict


def read_shared_gpus(database: Database, now: datetime) -> tuple[SharedGpu, ...]:
    """Those with the least left first."""
    query = (
        select(JOBS.c.system, JOBS.c.job_id, JOBS.c.plan_id, JOBS.c.gpu_uuids, PLANS.c.gpu)
        .select_from(JOBS.join(PLANS, PLANS.c.plan_id == JOBS.c.plan_id))
        .where(is_open(now))
        .order_by(JOBS.c.system, JOBS.c.job_id)
        .limit(_MOST_JOBS)
    )
    on_gpu: dict[str, list[tuple[str, str, str]]] = defaultdict(list)
    with database.reading() as connection:
        for row in connection.execute(query):
            for uuid in dict.fromkeys(row.gpu_uuids):
                on_gpu[uuid].append((f"{row.system}/{row.job_id}", row.plan_id, row.gpu))
        shared = {uuid: jobs for uuid, jobs in on_gpu.items() if len(jobs) > 1}
        classes = select_rank_classes(connection, list({plan_id for jobs in shared.values() for _, plan_id, _ in jobs}))
    found = [_sum(uuid, jobs, classes) for uuid, jobs in shared.items()]
    return tuple(sorted(found, key=lambda one: (one.total_bytes - one.predicted_bytes, one.gpu_uuid))[:MOST_SHARED])


def _sum(uuid: str, jobs: list[tuple[str, str, str]], classes: dict[str, tuple[RankClassSummary, ...]]) -> SharedGpu:
    fullest = [max(classes[plan_id], key=lambda one: one.device_bytes) for _, plan_id, _ in jobs if plan_id in classes]
    gpu = by_name(jobs[0][2])
    total = gpu.total_bytes if gpu is not None else 0
    least = sum(one.least_bytes for one in fullest)
    highest = sum(one.interval_bytes[1] for one in fullest)
    return SharedGpu(
        gpu_uuid=uuid,
        gpu=jobs[0][2],
        jobs=tuple(name for name, _, _ in jobs),
        least_bytes=least,
        predicted_bytes=sum(one.device_bytes for one in fullest),
        highest_bytes=highest,
        total_bytes=total,
        verdict=decide(runs_out=least > total, highest_bytes=highest, capacity_bytes=total) if total else Verdict.FITS,
    )
