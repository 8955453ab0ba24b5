"""Answers errors as RFC 9457 problem details: what arrived, what is accepted, what to change, and where."""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping
from http import HTTPStatus
from typing import Any

from fastapi import FastAPI
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from planner.errors import FactoryNotAllowedError, PlannerError, shorten
from planner.job.masking import mask_text
from planner.service.errors import (
    BusyError,
    DeadlineError,
    ProgramNotAllowedError,
    RunEndedError,
    TraceLimitError,
    WorkerLostError,
)
from planner.service.history.errors import HistoryUnavailableError

MEDIA_TYPE = "application/problem+json"
MOST_BYTES = 8192
"""Of a problem document, whatever arrived. What is quoted is cut before (planner.errors); in ASCII a character may
still take twelve."""
_log = logging.getLogger("planner.service")


class RequestError(PlannerError):
    """A fault of the request itself, with the HTTP status that says so."""

    def __init__(
        self,
        status: int,
        problem: str,
        *,
        allowed: str = "",
        remedy: str = "",
        place: str = "",
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(problem, allowed=allowed, remedy=remedy, place=place)
        self.status, self.headers = status, dict(headers or {})


_STATUS: Mapping[type[PlannerError], int] = {
    HistoryUnavailableError: 503,
    BusyError: 429,
    DeadlineError: 504,
    RunEndedError: 410,
    FactoryNotAllowedError: 403,
    ProgramNotAllowedError: 403,
    TraceLimitError: 422,
    WorkerLostError: 503,
}
RETRY_SECONDS = 5


def problem(error: PlannerError) -> Response:
    if isinstance(error, RequestError):
        status = error.status
        kind = HTTPStatus(status).name.lower().replace("_", "-")
    else:
        status = next((code for of, code in _STATUS.items() if isinstance(error, of)), 422)
        kind = type(error).__name__.removesuffix("Error").lower()
    headers = dict(getattr(error, "headers", {}))
    if status in (429, 503):
        seconds = getattr(error, "retry_after_seconds", RETRY_SECONDS)
        headers.setdefault("Retry-After", str(max(1, round(seconds))))
    members = {
        "type": f"urn:planner:problem:{kind}",
        "title": HTTPStatus(status).phrase,
        "status": status,
        "detail": str(error),
        "problem": error.problem,
        "allowed": error.allowed,
        "remedy": error.remedy,
        "place": error.place,
        "traceback": getattr(error, "traceback", ""),
    }
    members = {name: mask_text(value) if isinstance(value, str) else value for name, value in members.items() if value}
    # What arrived is quoted in places: a lone surrogate in it must not break the answer.
    text, most = json.dumps(members, ensure_ascii=True), MOST_BYTES
    while len(text) > MOST_BYTES:
        most //= 2
        cut = {name: shorten(value, most) if isinstance(value, str) else value for name, value in members.items()}
        text = json.dumps(cut, ensure_ascii=True)
    return Response(text, status, headers, media_type=MEDIA_TYPE)


def install(app: FastAPI) -> None:
    """Whatever an endpoint raises becomes a problem; a traceback goes to the log only."""
    for kind in (PlannerError, HTTPException, RequestValidationError, Exception):
        app.add_exception_handler(kind, _handle)


async def _handle(_: Request, error: Exception) -> Response:
    if isinstance(error, HTTPException):
        error = RequestError(error.status_code, error.detail, headers=error.headers)
    elif isinstance(error, RequestValidationError):
        first: Mapping[str, Any] = next(iter(error.errors()), {})
        place = ".".join(str(part) for part in first.get("loc", ()))
        error = RequestError(422, str(first.get("msg", "this cannot be read")), place=place)
    elif not isinstance(error, PlannerError):
        _log.error("a fault of planner itself", exc_info=error)
        error = RequestError(500, "a fault of planner itself", remedy="report it, with X-Request-ID")
    return problem(error)
