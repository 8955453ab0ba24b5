"""Endpoints of searches: starts one, tells what is known of it by now, ends it."""

from __future__ import annotations

import asyncio
import time
from typing import Any

from fastapi import APIRouter, Request
from fastapi.responses import JSONResponse

from planner.searching.requests import MOST_TOP, USUAL_SECONDS, USUAL_TOP
from planner.searching.weighing import Objective
from planner.service.history.records import SearchState
from planner.service.http.bodies import read_body, receive_content
from planner.service.http.body_readers import JSON, read_search
from planner.service.http.dependencies import Dependencies, Injected, read_prefer_header
from planner.service.http.openapi import EXAMPLE_JOB, WRITES, Answer, in_json, problems, takes
from planner.service.http.problems import RequestError
from planner.service.orders import refuse_code
from planner.service.scheduling import search_runner

router = APIRouter(tags=["searches"])
LOOK_SECONDS = 0.25
_GOES_ON = ("pending", "running")


CANCEL_SECONDS = 5.0
"""How long the answer to DELETE waits for the end."""


class Search(Answer):
    """A search as it is known: `planner search --format json`, with its state. docs/search.md says more."""

    search_id: str
    state: SearchState
    asked_at: str
    finished_at: str | None
    request: dict[str, Any]
    """As it was asked for, without the job."""
    objective: Objective
    complete: bool
    """The candidates are the best of all that were looked at: true only if it is done."""
    stopped: str
    """Why it is `stopped`: time, cancelled, interrupted (the service ended)."""
    candidates: list[dict[str, Any]]
    closest: dict[str, Any] | None
    space: dict[str, Any]
    global_batch: int
    seconds: dict[str, float | None]
    progress: dict[str, Any]
    problem: dict[str, str] | None
    """Why it is refused or has failed: problem, allowed, remedy, place."""


_EXAMPLE = {"job": EXAMPLE_JOB, "gpus": 8, "axes": ["recompute=none,full", "tp=1..2"], "objective": "cost"}
_AXES = [
    {"type": "array", "items": {"type": "string"}, "description": "name=values, as on the command line"},
    {"type": "object", "additionalProperties": True, "description": "names with a value, a text of them or a list"},
]
_TEXTS = [{"type": "string"}, {"type": "array", "items": {"type": "string"}}]
_BODY: dict[str, Any] = {
    "type": "object",
    "properties": {
        "job": {"type": "object", "description": "As POST /v1/plans takes it in JSON."},
        "gpus": {
            "anyOf": [{"type": "integer", "minimum": 1}, {"type": "string"}],
            "description": "64, 8x8, 8x8xH100; default: as many as the job has, whose degrees are all varied.",
        },
        "gpu": {"anyOf": _TEXTS, "description": "A GPU in the place of the job's; several are compared."},
        "axes": {"anyOf": _AXES, "description": "Restrict the usual axes, or add to them."},
        "objective": {"type": "string", "enum": [objective.value for objective in Objective], "default": "cost"},
        "top": {"type": "integer", "minimum": 1, "maximum": MOST_TOP, "default": USUAL_TOP},
        "global_batch": {"type": "integer", "minimum": 1, "description": "Sequences of an optimizer step."},
        "seconds": {"type": "number", "exclusiveMinimum": 0, "default": USUAL_SECONDS},
    },
    "required": ["job"],
    "additionalProperties": False,
    "example": _EXAMPLE,
}


@router.post(
    "/v1/searches",
    status_code=202,
    summary="Search layouts and settings that fit",
    response_model=Search,
    responses={200: {"model": Search, "description": "it is over"}, **problems(*WRITES, 403)},
    openapi_extra=takes(in_json(_BODY, _EXAMPLE), "`wait=N`: at most N seconds for its end"),
)
async def search(request: Request, deps: Injected) -> JSONResponse:
    """Which layouts and settings of a job fit, the best first, each proven by a plan.

    202: it runs; `GET /v1/searches/{search_id}` has what is known by now. The same search is run once, answered with
    200 when it is done, and goes on where it was if its time was over, or it was cancelled. `Prefer: wait=N` waits
    for its end, at most N seconds. It goes on if its client is gone.
    """
    wanted = read_prefer_header(request)
    asked = await read_body(deps, read_search, await receive_content(request, JSON), str(deps.settings.search_seconds))
    refuse_code(asked.job, deps.settings)
    if asked.job.model.factory:
        await asyncio.to_thread(asked.space)
    if deps.searches is None:
        raise RequestError(501, "this service searches nothing", remedy="deploy planner with its Searches deployment")
    document = await deps.searches.start(asked)
    if wanted.wait:
        document = await _until_over(document, wanted.wait, deps)
    headers = {"Location": f"/v1/searches/{document['search_id']}", **wanted.headers}
    if document["state"] in _GOES_ON:
        return JSONResponse(document, 202, {**headers, "Retry-After": "1"})
    return JSONResponse(document, 200, headers)


@router.get(
    "/v1/searches/{search_id}", summary="A search, as far as it is", response_model=Search, responses=problems(404)
)
async def search_by_id(search_id: str, deps: Injected) -> dict[str, Any]:
    """Its state, how far it is, and the best candidates that are found by now."""
    stored = await asyncio.to_thread(deps.history.searches.get, search_id)
    if stored is None:
        raise _unknown(search_id)
    return search_runner.to_json(stored)


@router.delete(
    "/v1/searches/{search_id}",
    summary="End a search",
    response_model=Search,
    responses=problems(401, 404),
    openapi_extra={"security": [{"bearer": []}, {}]},
)
async def cancel(search_id: str, deps: Injected) -> dict[str, Any]:
    """It ends within a moment, and keeps what it found: asked for again it goes on. One that is over stays as it is."""
    document = await deps.searches.cancel(search_id) if deps.searches is not None else None
    if document is None:
        raise _unknown(search_id)
    return await _until_over(document, CANCEL_SECONDS, deps)


def _unknown(search_id: str) -> RequestError:
    return RequestError(404, f"there is no search {search_id[:40]!a}", remedy="POST /v1/searches")


async def _until_over(document: dict[str, Any], seconds: float, deps: Dependencies) -> dict[str, Any]:
    """As it is then, at the latest after so long."""
    until = time.monotonic() + seconds
    while document["state"] in _GOES_ON and (left := until - time.monotonic()) > 0:
        await asyncio.sleep(min(LOOK_SECONDS, left))
        document = await search_by_id(document["search_id"], deps)
    return document
