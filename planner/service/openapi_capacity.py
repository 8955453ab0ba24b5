"""What would be on other GPUs, and with more of them, as `GET /v1/capacity` answers it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from pydantic import BaseModel

from planner.hardware.records import GpuRecord
from planner.history.needs import JobNeed
from planner.history.what_if import JobsOnGpu, on_gpu, queue_needs, simulate_added_nodes
from planner.report.statement import Verdict

MOST_JOBS = 200
"""Listed for each GPU; all are counted."""


class Counts(BaseModel):
    """By verdict."""

    fits: int
    tight: int
    exceeds: int


class JobThere(BaseModel):
    """One job; bytes are those of its fullest rank. It cannot do without `least_bytes`."""

    system: str
    job_id: str
    name: str
    team: str
    queue: str
    planned_gpu: str
    ranks: int
    waits: bool
    verdict: Verdict
    least_bytes: int
    device_bytes: int
    highest_bytes: int


class OnGpuDocument(BaseModel):
    """The jobs on one type of GPU; `listed` has those that need most first, at most 200."""

    gpu: str
    total_bytes: int
    jobs: Counts
    gpus: Counts
    listed: list[JobThere]


class QueueNeedDocument(BaseModel):
    """GPUs that waiting jobs need: each the smallest on which it does not exceed; none is large enough for gpu ""."""

    queue: str
    gpu: str
    jobs: int
    gpus: int


class AddedDocument(BaseModel):
    """New nodes, and the jobs that wait: those that would start, still wait, or are too large for this GPU."""

    gpu: str
    nodes: int
    gpus: int
    started_jobs: int
    started_gpus: int
    idle_gpus: int
    waiting_jobs: int
    waiting_gpus: int
    too_large_jobs: int


def what_if(
    needs: Sequence[JobNeed], kinds: Sequence[GpuRecord], nodes: int | None, gpus_per_node: int
) -> dict[str, Any]:
    """The members `on`, `needs` and, if there are new nodes, `simulate_added_nodes`; `kinds` has one at least."""
    found: dict[str, Any] = {
        "on": [_on_gpu(on_gpu(needs, kind)) for kind in kinds],
        "needs": [asdict(each) for each in queue_needs(needs, kinds)],
    }
    if nodes is not None:
        changed = simulate_added_nodes(needs, kinds[0], nodes, gpus_per_node)
        found["added"] = {**asdict(changed), "idle_gpus": changed.idle_gpus}
    return found


def _on_gpu(found: JobsOnGpu) -> dict[str, Any]:
    return {
        "gpu": found.gpu,
        "total_bytes": found.total_bytes,
        "jobs": {verdict.value: found.jobs(verdict) for verdict in Verdict},
        "gpus": {verdict.value: found.gpus(verdict) for verdict in Verdict},
        "listed": [_job(need, verdict) for need, verdict in found.judged[:MOST_JOBS]],
    }


def _job(need: JobNeed, verdict: Verdict) -> dict[str, Any]:
    plain = asdict(need)
    plain["planned_gpu"] = plain.pop("gpu")
    del plain["capacity_bytes"]
    return {**plain, "verdict": verdict}
