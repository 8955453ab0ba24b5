"""Endpoints of searches: starts one, tells what is known of it by now, ends it."""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Mapping
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Request
from fastapi.responses import JSONResponse

from planner.planning import pipeline
from planner.searching import requests
from planner.searching.requests import SearchRequest
from planner.service.http import openapi_studies as described
from planner.service.http.bodies import object_of
from planner.service.http.dependencies import Dependencies, dependencies_of, read_prefer_header
from planner.service.http.problems import RequestError
from planner.service.orders import refuse_code
from planner.service.scheduling import search_runner

router = APIRouter(tags=["searches"])
SEARCH_ID = re.compile(r"se-[a-z2-7]{26}")
LOOK_SECONDS = 0.25
_GOES_ON = ("pending", "running")
InjectedDependencies = Annotated[Dependencies, Depends(dependencies_of)]


@router.post("/v1/searches", status_code=202, summary="Search layouts and settings that fit", **described.search)
async def search(request: Request, deps: InjectedDependencies) -> JSONResponse:
    """Which layouts and settings of a job fit, the best first, each proven by a plan.

    202: it runs; `GET /v1/searches/{search_id}` has what is known by now. The same search is run once, answered with
    200 when it is done, and goes on where it was if its time was over, or it was cancelled. `Prefer: wait=N` waits
    for its end, at most N seconds. It goes on if its client is gone.
    """
    wanted = read_prefer_header(request)
    body = await object_of(request)
    asked = await asyncio.to_thread(_request, body, deps)
    if deps.searches is None:
        raise RequestError(501, "this service searches nothing", remedy="deploy planner with its Searches deployment")
    found = await deps.searches.start(asked)
    if wanted.wait:
        found = await _until_over(found, wanted.wait, deps)
    headers = {"Location": f"/v1/searches/{found['search_id']}", **wanted.headers}
    if found["state"] in _GOES_ON:
        return JSONResponse(found, 202, {**headers, "Retry-After": "1"})
    return JSONResponse(found, 200, headers)


@router.get("/v1/searches/{search_id}", summary="A search, as far as it is", **described.one_search)
async def search_by_id(search_id: str, deps: InjectedDependencies) -> dict[str, Any]:
    """Its state, how far it is, and the best candidates that are found by now."""
    return await _stored(search_id, deps)


@router.delete("/v1/searches/{search_id}", summary="End a search", **described.end_search)
async def cancel(search_id: str, deps: InjectedDependencies) -> dict[str, Any]:
    """It ends within a moment, and keeps what it found: asked for again it goes on. One that is over stays as it is."""
    known = SEARCH_ID.fullmatch(search_id) and deps.searches is not None
    found = await deps.searches.cancel(search_id) if known else None
    if found is None:
        raise _unknown(search_id)
    return await _until_over(found, described.CANCEL_SECONDS, deps)


async def _until_over(found: dict[str, Any], seconds: float, deps: Dependencies) -> dict[str, Any]:
    """As it is then, at the latest after so long."""
    until = time.monotonic() + seconds
    while found["state"] in _GOES_ON and (left := until - time.monotonic()) > 0:
        await asyncio.sleep(min(LOOK_SECONDS, left))
        found = await _stored(found["search_id"], deps)
    return found


async def _stored(search_id: str, deps: Dependencies) -> dict[str, Any]:
    known = SEARCH_ID.fullmatch(search_id)
    found = await asyncio.to_thread(deps.history.searches.get, search_id) if known else None
    if found is None:
        raise _unknown(search_id)
    return search_runner.to_json(found)


def _unknown(search_id: str) -> RequestError:
    return RequestError(404, f"there is no search {search_id[:40]!a}", remedy="POST /v1/searches")


def _request(body: Mapping[str, Any], deps: Dependencies) -> SearchRequest:
    """In a thread: a job may be large, and its layouts many."""
    asked = requests.read(body, deps.settings.search_seconds)
    pipeline.refuse_unplannable(asked.job)
    refuse_code(asked.job, deps.settings)
    asked.space()
    return asked
