"""Endpoints of jobs, and of the capacity that they request, are predicted to take, and took."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Sequence
from dataclasses import asdict, fields
from datetime import datetime
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Depends, Query, Request
from pydantic import BaseModel, ConfigDict, Field

from planner.job.named_gpus import look_up
from planner.service.history.capacity import Capacity
from planner.service.history.errors import HistoryError, HistoryUnavailableError
from planner.service.history.job_changes import BoundJob, JobChange
from planner.service.http import openapi
from planner.service.http.bodies import object_of
from planner.service.http.dependencies import Dependencies, dependencies_of
from planner.service.http.job_bodies import BoundJobBody, beside_plan, change_of, job_document
from planner.service.http.openapi import AddedDocument, OnGpuDocument, QueueNeedDocument, what_if
from planner.service.http.problems import RequestError

router = APIRouter(tags=["jobs"])


# A job's id may hold a slash, which arrives decoded: the rest of the path is the id.
@router.put("/v1/jobs/{system}/{job_id:path}", summary="Tell of a job", **openapi.bind_a_job)
async def bind(
    system: str, job_id: str, request: Request, deps: Annotated[Dependencies, Depends(dependencies_of)]
) -> BoundJobBody:
    """Merges what is newly known: the plan, team, queue, hosts, GPUs, start, end, and the peaks of ranks.

    Every rank may tell what it knows, in any order; telling the same again changes nothing.
    """
    change = change_of(await object_of(request), system, job_id)
    bound = await asyncio.to_thread(_bind, deps, system, job_id, change)
    request.state.plan_id = bound.plan_id
    return job_document(bound)


@router.get("/v1/jobs", summary="The jobs told of last", **openapi.job_list)
async def jobs(
    deps: Annotated[Dependencies, Depends(dependencies_of)],
    limit: Annotated[int, Query(ge=1, le=1000)] = 100,
    plan_id: Annotated[str | None, Query(max_length=253)] = None,
) -> dict[str, Any]:
    """Summaries: what was predicted and measured of the rank that took the most of its device."""
    found = await asyncio.to_thread(deps.history.list_jobs, limit, plan_id)
    return {"schema": "planner.jobs/1", "jobs": [dataclasses.asdict(each) for each in found]}


@router.get("/v1/jobs/{system}/{job_id:path}", summary="What is known of a job", **openapi.one_job)
async def job_by_id(system: str, job_id: str, deps: Annotated[Dependencies, Depends(dependencies_of)]) -> BoundJobBody:
    """The job as all of its ranks have told it."""
    found = await asyncio.to_thread(deps.history.jobs.get, system, job_id)
    if found is None:
        raise RequestError(404, "nothing was told of this job", remedy="PUT it")
    beside = await asyncio.to_thread(beside_plan, deps.history, found)
    return job_document(found).model_copy(update={"beside_plan": beside})


def _bind(deps: Dependencies, system: str, job_id: str, change: JobChange) -> BoundJob:
    try:
        return deps.history.jobs.bind(system, job_id, change)
    except HistoryUnavailableError:
        raise
    except HistoryError as error:
        if error.place != "plan_id":
            raise
        # The request is well formed; what it stands on is not there (yet).
        raise RequestError(409, error.problem, allowed=error.allowed, remedy=error.remedy, place=error.place) from error


capacity_router = APIRouter(tags=["capacity"])
SCHEMA = "planner.capacity/1"
MOST_GPUS = 16
_COUNTS = tuple(each.name for each in fields(Capacity) if each.name not in ("team", "queue", "gpu"))


class Totals(BaseModel):
    """Sums. Bytes are of all ranks together; requested, predicted and measured are of jobs that have not ended.

    `measured_bytes` are device bytes of the `measured_gpus` ranks that told them, for which their plans had said
    `predicted_of_measured_bytes`. `judged` jobs ended and are remembered; a verdict was wrong if it said that the job
    fits and it ran out of memory, or that it exceeds and it ran.
    """

    jobs: int
    gpus: int
    requested_bytes: int
    predicted_bytes: int
    headroom_bytes: int
    measured_bytes: int
    measured_gpus: int
    predicted_of_measured_bytes: int
    host_requested_bytes: int = 0
    """Main memory that the jobs say their nodes have."""
    host_predicted_bytes: int = 0
    """Main memory that all of their nodes will take."""
    judged: int
    wrong_verdicts: int
    said_fits_ran_out: int
    said_exceeds_ran: int
    ran_out_gpu: int
    """Remembered jobs that ended out of GPU memory; those of which no cause was told are counted here."""
    ran_out_host: int
    """Out of the host's memory."""


