"""Builds the HTTP interface as one ASGI application that counts, times, bounds and logs its requests."""

from __future__ import annotations

import logging
import re
import time
from typing import Any

from fastapi import Depends, FastAPI
from fastapi.openapi.utils import get_openapi
from starlette.routing import BaseRoute, Match
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from planner import distribution
from planner.service.http import capacity, catalog, jobs, operations, plans, problems, searches, validations
from planner.service.http.bodies import LimitedBodies
from planner.service.http.body_readers import SpecBody
from planner.service.http.dependencies import MOST_AT_ONCE, Dependencies, split_authorization, writers_only
from planner.service.http.hosts import refuse_host
from planner.service.http.job_reports import JobBody
from planner.service.http.limits import PROBES, Places
from planner.service.http.openapi import PROBLEM_CONTENT, Problem
from planner.service.http.problems import RequestError, problem
from planner.service.metrics import REQUEST_SECONDS, REQUESTS

_UNROUTED = "other"
_REQUEST_ID = re.compile(rb"[A-Za-z0-9._:-]{1,128}")
_log = logging.getLogger("planner.service")


class RequestLog:
    """ASGI middleware, the outermost: nothing leaves without being counted, and no exception leaves at all."""

    def __init__(self, app: ASGIApp, dependencies: Dependencies, most_at_once: int = MOST_AT_ONCE) -> None:
        self._app, self._settings, self._counters = app, dependencies.settings, dependencies.counters
        self._most = most_at_once
        self._places = Places(most_at_once)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        began, status = time.perf_counter(), 0

        async def send_and_note_status(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                message = {**message, "headers": [*message["headers"], (b"x-content-type-options", b"nosniff")]}
            await send(message)

        headers = dict(scope["headers"])
        _, token = split_authorization(headers.get(b"authorization", b"").decode("latin-1"))
        give_back = self._places.take(scope["method"], scope["path"], token)
        try:
            try:
                refuse_host(headers, self._settings)
                if give_back is None:
                    raise RequestError(
                        429,
                        "too many requests at once",
                        allowed=f"{self._most} of this kind (reads, timelines, writes) in each replica, of which one "
                        f"token may have {self._most // 2} writes",
                        remedy="retry after 1 s",
                        headers={"Retry-After": "1"},
                    )
            except RequestError as refusal:
                scope["route"] = _find_route(scope)
                await problem(refusal)(scope, receive, send_and_note_status)
                return
            await self._app(scope, receive, send_and_note_status)
        except Exception:
            if not status:
                raise
            # Starlette has answered 500 and logged why; it raises once more for servers that want to know.
        finally:
            if give_back is not None:
                give_back()
            self._tell(scope, status, time.perf_counter() - began)

    def _tell(self, scope: Scope, status: int, seconds: float) -> None:
        """Status 0: the client has gone before it was answered."""
        route = getattr(scope.get("route"), "path", _UNROUTED)
        method = scope["method"] if scope["method"] in ("GET", "POST", "PUT", "DELETE") else _UNROUTED
        if self._counters is not None:
            self._counters.add(REQUESTS, {"route": route, "method": method, "status": str(status)})
            self._counters.observe(REQUEST_SECONDS, {"route": route}, seconds)
        level = logging.DEBUG if route in PROBES else logging.INFO
        if _log.isEnabledFor(level):
            # X-Request-ID as the client or Ray Serve set it; what is not an id does not get into the log.
            request_id = dict(scope["headers"]).get(b"x-request-id", b"")
            about: dict[str, Any] = {
                "request_id": request_id.decode() if _REQUEST_ID.fullmatch(request_id) else None,
                "plan_id": scope.get("state", {}).get("plan_id"),
                "method": method,
                "route": route,
                "status": status,
                "seconds": round(seconds, 4),
            }
            _log.log(level, "%s %s %d", method, route, status, extra=about)


DESCRIPTION = """\
Says before a PyTorch training job starts what GPU memory every rank will take, and whether it fits.

Reading is open to all who reach this service. Writing (POST, PUT, DELETE) needs `Authorization: Bearer TOKEN` where the
operator has set one. Errors are RFC 9457 problem details (`application/problem+json`). 429 and 503 say in
`Retry-After` when to retry.
"""
_ROUTERS = (
    operations.page_router,
    plans.router,
    plans.timeline_router,
    catalog.spec_router,
    plans.replay_router,
    catalog.router,
    plans.check_router,
    jobs.router,
    operations.router,
    capacity.router,
    operations.metrics_router,
    validations.router,
    searches.router,
)


def _find_route(scope: Scope) -> BaseRoute | None:
    """Of a request that does not reach the router."""
    routes = (route for router in _ROUTERS for route in router.routes)
    return next((route for route in routes if route.matches(scope)[0] is Match.FULL), None)


def interface(dependencies: Dependencies, most_at_once: int = MOST_AT_ONCE) -> ASGIApp:
    app = FastAPI(
        title="planner", version=distribution.version(), description=DESCRIPTION, docs_url=None, redoc_url=None,
        redirect_slashes=False,  # a redirect would send the caller to whatever host its request named
    )  # fmt: skip
    app.state.dependencies = dependencies
    for router in _ROUTERS:
        app.include_router(router, dependencies=[Depends(writers_only)])
    problems.install(app)
    setattr(app, "openapi", lambda: _describe_api(app))  # noqa: B010  FastAPI's own way to extend it
    bounded = LimitedBodies(app, dependencies.settings.body_bytes)
    return RequestLog(bounded, dependencies, most_at_once)


def _describe_api(app: FastAPI) -> dict[str, Any]:
    if app.openapi_schema is None:
        document = get_openapi(title=app.title, version=app.version, description=app.description, routes=app.routes)
        parts = document.setdefault("components", {})
        schemas = parts.setdefault("schemas", {})
        for model in (Problem, JobBody, SpecBody):
            described = model.model_json_schema(ref_template="#/components/schemas/{model}")
            schemas |= described.pop("$defs", {}) | {model.__name__: described}
        for unused in ("HTTPValidationError", "ValidationError"):
            schemas.pop(unused, None)
        parts["securitySchemes"] = {"bearer": {"type": "http", "scheme": "bearer"}}
        # FastAPI describes refused parameters as its own; here they are problems like all others.
        for operations_of_path in document["paths"].values():
            for operation in operations_of_path.values():
                for status, response in operation["responses"].items():
                    if int(status) >= 400:
                        response["content"] = PROBLEM_CONTENT
        app.openapi_schema = document
    return app.openapi_schema
