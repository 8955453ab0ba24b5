"""Checks: does this job fit? Answered within a second, by a verdict or by `pending`."""

from __future__ import annotations

import asyncio
import json
import logging
import uuid
from datetime import UTC, datetime
from functools import lru_cache
from typing import Annotated

from fastapi import APIRouter, Depends, Header, Request, Response

from planner.history.checks import Check
from planner.history.faults import HistoryUnavailableError
from planner.report.statement import Plan, Verdict, from_json
from planner.report.text import deciding, one_line
from planner.service import documents
from planner.service.bodies import JSON, job_of
from planner.service.desk import Pending
from planner.service.office import Office, office
from planner.service.preferences import preferences
from planner.service.routes.plans import pending
from planner.spec.job import Job

router = APIRouter(tags=["checks"])
SCHEMA = "planner.check/1"
_log = logging.getLogger("planner.service")


@router.post("/v1/checks", summary="Does this job fit?", **documents.check_a_job)
async def check(
    request: Request,
    here: Annotated[Office, Depends(office)],
    system: Annotated[str, Header(alias="X-Planner-System", max_length=63)] = "",
    check_id: Annotated[
        str | None,
        Header(alias="X-Planner-Check", pattern="^[A-Za-z0-9_.:-]{1,64}$", description="of a check that was pending"),
    ] = None,
) -> Response:
    """The verdict if the plan is known or quickly made, else 202 `pending`; asking again gets the verdict.

    Each check is remembered; `X-Planner-System` says which door asked (slurm, ray, kubernetes, ...).
    """
    wanted = preferences(request)
    job = await job_of(request)
    seconds = here.settings.check_seconds if wanted.wait is None else wanted.wait
    found = await here.desk.check(job, seconds=seconds)
    request.state.plan_id = found.plan_id
    check_id = check_id or uuid.uuid4().hex
    plan = None if isinstance(found, Pending) else _plan(found.text)
    verdict = None if plan is None else plan.verdict
    await asyncio.to_thread(_remember, here, job, check_id, found.plan_id, verdict, system)
    headers = {"Location": f"/v1/plans/{found.plan_id}", **wanted.applied}
    if plan is None:
        return pending(found.plan_id, found.trace_id, SCHEMA, headers, check_id=check_id)
    return Response(_answer(plan, check_id).model_dump_json(by_alias=True), headers=headers, media_type=JSON)


@lru_cache(maxsize=256)
def _plan(text: str) -> Plan:
    return from_json(json.loads(text))


def _answer(plan: Plan, check_id: str) -> documents.Check:
    worst = deciding(plan)
    return documents.Check(
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
    )


def _remember(here: Office, job: Job, check_id: str, plan_id: str, verdict: Verdict | None, system: str) -> None:
    about = job.metadata
    asked = Check(
        check_id=check_id, plan_id=plan_id, asked_at=datetime.now(UTC), verdict=verdict, system=system,
        name=about.name, team=about.team, queue=about.queue,
    )  # fmt: skip
    try:
        here.history.checks.put(asked)
    except HistoryUnavailableError as error:
        # A verdict that is known is told, whether or not it can be noted that somebody asked.
        _log.warning("a check of %s is not remembered: %s", plan_id, error.problem)
