"""Sums GPU memory requested, predicted and measured, and computes which stored jobs would fit other GPUs."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

from sqlalchemy import ColumnElement, Connection, Row, and_, func, or_, select

from planner.hardware.catalog import gpus
from planner.hardware.gpus import GpuRecord
from planner.report.statement import Verdict
from planner.service.history.database import Database
from planner.service.history.job_changes import Outcome, memory_of
from planner.service.history.job_table import ended_since, is_open
from planner.service.history.plan_table import RankClassSummary, rank_classes_of
from planner.service.history.schema import JOBS, MEASURED_RANKS, PLANS


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


@dataclass(frozen=True, slots=True, kw_only=True)
class JobsOnGpu:
    """Jobs as they would be on one type of GPU: `judged` has each with its verdict there."""

    gpu: str
    total_bytes: int
    judged: tuple[tuple[JobNeed, Verdict], ...]

    def jobs(self, verdict: Verdict) -> int:
        """How many have this verdict."""
        return sum(found is verdict for _, found in self.judged)

    def gpus(self, verdict: Verdict) -> int:
        """How many GPUs these have."""
        return sum(need.ranks for need, found in self.judged if found is verdict)


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueNeed:
    """GPUs that the waiting jobs of a queue need of one type; "" where none of those asked about is large enough."""

    queue: str
    gpu: str
    jobs: int
    gpus: int


@dataclass(frozen=True, slots=True, kw_only=True)
class AddedNodes:
    """What new nodes would do for the jobs that wait."""

    gpu: str
    nodes: int
    gpus: int
    started_jobs: int
    started_gpus: int
    waiting_jobs: int
    """Those that would fit, and for which there are not enough."""
    waiting_gpus: int
    too_large_jobs: int
    """Those that do not fit this type of GPU."""

    @property
    def idle_gpus(self) -> int:
        return self.gpus - self.started_gpus


def verdict_on(need: JobNeed, gpu: GpuRecord) -> Verdict:
    """Of the fullest rank there. What others hold of the GPU it was planned for, they hold of this one too."""
    if gpu.name == need.gpu:
        return need.verdict
    planned = gpus().get(need.gpu)
    held = max(planned.total_bytes - need.capacity_bytes, 0) if planned else 0
    capacity = gpu.total_bytes - held
    if need.least_bytes > capacity:
        return Verdict.EXCEEDS
    return Verdict.FITS if max(need.device_bytes, need.highest_bytes) <= capacity else Verdict.TIGHT


def on_gpu(needs: Sequence[JobNeed], gpu: GpuRecord) -> JobsOnGpu:
    """All of the jobs, those that need most first."""
    ordered = sorted(needs, key=lambda need: (-need.least_bytes, need.system, need.job_id))
    return JobsOnGpu(
        gpu=gpu.name, total_bytes=gpu.total_bytes, judged=tuple((need, verdict_on(need, gpu)) for need in ordered)
    )


def queue_needs(needs: Sequence[JobNeed], candidates: Sequence[GpuRecord]) -> tuple[QueueNeed, ...]:
    """For each waiting job the smallest GPU on which it does not exceed; counted by queue and type."""
    by_size = sorted(candidates, key=lambda gpu: (gpu.total_bytes, gpu.name))
    counts: dict[tuple[str, str], list[int]] = {}
    for need in needs:
        if not need.waits:
            continue
        fitting = (gpu.name for gpu in by_size if verdict_on(need, gpu) is not Verdict.EXCEEDS)
        count = counts.setdefault((need.queue, next(fitting, "")), [0, 0])
        count[0] += 1
        count[1] += need.ranks
    return tuple(
        QueueNeed(queue=queue, gpu=gpu, jobs=jobs, gpus=ranks) for (queue, gpu), (jobs, ranks) in sorted(counts.items())
    )


def simulate_added_nodes(needs: Sequence[JobNeed], gpu: GpuRecord, nodes: int, gpus_per_node: int) -> AddedNodes:
    """The waiting jobs in their order, each started if there is room for it; later ones may pass one that has none.

    A job of more ranks than a node has GPUs takes whole nodes and, for what is left, a part of one.
    """
    free = [0] * gpus_per_node + [nodes]
    started, waiting, too_large = [], [], 0
    for need in needs:
        if not need.waits:
            continue
        if verdict_on(need, gpu) is Verdict.EXCEEDS:
            too_large += 1
        elif _place(free, need.ranks):
            started.append(need)
        else:
            waiting.append(need)
    return AddedNodes(
        gpu=gpu.name, nodes=nodes, gpus=nodes * gpus_per_node, started_jobs=len(started),
        started_gpus=sum(need.ranks for need in started), waiting_jobs=len(waiting),
        waiting_gpus=sum(need.ranks for need in waiting), too_large_jobs=too_large,
    )  # fmt: skip


def _place(free: list[int], ranks: int) -> bool:
    """Takes the GPUs, if there are enough. `free[n]` counts the nodes that have n GPUs left: nodes are all alike."""
    gpus_per_node = len(free) - 1
    whole, rest = divmod(ranks, gpus_per_node)
    if free[gpus_per_node] < whole:
        return False
    free[gpus_per_node] -= whole
    free[0] += whole
    if not rest:
        return True
    fullest = next((left for left in range(rest, gpus_per_node + 1) if free[left]), None)
    if fullest is None:
        free[gpus_per_node] += whole
        free[0] -= whole
        return False
    free[fullest] -= 1
    free[fullest - rest] += 1
    return True
