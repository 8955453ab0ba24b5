"""Endpoints of plans, checks, timelines of plans and replays of snapshots."""

from __future__ import annotations

import asyncio
import hashlib
import json
import logging
import uuid
from collections import OrderedDict
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Header, Query, Request, Response
from pydantic import BaseModel, ConfigDict

from planner.allocator.host.statement import HostVerdict
from planner.job.loading import bundle
from planner.report import statement
from planner.report.statement import Verdict
from planner.report.verdict_text import bound_sentence, deciding, job_sentence
from planner.service.history.errors import HistoryUnavailableError
from planner.service.history.plan_table import PlanSummary
from planner.service.history.records import Check
from planner.service.http.bodies import call_beside, read_beside, receive_content, receive_job
from planner.service.http.body_readers import JSON, YAML, read_replay, read_timeline
from planner.service.http.dependencies import (
    Dependencies,
    Injected,
    read_prefer_header,
    refuse_without_zone,
)
from planner.service.http.limits import write_in_turn
from planner.service.http.openapi import A_JOB, WAITS, WRITES, Answer, in_json, prefer, problems, takes
from planner.service.http.problems import RequestError
from planner.service.http.run_requests import EXAMPLE, HEADER, RunBody, receive_job_or_program, refuse_runs

router = APIRouter(tags=["plans"])
_log = logging.getLogger("planner.service")


class PendingPlan(Answer):
    """A plan that is being made: ask for it by its id, or send the job again."""

    plan_id: str
    trace_id: str
    verdict: str = "pending"
    check_id: str | None = None
    least_bytes: int | None = None
    """Of a check: the fullest rank will take at least so much of its GPU."""


class Plan(Answer):
    """A plan, as `planner plan` or `planner run --format json` prints it; abridged here."""

    model_config = ConfigDict(extra="allow")
    plan_id: str
    trace_id: str
    verdict: Verdict
    calibrated: bool
    job: dict[str, Any] | None = None
    """Of a spec: its bundle."""
    command: list[str] | None = None
    """Of a program, and of a spec with `trainer`, which is one."""
    gpu: str
    nodes: int
    gpus_per_node: int
    rank_classes: list[dict[str, Any]]
    host: dict[str, Any] | None = None
    advice: list[dict[str, Any]] | None = None
    without_compile: dict[str, Any] | None = None
    """Of a job under torch.compile: what the eager step takes, and what its peak has more."""
    another_torch: dict[str, Any] | None = None
    """Of a job whose release of torch is not offered: the one that it was planned with, and the relative difference by
    which its interval is wider."""
    provenance: dict[str, str]
    notes: list[str]
    """What was assumed, and what was not counted."""
    sources: list[str]
    """Where the figures outside the allocator and the intervals come from."""
    seconds: dict[str, float]


class PlanList(Answer):
    plans: list[PlanSummary]


def _made(description: str) -> dict[int | str, dict[str, Any]]:
    return {202: {"model": PendingPlan, "description": description}}


_PROGRAM = RunBody.model_json_schema()
_TARBALL = {"schema": {"type": "string", "format": "binary"}}
_A_JOB_OR_PROGRAM = {
    JSON: {"schema": {"anyOf": [A_JOB[JSON]["schema"], _PROGRAM]}},
    YAML: A_JOB[YAML],
    "application/gzip": _TARBALL,
    "application/x-tar": _TARBALL,
}
_IN_HEADER = {
    "name": HEADER,
    "in": "header",
    "required": False,
    "description": "Of a tarball (required): what a JSON body says of a program, without a path.",
    "content": in_json(_PROGRAM, EXAMPLE),
}


