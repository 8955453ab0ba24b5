"""Endpoints of plans, checks, runs of programs, timelines of plans and replays of snapshots."""

from __future__ import annotations

import asyncio
import dataclasses
import json
import logging
import re
import uuid
from datetime import UTC, datetime
from functools import lru_cache
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Header, Query, Request, Response

from planner.job.bound.lower_bound import Bound
from planner.job.loading import bundle
from planner.job.schema import Job
from planner.report.statement import RUN_SCHEMA, Plan, Verdict, from_json
from planner.report.verdict_text import bound_line, deciding, one_line
from planner.service.history.errors import HistoryUnavailableError
from planner.service.history.records import Check
from planner.service.http import openapi
from planner.service.http.bodies import content_of, job_of, media_type, read_beside, unsupported_error
from planner.service.http.body_readers import JSON
from planner.service.http.dependencies import Dependencies, code_runners_only, dependencies_of, read_prefer_header
from planner.service.http.openapi import one_timeline, replay_a_snapshot
from planner.service.http.problems import RequestError
from planner.service.http.run_requests import run_of
from planner.service.orders import refuse_programs
from planner.service.plan_provider import PlanAnswer, PlanPending

router = APIRouter(tags=["plans"])
PLAN_ID = re.compile(r"pl-[a-z2-7]{26}")
InjectedDependencies = Annotated[Dependencies, Depends(dependencies_of)]


@router.post("/v1/plans", summary="Plan a job", **openapi.plan_a_job)
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


@router.get("/v1/plans/{plan_id}", summary="A plan that was made", **openapi.one_plan)
async def plan_by_id(plan_id: str, request: Request, deps: InjectedDependencies) -> Response:
    """The plan, exactly as it was answered when it was made."""
    text = await asyncio.to_thread(deps.history.plans.text, plan_id) if PLAN_ID.fullmatch(plan_id) else None
    if text is None:
        raise RequestError(404, f"there is no plan {plan_id[:40]!a}", remedy="plan the job: POST /v1/plans")
    request.state.plan_id = plan_id
    return Response(text, media_type=JSON)


@router.get("/v1/plans", summary="The newest plans", **openapi.plan_list)
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
    document = openapi.PendingPlan(schema=schema, plan_id=plan_id, trace_id=trace_id, **more)
    left_out = {"least_bytes"} if document.least_bytes is None else set()
    text = document.model_dump_json(by_alias=True, exclude=left_out)
    return Response(text, 202, {**headers, "Retry-After": "2"}, media_type=JSON)


check_router = APIRouter(tags=["checks"])
CHECK_SCHEMA = "planner.check/1"
_log = logging.getLogger("planner.service")


@check_router.post("/v1/checks", summary="Does this job fit?", **openapi.check_a_job)
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
        return pending(found.plan_id, found.trace_id, CHECK_SCHEMA, headers, **more)
    answer = _by_bound(found, job, bound, check_id) if plan is None else _answer(plan, check_id)
    left_out = {name for name in ("basis", "host") if getattr(answer, name) is None}
    return Response(answer.model_dump_json(by_alias=True, exclude=left_out), headers=headers, media_type=JSON)


@lru_cache(maxsize=256)
def _plan(text: str) -> Plan:
    return from_json(json.loads(text))


def _answer(plan: Plan, check_id: str) -> openapi.Check:
    worst = deciding(plan)
    return openapi.Check(
        schema=CHECK_SCHEMA,
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


def _host(plan: Plan) -> openapi.CheckedHost | None:
    if plan.host is None or plan.host.verdict is None:
        return None
    fullest = plan.host.fullest
    return openapi.CheckedHost(
        verdict=plan.host_verdict,
        nodes=fullest.nodes,
        bytes=fullest.peak.bytes,
        interval_bytes=fullest.peak.interval_bytes,
        capacity_bytes=plan.host.capacity_bytes,
        headroom_bytes=plan.host.headroom_bytes,
    )


def _by_bound(found: PlanAnswer | PlanPending, job: Job, bound: Bound, check_id: str) -> openapi.Check:
    least = bound.least_bytes
    return openapi.Check(
        schema=CHECK_SCHEMA,
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


run_router = APIRouter(tags=["runs"])
_HEAD = f'{{"schema":"{RUN_SCHEMA}",'


@run_router.post("/v1/runs", summary="Run a program on paper", **openapi.run_a_program)
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


@run_router.get("/v1/runs/{plan_id}", summary="A run that was made", **openapi.one_run)
async def run_by_id(plan_id: str, request: Request, deps: InjectedDependencies) -> Response:
    """The run, exactly as it was answered; 404 as long as it is being made, and if it failed."""
    text = await asyncio.to_thread(deps.history.plans.text, plan_id) if PLAN_ID.fullmatch(plan_id) else None
    if text is None or not text.startswith(_HEAD):
        raise RequestError(404, f"there is no run {plan_id[:40]!a}", remedy="run the program: POST /v1/runs")
    request.state.plan_id = plan_id
    return Response(text, media_type=JSON)


timeline_router = APIRouter(tags=["plans"])


@timeline_router.get("/v1/plans/{plan_id}/timeline", summary="Memory over time", **one_timeline)
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
        "planner.service.http.body_readers:read_timeline",
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


replay_router = APIRouter(tags=["replays"])
BYTES = "application/octet-stream"


@replay_router.post("/v1/replays", summary="Explain a memory snapshot", **replay_a_snapshot)
async def replay(
    request: Request,
    conf: Annotated[
        str | None, Query(max_length=1000, description="what this PYTORCH_ALLOC_CONF would have reserved")
    ] = None,
) -> dict[str, Any]:
    """As `planner replay`: how many decisions of the allocator are replayed, and which lines held how much and when.

    The body is what `torch.cuda.memory._dump_snapshot` wrote, also as .gz or .xz. It is read as plain data, in a
    process of its own; nothing of it is stored.
    """
    if (kind := media_type(request)) != BYTES:
        raise unsupported_error(kind, BYTES)
    found: dict[str, Any] = await read_beside(
        "planner.service.http.body_readers:read_replay",
        await content_of(request),
        "" if conf is None else f"={conf}",
        remedy="planner replay SNAPSHOT takes as long as it needs, on your machine",
    )
    return found