class CapacityRow(Totals):
    """One team in one queue on one type of GPU."""

    team: str
    queue: str
    gpu: str


class CapacityDocument(BaseModel):
    """All of it; rows by team, queue and GPU, in that order."""

    model_config = ConfigDict(populate_by_name=True)
    schema_: Literal["planner.capacity/1"] = Field("planner.capacity/1", alias="schema")
    since: datetime | None = None
    rows: list[CapacityRow]
    totals: Totals
    on: list[OnGpuDocument] | None = None
    needs: list[QueueNeedDocument] | None = None
    added: AddedDocument | None = None
    left_out: int | None = None
    """Jobs that were not looked at for `on`, `needs` and `added`, because there are too many."""


@capacity_router.get(
    "/v1/capacity",
    summary="GPU memory by team, queue and GPU",
    response_model=CapacityDocument,
    response_model_exclude_none=True,
)
async def capacity(
    deps: Annotated[Dependencies, Depends(dependencies_of)],
    since: Annotated[
        datetime | None,
        Query(description="leaves out verdicts of jobs that ended before this moment, such as 2026-01-31T12:00:00Z"),
    ] = None,
    on: Annotated[
        list[str],
        Query(max_length=MOST_GPUS, description="types of GPU, as the catalog has them: what would be on them"),
    ] = [],  # noqa: B006  FastAPI copies it
    add_nodes: Annotated[int | None, Query(ge=1, le=10_000, description="new nodes with the first of `on`")] = None,
    gpus_per_node: Annotated[int, Query(ge=1, le=64, description="of the new nodes")] = 8,
) -> dict[str, Any]:
    """Requested, predicted and measured bytes, headroom, and wrong verdicts.

    With `on`, also what would be there: each job's verdict on these GPUs, and which of them the waiting jobs need. With
    `add_nodes`, what new nodes of the first of them would change. Reckoned from stored plans: planning a job for that
    GPU says it exactly.
    """
    if since is not None and since.tzinfo is None:
        raise RequestError(
            422, "the moment has no time zone", allowed="such as 2026-01-31T12:00:00Z", place="query.since"
        )
    if add_nodes is not None and not on:
        raise RequestError(422, "of which GPU the new nodes are is not said", remedy="name it", place="query.on")
    kinds = [look_up(name, place="query.on") for name in on]
    found = document(await asyncio.to_thread(deps.history.capacity, since), since)
    if kinds:
        needs, left_out = await asyncio.to_thread(deps.history.read_needs, since)
        more = await asyncio.to_thread(what_if, needs, kinds, add_nodes, gpus_per_node)
        found |= {**more, "left_out": left_out}
    return found


def document(rows: Sequence[Capacity], since: datetime | None = None) -> dict[str, Any]:
    """The JSON object of the contract."""
    sums = Capacity(team="", queue="", gpu="", **{name: sum(getattr(row, name) for row in rows) for name in _COUNTS})
    totals = _plain(sums)
    for name in ("team", "queue", "gpu"):
        del totals[name]
    return {"schema": SCHEMA, "since": since, "rows": [_plain(row) for row in rows], "totals": totals}


def _plain(row: Capacity) -> dict[str, Any]:
    return {**asdict(row), "headroom_bytes": row.headroom_bytes, "wrong_verdicts": row.wrong_verdicts}
