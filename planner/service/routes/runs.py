"""Endpoints of runs: a program as it is, on paper, behind walls."""

from __future__ import annotations

import asyncio
from typing import Annotated

from fastapi import APIRouter, Depends, Request, Response

from planner.report.program_statement import SCHEMA
from planner.service import openapi_runs
from planner.service.bearer import code_runners_only
from planner.service.body_contents import JSON
from planner.service.dependencies import Dependencies, dependencies_of
from planner.service.plan_provider import PlanPending
from planner.service.prefer_header import read_prefer_header
from planner.service.problems import RequestError
from planner.service.routes.plans import PLAN_ID, pending, stored_flag
from planner.service.run_requests import run_of
from planner.service.user_code import refuse_programs

router = APIRouter(tags=["runs"])
InjectedDependencies = Annotated[Dependencies, Depends(dependencies_of)]
_HEAD = f'{{"schema":"{SCHEMA}",'


@router.post("/v1/runs", summary="Run a program on paper", **openapi_runs.run_a_program)
async def run(request: Request, deps: InjectedDependencies) -> Response:
    """What every rank of a training program will hold: it is run, unedited, on a GPU that is not there.

    Its files are a tarball (the body; the command stands in the query), or lie in a folder that the service shares
    with its users (`path` in a JSON body). It is run each time it is asked for; equal requests at one time are one.
    `Prefer: wait=N` ends the work after N seconds with 504; `Prefer: respond-async, wait=N` answers 202 by then, and
    the run goes on: `GET /v1/runs/{plan_id}` has it when it is done, and the same request sent again waits for it, or
    says why it failed.
    """
    refuse_programs(deps.settings)
    code_runners_only(request, "a bearer token for code of users is needed to have a program run")
    wanted = read_prefer_header(request)
    asked = await run_of(request, deps.settings)
    seconds = wanted.wait or 0.0 if wanted.respond_async else wanted.wait
    found = await deps.plan_provider.run(asked, seconds=seconds, keep=wanted.respond_async)
    request.state.plan_id = found.plan_id
    headers = {"Location": f"/v1/runs/{found.plan_id}", **wanted.headers}
    if isinstance(found, PlanPending):
        return pending(found.plan_id, found.trace_id, "planner.run.pending/1", headers)
    return Response(found.text, headers={**headers, **stored_flag(found)}, media_type=JSON)


@router.get("/v1/runs/{plan_id}", summary="A run that was made", **openapi_runs.one_run)
async def run_by_id(plan_id: str, request: Request, deps: InjectedDependencies) -> Response:
    """The run, exactly as it was answered; 404 as long as it is being made, and if it failed."""
    text = await asyncio.to_thread(deps.history.plans.text, plan_id) if PLAN_ID.fullmatch(plan_id) else None
    if text is None or not text.startswith(_HEAD):
        raise RequestError(404, f"there is no run {plan_id[:40]!a}", remedy="run the program: POST /v1/runs")
    request.state.plan_id = plan_id
    return Response(text, media_type=JSON)
