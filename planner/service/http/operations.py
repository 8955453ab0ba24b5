"""Endpoints for operators and browsers: probes, Prometheus metrics, and the page with its files."""

from __future__ import annotations

import asyncio
import functools
import logging
from collections.abc import Awaitable, Callable

from fastapi import APIRouter, Request, Response
from pydantic import BaseModel

from planner.errors import PlannerError
from planner.service.http.dependencies import Dependencies, Injected
from planner.service.http.limits import SharedCalls
from planner.service.http.openapi import problems
from planner.service.http.problems import RequestError
from planner.service.metrics import exposition
from planner.service.web import assets

router = APIRouter(tags=["operations"])
PROBE_SECONDS = 3.0
"""Less than any prober waits."""
_PROBES, _METRICS = SharedCalls("probe"), SharedCalls("metrics")
"""A store that does not answer holds up no metrics, and scrapes hold up no probe."""
_log = logging.getLogger("planner.service")


class Health(BaseModel):
    status: str
    warning: str = ""
    """What does not work, and what to do, while all else does."""


@router.get("/livez", summary="Is this replica alive?", response_model_exclude_defaults=True)
async def livez() -> Health:
    """Answers as long as the replica can answer at all."""
    return Health(status="alive")


@router.get("/readyz", summary="Can jobs be planned?", responses=problems(), response_model_exclude_defaults=True)
async def readyz(deps: Injected) -> Health:
    """200 if the history can be reached and jobs get tracing processes, else 503 that says why, and what to do. Where
    only code of users cannot be run, or not be bounded, it is 200 with a `warning`.

    Where that is not known within half a second, as under load, it is what was known last, at most 15 s ago.
    """
    states = await deps.readiness.find(functools.partial(_look, deps))
    if faults := [state for state in states if isinstance(state, PlannerError)]:
        remedy = "; ".join(fault.remedy for fault in faults if fault.remedy)
        raise RequestError(503, "; ".join(fault.problem for fault in faults), remedy=remedy, place="readyz")
    return Health(status="ready", warning="; ".join(filter(None, map(str, states))))


async def _look(deps: Dependencies) -> list[PlannerError | str]:
    return list(await asyncio.gather(_history(deps), _tracers(deps)))


async def _history(deps: Dependencies) -> PlannerError | str:
    try:
        await asyncio.wait_for(_PROBES.call(deps.history.probe), PROBE_SECONDS)
    except TimeoutError:
        return PlannerError(f"the history {deps.history.place} does not answer")
    except PlannerError as error:
        problem = f"the history {deps.history.place} cannot be used: {error.problem}"
        return PlannerError(problem, remedy=error.remedy)
    return ""


async def _tracers(deps: Dependencies) -> PlannerError | str:
    if deps.tracers_ready is None:
        return ""
    try:
        return await asyncio.wait_for(deps.tracers_ready(), PROBE_SECONDS)
    except TimeoutError:
        return PlannerError("the tracing processes do not answer")
    except PlannerError as error:
        return error
    except Exception as error:  # whatever Ray says of a deployment that is not there
        _log.warning("the tracing processes cannot be reached: %s", error)
        return PlannerError("the tracing processes cannot be reached")


metrics_router = APIRouter(tags=["operations"])


@metrics_router.get(
    "/metrics",
    summary="Metrics for Prometheus",
    response_class=Response,
    responses={200: {"content": {"text/plain": {}, "application/openmetrics-text": {}}}},
)
async def metrics(request: Request, deps: Injected) -> Response:
    """Text format 0.0.4, or OpenMetrics if `Accept` asks for it.

    It answers 200 also while the history cannot be read, with `planner_store_up 0`: a scrape that fails could not tell
    why.
    """
    body, media_type = await _METRICS.call(exposition, deps.history, request.headers.get("Accept", ""))
    return Response(body, headers={"Content-Type": media_type})


page_router = APIRouter(include_in_schema=False)
_POLICY = (
    "default-src 'self'; img-src 'self' data:; object-src 'none'; base-uri 'none'; form-action 'none'; "
    "frame-ancestors 'none'"
)
"""Of everything that a browser shows. `data:` is for the images in the style sheet of Swagger UI."""
_HEADERS = {
    "Content-Security-Policy": _POLICY,
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-cache",  # asked for again, and answered with 304 unless planner was upgraded
}


def _serve_file(name: str) -> Callable[[Request], Awaitable[Response]]:
    async def answer(request: Request) -> Response:
        return _answer(name, request)

    return answer


for _path, _name in (("/", "page/index.html"), ("/docs", "page/docs.html"), ("/favicon.ico", "page/icon.svg")):
    page_router.add_api_route(_path, _serve_file(_name))


@page_router.get("/assets/{name:path}")
async def asset(name: str, request: Request) -> Response:
    return _answer(name, request)


def _answer(name: str, request: Request) -> Response:
    file = assets.find(name)
    if file is None:
        raise RequestError(404, f"there is no file {name[:80]!a}", remedy="open the page at /")
    headers = {**_HEADERS, "ETag": file.etag}
    if request.headers.get("if-none-match") == file.etag:
        return Response(status_code=304, headers=headers)
    return Response(file.content, headers=headers, media_type=file.media_type)
