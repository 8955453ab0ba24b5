"""Sums what several open jobs are predicted to take of one GPU: those that name the same GPU as theirs."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from datetime import datetime

from sqlalchemy import select

from planner.hardware.catalog import by_name
from planner.service.history.database import Database
from planner.service.history.job_table import is_open
from planner.service.history.plan_table import RankClassSummary, rank_classes_of
from planner.service.history.schema import JOBS, PLANS
from planner.verdict import Verdict, decide

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
        classes = rank_classes_of(connection, list({plan_id for jobs in shared.values() for _, plan_id, _ in jobs}))
    found = [_sum(uuid, jobs, classes) for uuid, jobs in shared.items()]
    return tuple(sorted(found, key=lambda one: (one.total_bytes - one.predicted_bytes, one.gpu_uuid))[:MOST_SHARED])


def _sum(uuid: str, jobs: list[tuple[str, str, str]], classes: dict[str, tuple[RankClassSummary, ...]]) -> SharedGpu:
    fullest = [max(classes[plan_id], key=lambda one: one.device_bytes) for _, plan_id, _ in jobs if plan_id in classes]
    gpu = by_name(jobs[0][2])
    total = gpu.total_bytes if gpu is not None else 0
    least = sum(one.allocated_bytes + one.device_bytes - one.reserved_bytes for one in fullest)
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
