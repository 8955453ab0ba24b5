"""The endpoint of the capacity that jobs request, are predicted to take, and took, and of what would be elsewhere."""

from __future__ import annotations

import asyncio
from datetime import datetime
from typing import Annotated, Any

from fastapi import APIRouter, Query

from planner.job.named_gpus import look_up
from planner.service.history.capacity import (
    Capacity,
    CapacitySums,
    JobsOnGpu,
    QueueNeed,
    SharedGpu,
    judge_on,
    queue_needs,
    sum_capacity,
)
from planner.service.http.dependencies import Injected, refuse_without_zone
from planner.service.http.openapi import Answer

router = APIRouter(tags=["capacity"])
MOST_GPUS = 16


class CapacityDocument(Answer):
    """All of it; rows by team, queue and GPU, in that order."""

    since: datetime | None = None
    rows: list[Capacity]
    totals: CapacitySums
    shared: list[SharedGpu] | None = None
    """GPUs that several open jobs name as theirs."""
    on: list[JobsOnGpu] | None = None
    needs: list[QueueNeed] | None = None
    left_out: int | None = None
    """Jobs that were not looked at for `on` and `needs`, because there are too many."""


@router.get(
    "/v1/capacity",
    summary="GPU memory by team, queue and GPU",
    response_model=CapacityDocument,
    response_model_exclude_none=True,
)
async def capacity(
    deps: Injected,
    since: Annotated[
        datetime | None,
        Query(description="leaves out verdicts of jobs that ended before this moment, such as 2026-01-31T12:00:00Z"),
    ] = None,
    on: Annotated[
        list[str],
        Query(max_length=MOST_GPUS, description="types of GPU, as the catalog has them: what would be on them"),
    ] = [],  # noqa: B006  FastAPI copies it
) -> dict[str, Any]:
    """Requested, predicted and measured bytes, headroom, and wrong verdicts.

    With `on`, also what would be there: each job's verdict on these GPUs, and which of them the waiting jobs need.
    Reckoned from stored plans: planning a job for that GPU says it exactly.
    """
    refuse_without_zone(since, "query.since")
    kinds = [look_up(name, place="query.on") for name in on]
    rows = await asyncio.to_thread(deps.history.capacity, since)
    document: dict[str, Any] = {
        "schema": "planner.capacity/1",
        "since": since,
        "rows": rows,
        "totals": sum_capacity(rows),
    }
    if shared := await asyncio.to_thread(deps.history.read_shared_gpus):
        document["shared"] = shared
    if kinds:
        needs, left_out = await asyncio.to_thread(deps.history.read_needs, since)
        document |= {
            "on": [await asyncio.to_thread(judge_on, needs, kind) for kind in kinds],
            "needs": await asyncio.to_thread(queue_needs, needs, kinds),
            "left_out": left_out,
        }
    return document
