"""Counts, times and bounds requests, and writes one line in the log for each."""

from __future__ import annotations

import logging
import re
import time
from typing import Any

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from planner.metrics.definitions import REQUEST_SECONDS, REQUESTS
from planner.service.dependencies import Counts
from planner.service.problems import RequestError, problem

MOST_AT_ONCE = 256
"""Requests in one replica. Those that wait for a trace are bounded by `trace_queue`; the rest takes milliseconds."""
_UNROUTED = "other"
_ALWAYS = ("/livez",)
_PROBES = ("/livez", "/readyz", "/metrics")
"""Asked every few seconds by machines: in the log only if somebody looks closely."""
_REQUEST_ID = re.compile(rb"[A-Za-z0-9._:-]{1,128}")
_log = logging.getLogger("planner.service")


class RequestLog:
    """ASGI middleware, the outermost: nothing leaves without being counted, and no exception leaves at all."""

    def __init__(self, app: ASGIApp, counters: Counts | None, most_at_once: int = MOST_AT_ONCE) -> None:
        self._app, self._counters, self._most = app, counters, most_at_once
        self._at_once = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        began, status = time.perf_counter(), 0

        async def send_and_note_status(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            await send(message)

        self._at_once += 1
        try:
            if self._at_once > self._most and scope["path"] not in _ALWAYS:
                await problem(_too_many(self._most))(scope, receive, send_and_note_status)
                return
            await self._app(scope, receive, send_and_note_status)
        except Exception:
            if not status:
                raise
            # Starlette has answered 500 and logged why; it raises once more for servers that want to know.
        finally:
            self._at_once -= 1
            self._tell(scope, status, time.perf_counter() - began)

    def _tell(self, scope: Scope, status: int, seconds: float) -> None:
        """Status 0: the client has gone before it was answered."""
        route = getattr(scope.get("route"), "path", _UNROUTED)
        method = scope["method"] if scope["method"] in ("GET", "POST", "PUT", "DELETE") else _UNROUTED
        if self._counters is not None:
            self._counters.add(REQUESTS, {"route": route, "method": method, "status": str(status)})
            self._counters.observe(REQUEST_SECONDS, {"route": route}, seconds)
        level = logging.DEBUG if route in _PROBES else logging.INFO
        if _log.isEnabledFor(level):
            about: dict[str, Any] = {
                "request_id": _request_id(scope),
                "plan_id": scope.get("state", {}).get("plan_id"),
                "method": method,
                "route": route,
                "status": status,
                "seconds": round(seconds, 4),
            }
            _log.log(level, "%s %s %d", method, route, status, extra=about)


def _too_many(most: int) -> RequestError:
    error = RequestError(429, "too many requests at once", allowed=f"{most} in each replica", remedy="come again")
    error.headers["Retry-After"] = "1"
    return error


def _request_id(scope: Scope) -> str | None:
    """X-Request-ID as the client or Ray Serve set it; what is no id does not get into the log."""
    said = dict(scope["headers"]).get(b"x-request-id", b"")
    return said.decode() if _REQUEST_ID.fullmatch(said) else None