@router.post(
    "/v1/plans",
    summary="Plan a job",
    response_model=Plan,
    responses=_made("it is being made") | problems(*WRITES, 401, 403, 410, 504),
    openapi_extra=takes(_A_JOB_OR_PROGRAM) | {"parameters": [_IN_HEADER, prefer(WAITS)]},
)
async def plan(request: Request, deps: Injected) -> Response:
    """What every rank of a job will hold, phase by phase, and whether it fits: of a spec, or of a program.

    A program is run, unedited, on a GPU that is not there. Its files are a tarball (the body; the command stands in the
    header `X-Planner-Run`, as JSON), or lie in a folder that the service shares with its users (`path` in a JSON body).
    It is run each time it is asked for; equal requests at one time are one.

    `Prefer: wait=N` ends the work after N seconds with 504; `Prefer: respond-async, wait=N` answers 202 by then, and
    the plan goes on being made: `GET /v1/plans/{plan_id}` has it when it is done, and the same request sent again waits
    for it, or says why it failed. `DELETE` of the same path ends the run of a program. `X-Planner-From-Store` says
    whether the plan was there before, `X-Planner-Stored` whether it is there now: a plan is answered even if the
    history cannot be reached.
    """
    wanted, asked = read_prefer_header(request), await receive_job_or_program(request, deps)
    seconds = wanted.wait or 0.0 if wanted.respond_async else wanted.wait
    answer = await deps.plan_provider.plan(asked, seconds=seconds, keep=wanted.respond_async)
    request.state.plan_id = answer.plan_id
    headers = {"Location": f"/v1/plans/{answer.plan_id}", **wanted.headers}
    if answer.is_pending:
        pending = PendingPlan(schema="planner.plan.pending/1", plan_id=answer.plan_id, trace_id=answer.trace_id)
        return _pending(pending, headers)
    headers |= {"X-Planner-Stored": _flag(answer.stored), "X-Planner-From-Store": _flag(answer.from_store)}
    return Response(answer.text, headers=headers, media_type=JSON)


def _pending(document: PendingPlan, headers: Mapping[str, str]) -> Response:
    left_out = {"least_bytes"} if document.least_bytes is None else set()
    text = document.model_dump_json(by_alias=True, exclude=left_out)
    return Response(text, 202, {**headers, "Retry-After": "2"}, media_type=JSON)


def _flag(value: bool) -> str:
    return "true" if value else "false"


@router.get("/v1/plans/{plan_id}", summary="A plan that was made", response_model=Plan, responses=problems(404))
async def plan_by_id(plan_id: str, request: Request, deps: Injected) -> Response:
    """The plan, exactly as it was answered when it was made."""
    text = await asyncio.to_thread(_stored_plan, deps, plan_id)
    request.state.plan_id = plan_id
    return Response(text, media_type=JSON)


class EndedRun(Answer):
    plan_id: str


@router.delete(
    "/v1/plans/{plan_id}",
    summary="End the run of a program",
    response_model=EndedRun,
    responses=problems(401, 403, 404),
    openapi_extra={"security": [{"bearer": []}, {}]},
)
async def end_run(plan_id: str, request: Request, deps: Injected) -> EndedRun:
    """Its processes are killed at once, and one that waits for its turn is not started. Those who wait for it are
    answered 410. A plan that is made stays as it is."""
    refuse_runs(request, deps)
    if not await deps.plan_provider.end_run(plan_id):
        raise RequestError(
            404, f"no run {plan_id[:40]!a} is under way", remedy=f"GET {request.url.path[:80]}: it may be done"
        )
    return EndedRun(schema="planner.run.ended/1", plan_id=plan_id)


def _stored_plan(deps: Dependencies, plan_id: str) -> str:
    text = deps.history.plans.text(plan_id)
    if text is None:
        remedy = "plan the job: POST /v1/plans; a program may still run"
        raise RequestError(404, f"there is no plan {plan_id[:40]!a}", remedy=remedy)
    return text


@router.get("/v1/plans", summary="The newest plans", response_model=PlanList, responses=problems(422))
async def plans(
    deps: Injected,
    limit: Annotated[int, Query(ge=1, le=1000)] = 100,
    before: Annotated[datetime | None, Query(description="goes on from `stored_at` of the last plan")] = None,
    team: Annotated[str | None, Query(max_length=253)] = None,
    queue: Annotated[str | None, Query(max_length=253)] = None,
    verdict: Verdict | None = None,
) -> dict[str, Any]:
    """Summaries, newest first. Requested and predicted bytes are sums over all ranks of a job."""
    refuse_without_zone(before, "query.before")
    newest = await asyncio.to_thread(
        deps.history.plans.newest, limit, before=before, team=team, queue=queue, verdict=verdict
    )
    return {"schema": "planner.plans/1", "plans": newest}


check_router = APIRouter(tags=["checks"])
CHECK_SCHEMA = "planner.check/1"


