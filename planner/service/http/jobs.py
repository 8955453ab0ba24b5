"""Endpoints of jobs: reports of one, and what is known of it."""

from __future__ import annotations

import asyncio
import dataclasses
import json
from typing import Annotated, Any

from fastapi import APIRouter, Query, Request
from pydantic import AliasChoices, BaseModel, ConfigDict, Field

from planner.errors import PlannerError
from planner.report.statement import from_json
from planner.service.history.errors import HistoryError, HistoryUnavailableError
from planner.service.history.job_table import BoundJob, JobChange, JobSummary, whose_memory
from planner.service.history.store import History
from planner.service.http.bodies import read_body, receive_content
from planner.service.http.body_readers import JSON
from planner.service.http.dependencies import Dependencies, Injected
from planner.service.http.job_reports import JOB_EXAMPLE, MeasuredRankBody, Moment, read_change
from planner.service.http.limits import write_in_turn
from planner.service.http.openapi import WRITES, Answer, in_json, problems, takes
from planner.service.http.problems import RequestError
from planner.truth.failures.explanation import explain


class BoundJobBody(BaseModel):
    """A job and the plan that was made for it. Of a PUT, `measured` holds the ranks that it reported."""

    model_config = ConfigDict(populate_by_name=True, from_attributes=True)
    schema_: str = Field("planner.bound_job/1", alias="schema")
    system: str
    id: str = Field(validation_alias=AliasChoices("id", "job_id"))
    plan_id: str
    team: str
    queue: str
    hosts: list[str]
    gpu_uuids: list[str]
    started_at: Moment
    ended_at: Moment
    outcome: str
    cause: str = ""
    """Why it ran out of memory; empty where it did not, or nobody told."""
    memory: str = ""
    failure: str = ""
    beside_plan: list[str] = []
    """Of one job that ran out of GPU memory: in what its end and its plan differ."""
    lapses_at: Moment = None
    measured: list[MeasuredRankBody]


def _job_document(job: BoundJob) -> BoundJobBody:
    cause = job.cause.value if job.cause is not None else ""
    given = {field.name: getattr(job, field.name) for field in dataclasses.fields(job)}
    memory = whose_memory(cause) if cause else ""
    return BoundJobBody.model_validate({**given, "cause": cause, "memory": memory, "outcome": job.outcome.value})


class JobList(Answer):
    jobs: list[JobSummary]


router = APIRouter(tags=["jobs"])


# A job's id may hold a slash, which arrives decoded: the rest of the path is the id.
@router.put(
    "/v1/jobs/{system}/{job_id:path}",
    summary="Tell of a job",
    response_model=BoundJobBody,
    responses=problems(*WRITES, 404, 409),
    openapi_extra=takes(in_json({"$ref": "#/components/schemas/JobBody"}, JOB_EXAMPLE)),
)
async def bind(system: str, job_id: str, request: Request, deps: Injected) -> BoundJobBody:
    """Merges what is newly known: the plan, team, queue, hosts, GPUs, start, end, and the peaks of ranks.

    Every rank may tell what it knows, in any order; telling the same again changes nothing.
    """
    whose = json.dumps([system, job_id])
    change = await read_body(deps, read_change, await receive_content(request, JSON), whose)
    bound = await write_in_turn(_bind, deps, system, job_id, change)
    request.state.plan_id = bound.plan_id
    return _job_document(bound)


@router.get("/v1/jobs", summary="The jobs reported last", response_model=JobList, responses=problems(422))
async def jobs(
    deps: Injected,
    limit: Annotated[int, Query(ge=1, le=1000)] = 100,
    plan_id: Annotated[str | None, Query(max_length=253)] = None,
) -> dict[str, Any]:
    """Summaries: what was predicted and measured of the rank that took the most of its device."""
    listed = await asyncio.to_thread(deps.history.jobs.list, limit, plan_id)
    return {"schema": "planner.jobs/1", "jobs": listed}


@router.get(
    "/v1/jobs/{system}/{job_id:path}",
    summary="What is known of a job",
    response_model=BoundJobBody,
    responses=problems(404),
)
async def job_by_id(system: str, job_id: str, deps: Injected) -> BoundJobBody:
    """The job as all of its ranks have told it."""
    job = await asyncio.to_thread(deps.history.jobs.get, system, job_id)
    if job is None:
        raise RequestError(404, "this job is not known", remedy="PUT it")
    beside = await asyncio.to_thread(_beside_plan, deps.history, job)
    return _job_document(job).model_copy(update={"beside_plan": beside})


def _beside_plan(history: History, job: BoundJob) -> list[str]:
    """In what the end of a job that ran out of GPU memory and its plan differ; empty where nothing was told."""
    if job.cause is None or job.cause.of_host or not job.failure:
        return []
    document = history.plans.document(job.plan_id)
    if document is None:
        return []
    try:
        return [parting.sentence for parting in explain(job.failure, plan=from_json(document)).partings]
    except PlannerError:
        return []  # a plan of an earlier version, or words that this version does not know


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
