"""Receives request bodies, bounded in size and time; each is read in a process of its own."""

from __future__ import annotations

import asyncio
import atexit
import functools
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

from starlette.requests import ClientDisconnect, Request
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from planner.job.schema import Job
from planner.runtime import running
from planner.runtime.fork_server import ForkServer
from planner.runtime.limits import LimitExceededError, Limits
from planner.runtime.running import StoppedError
from planner.service.http.body_readers import JSON, YAML_TYPES, read_job, read_object, too_large
from planner.service.http.dependencies import Dependencies, get_dependencies
from planner.service.http.limits import Turns
from planner.service.http.problems import RequestError, problem
from planner.units import GIB

LIMITS = Limits(seconds=10.0, memory_bytes=2 * GIB, tasks=16)
"""For one body. What is allowed in a body is read within a second on a machine that is not busy."""
_WAITERS = ThreadPoolExecutor(8, "body")
"""Threads that wait for a reading process, more than there are turns: none of those that read the history."""
_Read = TypeVar("_Read")
Reader = Callable[[bytes, str], _Read]
"""A function of a module that reads a body; what its text says besides is its own: a media type, a setting."""
_REMEDY = "send a bundle, as planner spec --bundle prints it"


async def read_beside(
    turns: Turns, reader: Reader[_Read], body: bytes, kind: str, remedy: str = _REMEDY, limits: Limits = LIMITS
) -> _Read:
    """What the reader returns, called in a process of its own.

    Raises what it raises: PlannerError, RequestError; BusyError if too many wait for their turn; RequestError (422) for
    a body that takes too long to read, with what its sender may change.
    """
    async with turns.turn():
        return await call_beside(reader, body, kind, remedy, limits)


async def read_body(dependencies: Dependencies, reader: Reader[_Read], body: bytes, kind: str) -> _Read:
    """As :func:`read_beside`; small bodies do not wait for large ones. None is read on the event loop, however small: a
    few KiB of a log, or of brackets, take a tenth of a second there, and hundreds come at once."""
    turns = dependencies.small_bodies if _is_small(body, kind) else dependencies.bodies
    return await read_beside(turns, reader, body, kind)


def _is_small(body: bytes, kind: str) -> bool:
    return len(body) <= SMALL and kind not in YAML_TYPES  # a little YAML can stand for much


async def call_beside(
    reader: Reader[_Read], body: bytes, kind: str, remedy: str = _REMEDY, limits: Limits = LIMITS
) -> _Read:
    """As :func:`read_beside`, of a caller whose turn it is."""
    stopped, function = False, f"{reader.__module__}:{reader.__name__}"
    read_it = functools.partial(
        running.call, function, body, kind, limits=limits, server=_server(), stopped=lambda: stopped
    )
    work = asyncio.get_running_loop().run_in_executor(_WAITERS, read_it)
    try:
        read: _Read = await asyncio.shield(work)
        return read
    except (LimitExceededError, StoppedError):
        late = f"the body cannot be read within {limits.seconds:g} s"
        raise RequestError(422, late, remedy=remedy, place="the body") from None
    except asyncio.CancelledError:
        stopped = True
        raise


def load() -> None:
    from planner.job import loading  # noqa: F401
    from planner.service.http import body_readers, job_reports  # noqa: F401


@functools.cache
def _server() -> ForkServer:
    server = ForkServer("planner.service.http.bodies:load")
    atexit.register(server.close)
    return server


BODY_SECONDS = 60.0
"""How long a body may take to arrive: a client that trickles one holds a place that others want."""
STALL_SECONDS = 5.0
"""How long nothing of a body may arrive."""
SMALL = 32 * 1024
"""Bytes of JSON whose readers have turns of their own: they take a tenth of a second at most."""


class LimitedBodies:
    """ASGI middleware: answers 413 as soon as a body is known to be too large, and holds no more of it than that."""

    def __init__(self, app: ASGIApp, most_bytes: int) -> None:
        self._app, self._most = app, most_bytes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        length = dict(scope["headers"]).get(b"content-length", b"")
        if length.isdigit() and int(length[:20]) > self._most:
            await self._refuse(scope, receive, send)
            return
        received, started = 0, False

        async def receive_and_count() -> Message:
            nonlocal received
            message = await receive()
            received += len(message.get("body", b""))
            if received > self._most:
                raise _TooLargeError
            return message

        async def send_and_note(message: Message) -> None:
            nonlocal started
            started = True
            await send(message)

        try:
            await self._app(scope, receive_and_count, send_and_note)
        except _TooLargeError:
            if not started:
                await self._refuse(scope, receive, send)

    async def _refuse(self, scope: Scope, receive: Receive, send: Send) -> None:
        error = too_large(self._most)
        error.headers["Connection"] = "close"  # the rest of the body is not read
        await problem(error)(scope, receive, send)


class _TooLargeError(BaseException):
    """Passes through whatever an endpoint catches."""


async def receive_job(request: Request) -> Job:
    """The job of a body: a bundle or a spec in JSON, or a spec in YAML, that refers to nothing outside.

    Raises SpecError for a job that is none, RequestError for a body that cannot be read.
    """
    content, kind = await receive_content(request, JSON, *YAML_TYPES), media_type(request)
    dependencies = get_dependencies(request)
    if not _is_small(content, kind):
        return await read_body(dependencies, read_job, content, kind)
    job = dependencies.jobs_read.get(content)
    if job is None:
        job = await read_body(dependencies, read_job, content, kind)
        dependencies.jobs_read.keep(content, job)
    return job


async def receive_object(request: Request) -> dict[str, Any]:
    return await read_body(get_dependencies(request), read_object, await receive_content(request, JSON), JSON)


async def receive_content(request: Request, *kinds: str) -> bytes:
    """The bytes of a body of one of these media types. Raises RequestError for another one, and for a body that is
    compressed, late, cut off, or empty."""
    if (kind := media_type(request)) not in kinds:
        arrived = f"{kind[:80]!a} is not read here" if kind else "the request names no content type"
        raise RequestError(415, arrived, allowed=", ".join(kinds), place="Content-Type")
    encoding = request.headers.get("content-encoding", "identity").strip().lower()
    if encoding not in ("", "identity"):
        raise RequestError(415, f"the encoding {encoding[:40]!a} is not read here", allowed="identity")
    body = bytearray()
    loop = asyncio.get_running_loop()
    end = loop.time() + BODY_SECONDS
    try:
        async with asyncio.timeout_at(min(loop.time() + STALL_SECONDS, end)) as limit:
            async for part in request.stream():
                body += part
                limit.reschedule(min(loop.time() + STALL_SECONDS, end))
    except TimeoutError:
        is_over = loop.time() >= end
        late = f"did not arrive within {BODY_SECONDS:g} s" if is_over else f"stopped for {STALL_SECONDS:g} s"
        raise RequestError(408, f"the body {late}", place="the body", headers={"Connection": "close"}) from None
    except ClientDisconnect:
        raise RequestError(400, "the body ended before its length", place="the body") from None
    if not body.strip():
        raise RequestError(400, "the body is empty", allowed="a job", place="the body")
    return bytes(body)


def media_type(request: Request) -> str:
    return request.headers.get("content-type", "").partition(";")[0].strip().lower()
