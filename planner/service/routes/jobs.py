"""Endpoints of jobs: which plan was made for each, where it runs, and what it took."""

from __future__ import annotations

import asyncio
import dataclasses
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Query, Request

from planner.history.history_errors import HistoryError, HistoryUnavailableError
from planner.history.job_values import BoundJob, JobChange
from planner.service import openapi_models
from planner.service.bodies import object_of
from planner.service.dependencies import Dependencies, dependencies_of
from planner.service.job_bodies import BoundJobBody, change_of, job_document
from planner.service.job_failures import beside_plan
from planner.service.problems import RequestError

router = APIRouter(tags=["jobs"])


# A job's id may hold a slash, which arrives decoded: the rest of the path is the id.
@router.put("/v1/jobs/{system}/{job_id:path}", summary="Tell of a job", **openapi_models.bind_a_job)
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


@router.get("/v1/jobs", summary="The jobs told of last", **openapi_models.job_list)
async def jobs(
    deps: Annotated[Dependencies, Depends(dependencies_of)],
    limit: Annotated[int, Query(ge=1, le=1000)] = 100,
    plan_id: Annotated[str | None, Query(max_length=253)] = None,
) -> dict[str, Any]:
    """Summaries: what was predicted and measured of the rank that took the most of its device."""
    found = await asyncio.to_thread(deps.history.list_jobs, limit, plan_id)
    return {"schema": "planner.jobs/1", "jobs": [dataclasses.asdict(each) for each in found]}


@router.get("/v1/jobs/{system}/{job_id:path}", summary="What is known of a job", **openapi_models.one_job)
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