class CheckedHost(BaseModel):
    """What the fullest node holds at least in main memory, beside what the job says that there is."""

    verdict: HostVerdict
    nodes: str
    bytes: int
    capacity_bytes: int


class CheckAnswer(Answer):
    """Whether a job fits. Bytes are those of the rank class that decides.

    With `basis` "lower_bound" the plan is not made yet, and the job exceeds whatever it will say: `device_bytes` are
    what the fullest rank takes at least, and so are both ends of the interval.
    """

    check_id: str
    plan_id: str
    trace_id: str
    verdict: Verdict
    calibrated: bool
    device_bytes: int
    interval_bytes: tuple[int, int]
    capacity_bytes: int
    headroom_bytes: int
    message: str
    """One line for people, as `planner check` prints it."""
    basis: Literal["lower_bound"] | None = None
    host: CheckedHost | None = None


@check_router.post(
    "/v1/checks",
    summary="Does this job fit?",
    response_model=CheckAnswer,
    responses=_made("it is being made") | problems(*WRITES, 403),
    openapi_extra=takes(A_JOB, "`wait=N`: at most N seconds instead of the service's own"),
)
async def check(
    request: Request,
    deps: Injected,
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
    wanted, job = read_prefer_header(request), await receive_job(request)
    bound = await asyncio.to_thread(deps.plan_provider.bound, job)
    seconds = deps.settings.check_seconds if wanted.wait is None else wanted.wait
    # Of a job that exceeds its bound the plan is made too, since it brings advice, and not waited for.
    answer = await deps.plan_provider.plan(job, seconds=0.0 if bound.exceeds else seconds, keep=True)
    request.state.plan_id = answer.plan_id
    check_id = check_id or uuid.uuid4().hex
    figures: dict[str, Any] = {"verdict": None}
    if not answer.is_pending:
        figures = await asyncio.to_thread(_checked_plans.read, answer.text)
    elif bound.exceeds:
        least = bound.least_bytes
        figures = {
            "verdict": Verdict.EXCEEDS, "calibrated": False, "device_bytes": least, "interval_bytes": (least, least),
            "capacity_bytes": bound.capacity_bytes, "headroom_bytes": bound.capacity_bytes - least,
            "message": bound_sentence(bundle(job), least, bound.capacity_bytes), "basis": "lower_bound",
        }  # fmt: skip
    about = job.metadata
    asked = Check(
        check_id=check_id, plan_id=answer.plan_id, asked_at=datetime.now(UTC), verdict=figures["verdict"],
        system=system, name=about.name, team=about.team, queue=about.queue,
    )  # fmt: skip
    try:
        await write_in_turn(deps.history.checks.put, asked)
    except HistoryUnavailableError as error:
        # A verdict that is known is told, whether or not it can be noted that somebody asked.
        _log.warning("a check of %s is not remembered: %s", asked.plan_id, error.problem)
    headers = {"Location": f"/v1/plans/{answer.plan_id}", **wanted.headers}
    ids: dict[str, Any] = {"plan_id": answer.plan_id, "trace_id": answer.trace_id}
    ids |= {"schema": CHECK_SCHEMA, "check_id": check_id}
    if figures["verdict"] is None:
        return _pending(PendingPlan(**ids, least_bytes=bound.least_bytes), headers)
    document = CheckAnswer(**ids, **figures)
    left_out = {name for name in ("basis", "host") if getattr(document, name) is None}
    return Response(document.model_dump_json(by_alias=True, exclude=left_out), headers=headers, media_type=JSON)


class _CheckedPlans:
    """What checks answer of the plans used last, by a digest of their text, which may be megabytes and takes tens of
    milliseconds to read; shared by threads."""

    def __init__(self, most: int = 256) -> None:
        self._most, self._figures = most, OrderedDict[bytes, dict[str, Any]]()

    def read(self, text: str) -> dict[str, Any]:
        digest = hashlib.sha256(text.encode()).digest()
        figures = self._figures.pop(digest, None) or _compute_figures(statement.from_json(json.loads(text)))
        self._figures[digest] = figures
        while len(self._figures) > self._most:
            self._figures.popitem(last=False)
        return figures


_checked_plans = _CheckedPlans()


def _compute_figures(plan: statement.Plan) -> dict[str, Any]:
    worst, host = deciding(plan), None
    if plan.host is not None and plan.host.verdict is not None:
        fullest = plan.host.fullest
        host = CheckedHost(
            verdict=plan.host.verdict,
            nodes=fullest.nodes,
            bytes=fullest.peak.bytes,
            capacity_bytes=plan.host.capacity_bytes,
        )
    return {
        "verdict": plan.verdict,
        "calibrated": plan.calibrated,
        "device_bytes": worst.peak.device_bytes,
        "interval_bytes": worst.peak.interval_bytes,
        "capacity_bytes": worst.capacity_bytes,
        "headroom_bytes": worst.headroom_bytes,
        "message": job_sentence(plan),
        "host": host,
    }


timeline_router = APIRouter(tags=["plans"])


class Timeline(Answer):
    """Memory of a rank class over time; abridged here.

    `at` are events of the allocator, ascending; each list is as long. `held` has for each moment
    `[[holder, bytes, count], ...]`, the largest first, and `who` says who the holders are.
    """

    model_config = ConfigDict(extra="allow")
    plan_id: str
    representative: int
    ranks: str
    events: int
    capacity_bytes: int
    outside_bytes: int
    at: list[int]
    places: list[float]
    allocated_bytes: dict[str, list[int]]
    reserved_bytes: list[int]
    phases: list[dict[str, Any]]
    who: list[dict[str, Any]]
    held: list[list[tuple[int, int, int]]]


@timeline_router.get(
    "/v1/plans/{plan_id}/timeline", summary="Memory over time", response_model=Timeline, responses=problems(404, 422)
)
async def timeline(
    plan_id: str,
    request: Request,
    deps: Injected,
    rank: Annotated[int, Query(ge=0, description="the representative of a rank class of the plan")] = 0,
) -> dict[str, Any]:
    """Allocated bytes by category, reserved bytes, and the largest holders at each of some hundred moments.

    It is drawn from the trace, which is kept for the latest plans only: 404 where it is gone.
    """
    request.state.plan_id = plan_id
    async with deps.drawings.turn():
        content = await asyncio.to_thread(_plan_and_trace, deps, plan_id, rank)
        remedy = "planner plan --timeline FILE.html draws it, however long that takes"
        return await call_beside(read_timeline, content, JSON, remedy)


def _plan_and_trace(deps: Dependencies, plan_id: str, rank: int) -> bytes:
    text = _stored_plan(deps, plan_id)
    document = json.loads(text)
    ranks = [rank_class["representative"] for rank_class in document.get("rank_classes", ())]
    if rank not in ranks:
        known = ", ".join(map(str, ranks[:20]))
        raise RequestError(422, f"rank {rank} represents no class of this plan", allowed=known, place="query.rank")
    trace = deps.history.traces.texts(document["trace_id"]).get(rank)
    if trace is None or "job" not in document:
        raise RequestError(
            404,
            f"the trace of {plan_id} is not kept, or not stored yet",
            allowed="traces of the latest plans of specs without `trainer`",
            remedy="planner plan --timeline FILE.html draws it anew",
        )
    return json.dumps([text, rank, trace]).encode()


replay_router = APIRouter(tags=["replays"])
BYTES = "application/octet-stream"


class Replay(Answer):
    """As `planner replay --format json` prints it, with each device's `timeline` and out-of-memory entries."""

    model_config = ConfigDict(extra="allow")
    conf: str
    devices: list[dict[str, Any]]


@replay_router.post(
    "/v1/replays",
    summary="Explain a memory snapshot",
    response_model=Replay,
    responses=problems(*WRITES),
    openapi_extra=takes({BYTES: {"schema": {"type": "string", "format": "binary"}}}),
)
async def replay(
    request: Request,
    deps: Injected,
    conf: Annotated[
        str | None, Query(max_length=1000, description="what this PYTORCH_ALLOC_CONF would have reserved")
    ] = None,
) -> dict[str, Any]:
    """As `planner replay`: how many decisions of the allocator are replayed, and which lines held how much and when.

    The body is what `torch.cuda.memory._dump_snapshot` wrote, also as .gz or .xz. It is read as plain data, in a
    process of its own; nothing of it is stored.
    """
    content, asked = await receive_content(request, BYTES), "" if conf is None else f"={conf}"
    remedy = "planner replay SNAPSHOT takes as long as it needs, on your machine"
    return await read_beside(deps.drawings, read_replay, content, asked, remedy)
