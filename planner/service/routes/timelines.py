"""Endpoint of timelines: the memory of a plan's rank class, event by event."""

from __future__ import annotations

import asyncio
import json
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Query, Request

from planner.service.dependencies import Dependencies, dependencies_of
from planner.service.openapi_timelines import one_timeline
from planner.service.problems import RequestError
from planner.service.reading_process import read_beside
from planner.service.routes.plans import PLAN_ID

router = APIRouter(tags=["plans"])


@router.get("/v1/plans/{plan_id}/timeline", summary="Memory over time", **one_timeline)
async def timeline(
    plan_id: str,
    request: Request,
    deps: Annotated[Dependencies, Depends(dependencies_of)],
    rank: Annotated[int, Query(ge=0, description="the representative of a rank class of the plan")] = 0,
) -> dict[str, Any]:
    """Allocated bytes by category, reserved bytes, and the largest holders at each of some hundred moments.

    It is drawn from the trace, which is kept for the latest plans only: 404 where it is gone.
    """
    plan, text = await asyncio.to_thread(_read, deps, plan_id, rank)
    request.state.plan_id = plan_id
    content = json.dumps([plan, rank, text]).encode()
    found: dict[str, Any] = await read_beside(
        "planner.service.plan_timelines:read_timeline",
        content,
        "application/json",
        remedy="planner plan --timeline FILE.html draws it, however long that takes",
    )
    return found


def _read(deps: Dependencies, plan_id: str, rank: int) -> tuple[str, str]:
    plan = deps.history.plans.text(plan_id) if PLAN_ID.fullmatch(plan_id) else None
    if plan is None:
        raise RequestError(404, f"there is no plan {plan_id[:40]!a}", remedy="plan the job: POST /v1/plans")
    found = json.loads(plan)
    ranks = [each["representative"] for each in found.get("rank_classes", ())]
    if rank not in ranks:
        known = ", ".join(map(str, ranks[:20]))
        raise RequestError(422, f"rank {rank} represents no class of this plan", allowed=known, place="query.rank")
    text = deps.history.traces.texts(found["trace_id"]).get(rank)
    if text is None or "job" not in found:
        raise RequestError(
            404,
            f"the trace of {plan_id} is not kept, or not stored yet",
            allowed="traces of the latest plans of specs",
            remedy="planner plan --timeline FILE.html draws it anew",
        )
    return plan, text
