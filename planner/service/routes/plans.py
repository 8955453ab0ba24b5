"""Endpoints of plans: makes one, and reads those that were made before."""

from __future__ import annotations

import asyncio
import dataclasses
import re
from datetime import datetime
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Query, Request, Response

from planner.report.statement import Verdict
from planner.service import openapi_models
from planner.service.bodies import job_of
from planner.service.body_contents import JSON
from planner.service.dependencies import Dependencies, dependencies_of
from planner.service.plan_provider import PlanAnswer, PlanPending
from planner.service.prefer_header import read_prefer_header
from planner.service.problems import RequestError

router = APIRouter(tags=["plans"])
PLAN_ID = re.compile(r"pl-[a-z2-7]{26}")
InjectedDependencies = Annotated[Dependencies, Depends(dependencies_of)]


@router.post("/v1/plans", summary="Plan a job", **openapi_models.plan_a_job)
async def plan(request: Request, deps: InjectedDependencies) -> Response:
    """What every rank of the job will hold, phase by phase, and whether it fits.

    `Prefer: wait=N` ends the work after N seconds with 504; `Prefer: respond-async, wait=N` answers 202 by then, and
    the plan goes on being made. `X-Planner-From-Store` says whether it was there before, `X-Planner-Stored` whether
    it is there now: a plan is answered even if the history cannot be reached.
    """
    wanted = read_prefer_header(request)
    job = await job_of(request)
    if wanted.respond_async:
        found = await deps.plan_provider.check(job, seconds=wanted.wait or 0.0)
    else:
        found = await deps.plan_provider.plan(job, seconds=wanted.wait)
    request.state.plan_id = found.plan_id
    headers = {"Location": f"/v1/plans/{found.plan_id}", **wanted.headers}
    if isinstance(found, PlanPending):
        return pending(found.plan_id, found.trace_id, "planner.plan.pending/1", headers)
    said = {**stored_flag(found), "X-Planner-From-Store": _flag(found.from_store)}
    return Response(found.text, headers={**headers, **said}, media_type=JSON)


def stored_flag(found: PlanAnswer) -> dict[str, str]:
    """The header that says whether the history has it."""
    return {"X-Planner-Stored": _flag(found.stored)}


def _flag(value: bool) -> str:
    return "true" if value else "false"


@router.get("/v1/plans/{plan_id}", summary="A plan that was made", **openapi_models.one_plan)
async def plan_by_id(plan_id: str, request: Request, deps: InjectedDependencies) -> Response:
    """The plan, exactly as it was answered when it was made."""
    text = await asyncio.to_thread(deps.history.plans.text, plan_id) if PLAN_ID.fullmatch(plan_id) else None
    if text is None:
        raise RequestError(404, f"there is no plan {plan_id[:40]!a}", remedy="plan the job: POST /v1/plans")
    request.state.plan_id = plan_id
    return Response(text, media_type=JSON)


@router.get("/v1/plans", summary="The newest plans", **openapi_models.plan_list)
async def plans(
    deps: InjectedDependencies,
    limit: Annotated[int, Query(ge=1, le=1000)] = 100,
    before: Annotated[datetime | None, Query(description="goes on from `stored_at` of the last plan")] = None,
    team: Annotated[str | None, Query(max_length=253)] = None,
    queue: Annotated[str | None, Query(max_length=253)] = None,
    verdict: Verdict | None = None,
) -> dict[str, Any]:
    """Summaries, newest first. Requested and predicted bytes are sums over all ranks of a job."""
    if before is not None and before.tzinfo is None:
        raise RequestError(
            422, "the moment has no time zone", allowed="such as 2026-01-31T12:00:00Z", place="query.before"
        )
    found = await asyncio.to_thread(
        deps.history.plans.newest, limit, before=before, team=team, queue=queue, verdict=verdict
    )
    return {"schema": "planner.plans/1", "plans": [dataclasses.asdict(each) for each in found]}


def pending(plan_id: str, trace_id: str, schema: str, headers: dict[str, str], **more: Any) -> Response:
    """202: the plan is being made, and will be found under its id."""
    document = openapi_models.PendingPlan(schema=schema, plan_id=plan_id, trace_id=trace_id, **more)
    left_out = {"least_bytes"} if document.least_bytes is None else set()
    text = document.model_dump_json(by_alias=True, exclude=left_out)
    return Response(text, 202, {**headers, "Retry-After": "2"}, media_type=JSON)
