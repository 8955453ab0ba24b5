"""Builds the HTTP interface as one ASGI application: all endpoints, their errors, their description."""

from __future__ import annotations

from typing import Any

from fastapi import Depends, FastAPI
from fastapi.openapi.utils import get_openapi
from starlette.types import ASGIApp

from planner import distribution
from planner.service import problems
from planner.service.bearer import writers_only
from planner.service.bodies import LimitedBodies
from planner.service.dependencies import Dependencies
from planner.service.job_bodies import JobBody
from planner.service.openapi_models import Problem
from planner.service.request_log import MOST_AT_ONCE, RequestLog
from planner.service.routes import (
    capacity,
    catalog,
    checks,
    jobs,
    metrics,
    operations,
    page,
    plans,
    replays,
    runs,
    searches,
    specs,
    timelines,
    validations,
)
from planner.service.spec_requests import SpecBody

DESCRIPTION = """\
Says before a PyTorch training job starts what GPU memory every rank will take, and whether it fits.

Reading is open to all who reach this service. Writing (POST, PUT, DELETE) needs `Authorization: Bearer TOKEN` where the
operator has set one. Errors are RFC 9457 problem details (`application/problem+json`). 429 and 503 say in
`Retry-After` when to come again.
"""
_ROUTERS = (
    page.router,
    plans.router,
    timelines.router,
    specs.router,
    replays.router,
    catalog.router,
    runs.router,
    checks.router,
    jobs.router,
    operations.router,
    capacity.router,
    metrics.router,
    validations.router,
    searches.router,
)


def interface(dependencies: Dependencies, most_at_once: int = MOST_AT_ONCE) -> ASGIApp:
    """Everything that is answered, by this dependencies."""
    app = FastAPI(
        title="planner", version=distribution.version(), description=DESCRIPTION, docs_url=None, redoc_url=None
    )
    app.state.dependencies = dependencies
    for router in _ROUTERS:
        app.include_router(router, dependencies=[Depends(writers_only)])
    problems.install(app)
    setattr(app, "openapi", lambda: _describe_api(app))  # noqa: B010  FastAPI's own way to extend it
    return RequestLog(LimitedBodies(app, dependencies.settings.body_bytes), dependencies.counters, most_at_once)


def _describe_api(app: FastAPI) -> dict[str, Any]:
    if app.openapi_schema is None:
        found = get_openapi(title=app.title, version=app.version, description=app.description, routes=app.routes)
        parts = found.setdefault("components", {})
        schemas = parts.setdefault("schemas", {})
        for model in (Problem, JobBody, SpecBody):
            described = model.model_json_schema(ref_template="#/components/schemas/{model}")
            schemas |= described.pop("$defs", {}) | {model.__name__: described}
        for unused in ("HTTPValidationError", "ValidationError"):
            schemas.pop(unused, None)
        parts["securitySchemes"] = {"bearer": {"type": "http", "scheme": "bearer"}}
        for operations_of_path in found["paths"].values():
            for operation in operations_of_path.values():
                _as_problems(operation["responses"])
        app.openapi_schema = found
    return app.openapi_schema


def _as_problems(responses: dict[str, Any]) -> None:
    """FastAPI describes refused parameters as its own; here they are problems like all others."""
    for status, response in responses.items():
        if int(status) >= 400:
            response["content"] = {"application/problem+json": {"schema": {"$ref": "#/components/schemas/Problem"}}}
