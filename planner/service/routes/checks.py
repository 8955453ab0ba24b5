"""Endpoints of checks: does this job fit? A verdict or `pending`, within a second."""

from __future__ import annotations

import asyncio
import json
import logging
import uuid
from datetime import UTC, datetime
from functools import lru_cache
from typing import Annotated

from fastapi import APIRouter, Depends, Header, Request, Response

from planner.bound.lower_bound import Bound
from planner.history.check_table import Check
from planner.history.history_errors import HistoryUnavailableError
from planner.job.bundle import bundle
from planner.job.schema import Job
from planner.report.plan_text import bound_line, deciding, one_line
from planner.report.statement import Plan, Verdict, from_json
from planner.service import openapi_models
from planner.service.bodies import job_of
from planner.service.body_contents import JSON
from planner.service.dependencies import Dependencies, dependencies_of
from planner.service.plan_provider import PlanAnswer, PlanPending
from planner.service.prefer_header import read_prefer_header
from planner.service.routes.plans import pending

router = APIRouter(tags=["checks"])
SCHEMA = "planner.check/1"
_log = logging.getLogger("planner.service")


@router.post("/v1/checks", summary="Does this job fit?", **openapi_models.check_a_job)
async def check(
    request: Request,
    deps: Annotated[Dependencies, Depends(dependencies_of)],
    system: Annotated[str, Header(alias="X-Planner-System", max_length=63)] = "",
    check_id: Annotated[
        str | None,
        Header(alias="X-Planner-Check", pattern="^[A-Za-z0-9_.:-]{1,64}$", description="of a check that was pending"),
    ] = None,
) -> Response:
    """The verdict if the plan is known or quickly made, else 202 `pending`; asking again gets the verdict.

    A job whose parameters, gradients and optimizer state alone are more than its GPU has is answered at once:
    `exceeds`, with `"basis": "lower_bound"`, while its plan is made.

    Each check is remembered; `X-Planner-System` says which hook asked (slurm, ray, kubernetes, ...).
    """
    wanted = read_prefer_header(request)
    job = await job_of(request)
    bound = await asyncio.to_thread(deps.plan_provider.bound, job)
    seconds = deps.settings.check_seconds if wanted.wait is None else wanted.wait
    # Of a job that exceeds its bound the plan is made too, since it brings advice, and not waited for.
    found = await deps.plan_provider.check(job, seconds=0.0 if bound.exceeds else seconds)
    request.state.plan_id = found.plan_id
    check_id = check_id or uuid.uuid4().hex
    plan = None if isinstance(found, PlanPending) else _plan(found.text)
    verdict = plan.verdict if plan is not None else Verdict.EXCEEDS if bound.exceeds else None
    await asyncio.to_thread(_remember, deps, job, check_id, found.plan_id, verdict, system)
    headers = {"Location": f"/v1/plans/{found.plan_id}", **wanted.headers}
    if plan is None and not bound.exceeds:
        more = {"check_id": check_id, "least_bytes": bound.least_bytes}
        return pending(found.plan_id, found.trace_id, SCHEMA, headers, **more)
    answer = _by_bound(found, job, bound, check_id) if plan is None else _answer(plan, check_id)
    left_out = {name for name in ("basis", "host") if getattr(answer, name) is None}
    return Response(answer.model_dump_json(by_alias=True, exclude=left_out), headers=headers, media_type=JSON)


@lru_cache(maxsize=256)
def _plan(text: str) -> Plan:
    return from_json(json.loads(text))


def _answer(plan: Plan, check_id: str) -> openapi_models.Check:
    worst = deciding(plan)
    return openapi_models.Check(
        schema=SCHEMA,
        check_id=check_id,
        plan_id=plan.plan_id,
        trace_id=plan.trace_id,
        verdict=plan.verdict,
        calibrated=plan.calibrated,
        device_bytes=worst.peak.device_bytes,
        interval_bytes=worst.peak.interval_bytes,
        capacity_bytes=worst.capacity_bytes,
        headroom_bytes=worst.headroom_bytes,
        message=one_line(plan),
        host=_host(plan),
    )


def _host(plan: Plan) -> openapi_models.CheckedHost | None:
    if plan.host is None or plan.host.verdict is None:
        return None
    fullest = plan.host.fullest
    return openapi_models.CheckedHost(
        verdict=plan.host_verdict,
        nodes=fullest.nodes,
        bytes=fullest.peak.bytes,
        interval_bytes=fullest.peak.interval_bytes,
        capacity_bytes=plan.host.capacity_bytes,
        headroom_bytes=plan.host.headroom_bytes,
    )


def _by_bound(found: PlanAnswer | PlanPending, job: Job, bound: Bound, check_id: str) -> openapi_models.Check:
    least = bound.least_bytes
    return openapi_models.Check(
        schema=SCHEMA,
        check_id=check_id,
        plan_id=found.plan_id,
        trace_id=found.trace_id,
        verdict=Verdict.EXCEEDS,
        calibrated=False,
        device_bytes=least,
        interval_bytes=(least, least),
        capacity_bytes=bound.capacity_bytes,
        headroom_bytes=bound.capacity_bytes - least,
        message=bound_line(bundle(job), bound),
        basis="lower_bound",
    )


def _remember(deps: Dependencies, job: Job, check_id: str, plan_id: str, verdict: Verdict | None, system: str) -> None:
    about = job.metadata
    asked = Check(
        check_id=check_id, plan_id=plan_id, asked_at=datetime.now(UTC), verdict=verdict, system=system,
        name=about.name, team=about.team, queue=about.queue,
    )  # fmt: skip
    try:
        deps.history.checks.put(asked)
    except HistoryUnavailableError as error:
        # A verdict that is known is told, whether or not it can be noted that somebody asked.
        _log.warning("a check of %s is not remembered: %s", plan_id, error.problem)
