"""What endpoints are given: the store and the planners, whether the bearer may write, how long the client waits."""

from __future__ import annotations

import hashlib
import hmac
import re
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from datetime import datetime
from typing import Annotated, Any

from fastapi import Depends
from starlette.requests import Request

from planner.service.history.counters import Counters
from planner.service.history.store import History
from planner.service.http.limits import READS, JobsRead, LatestFinding, Turns
from planner.service.http.problems import RequestError
from planner.service.plan_provider import PlanProvider
from planner.service.torch_versions import ONLY_OWN, TorchVersions
from planner.settings import Settings

MOST_AT_ONCE = 256
"""Reads, and as many timelines and writes, in one replica. Those that wait for a trace are bounded by `trace_queue`,
long answers by turns of their own; the rest takes milliseconds."""
MOST_WAITING = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class Dependencies:
    settings: Settings
    history: History
    plan_provider: PlanProvider
    validations: Any = None
    """The handle of the deployment that measures on the cluster's GPUs; None where there is none."""
    searches: Any = None
    torches: TorchVersions = ONLY_OWN
    counters: Counters | None = None
    tracers_ready: Callable[[], Awaitable[str]] | None = None
    """Returns when tracing processes can be reached, with a warning if there is one, and raises where they cannot."""
    bodies: Turns = field(default_factory=lambda: Turns("bodies", at_once=2, waiting=MOST_WAITING))
    """Large bodies that are read, each in a process of its own."""
    small_bodies: Turns = field(default_factory=lambda: Turns("small bodies", at_once=2, waiting=MOST_AT_ONCE))
    """As `bodies`: as many may wait as there are places for those who send them."""
    jobs_read: JobsRead = field(default_factory=JobsRead)
    readiness: LatestFinding = field(default_factory=LatestFinding)
    drawings: Turns = field(default_factory=lambda: Turns("timelines and replays", at_once=1, waiting=MOST_WAITING))


def get_dependencies(request: Request) -> Dependencies:
    dependencies: Dependencies = request.app.state.dependencies
    return dependencies


Injected = Annotated[Dependencies, Depends(get_dependencies)]
"""The type of the parameter by which an endpoint gets them."""


async def writers_only(request: Request) -> None:
    """Raises RequestError (401) for a write without a token that the settings admit."""
    if request.method in READS:
        return
    settings = get_dependencies(request).settings
    known = ",".join(filter(None, (settings.token_sha256, settings.code_token_sha256))) if settings.token_sha256 else ""
    _require(request, known, "a bearer token is needed to write")


def code_runners_only(
    request: Request, missing: str = "a bearer token for code of users is needed to measure it"
) -> None:
    """Raises RequestError (401) for who may not have code of users run, where the settings name who may."""
    settings = get_dependencies(request).settings
    _require(request, settings.code_token_sha256, missing)


def split_authorization(header: str) -> tuple[str, str]:
    """The scheme and the token, however many blanks are around it."""
    scheme, _, token = header.partition(" ")
    return scheme, token.strip()


def _require(request: Request, known: str, missing: str) -> None:
    if not known:
        return
    scheme, token = split_authorization(request.headers.get("authorization", ""))
    digest = hashlib.sha256(token.encode("utf-8", "surrogateescape")).hexdigest()
    # Takes as long for a wrong token as for a right one, whichever of several it is.
    matches = [hmac.compare_digest(digest, one) for one in known.lower().split(",")]
    if scheme.lower() == "bearer" and token and any(matches):
        return
    raise RequestError(
        401,
        missing if not scheme else "this bearer token is not known",
        allowed="Authorization: Bearer TOKEN",
        remedy="ask the operator of this service for a token",
        headers={"WWW-Authenticate": 'Bearer realm="planner"'},
    )


def refuse_without_zone(moment: datetime | None, place: str) -> None:
    if moment is not None and moment.tzinfo is None:
        raise RequestError(422, "the moment has no time zone", allowed="such as 2026-01-31T12:00:00Z", place=place)


MOST_SECONDS = 3600.0
_PREFERENCE = re.compile(r'\s*+([a-zA-Z-]+)\s*+(?:=\s*+"?([^",;]*+)"?\s*+)?(?:;[^,]*)?')
"""Possessive, so that a long run of blanks is passed once."""


@dataclass(frozen=True, slots=True)
class PreferHeader:
    """`wait` in seconds; None where the client said nothing that can be used."""

    wait: float | None = None
    respond_async: bool = False

    @property
    def headers(self) -> dict[str, str]:
        heeded = ["respond-async"] if self.respond_async else []
        heeded += [f"wait={self.wait:g}"] if self.wait is not None else []
        return {"Preference-Applied": ", ".join(heeded)} if heeded else {}


def read_prefer_header(request: Request) -> PreferHeader:
    """The preferences of a request; one that cannot be read is ignored, as the RFC wants it."""
    preferences: dict[str, str] = {}
    for line in request.headers.getlist("prefer"):
        for part in line.split(","):
            if match := _PREFERENCE.fullmatch(part):
                preferences.setdefault(match[1].lower(), (match[2] or "").strip())
    wait = preferences.get("wait", "")
    seconds = min(float(wait), MOST_SECONDS) if re.fullmatch(r"[0-9]{1,9}", wait) else None
    return PreferHeader(seconds, "respond-async" in preferences)
