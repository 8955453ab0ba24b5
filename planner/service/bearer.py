"""Lets only bearers of a token write, whose hash is in the settings. Reading is open to all who get here."""

from __future__ import annotations

import hashlib
import hmac

from starlette.requests import Request

from planner.service.dependencies import dependencies_of
from planner.service.problems import RequestError

_READS = ("GET", "HEAD", "OPTIONS")


async def writers_only(request: Request) -> None:
    """Raises RequestError (401) for a write without a token that the settings admit."""
    if request.method in _READS:
        return
    settings = dependencies_of(request).settings
    known = ",".join(filter(None, (settings.token_sha256, settings.code_token_sha256))) if settings.token_sha256 else ""
    _require(request, known, "a bearer token is needed to write")


def code_runners_only(
    request: Request, missing: str = "a bearer token for code of users is needed to measure it"
) -> None:
    """Raises RequestError (401) for who may not have code of users run, where the settings name who may."""
    settings = dependencies_of(request).settings
    _require(request, settings.code_token_sha256, missing)


def _require(request: Request, known: str, missing: str) -> None:
    if not known:
        return
    scheme, _, token = request.headers.get("authorization", "").partition(" ")
    if scheme.lower() == "bearer" and token.strip() and _is_known(token.strip(), known):
        return
    raise RequestError(
        401,
        missing if not scheme else "this bearer token is not known",
        allowed="Authorization: Bearer TOKEN",
        remedy="ask the operator of this service for a token",
        headers={"WWW-Authenticate": 'Bearer realm="planner"'},
    )


def _is_known(token: str, known: str) -> bool:
    """Takes as long for a wrong token as for a right one, whichever of several it is."""
    digest = hashlib.sha256(token.encode("utf-8", "surrogateescape")).hexdigest()
    found = [hmac.compare_digest(digest, each) for each in known.lower().split(",")]
    return any(found)
