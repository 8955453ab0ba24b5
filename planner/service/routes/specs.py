"""Endpoint of specs: a job in a few words as the spec that says it."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter, Request

from planner.service import openapi_models
from planner.service.bodies import content_of, media_type, unsupported_error
from planner.service.body_contents import JSON
from planner.service.reading_process import read_beside
from planner.service.spec_requests import EXAMPLE, SpecDocument

router = APIRouter(tags=["specs"])
_DESCRIBED: dict[str, Any] = {
    "response_model": SpecDocument,
    "responses": openapi_models.problems(400, 401, 408, 413, 415, 422),
    "openapi_extra": openapi_models.takes({"$ref": "#/components/schemas/SpecBody"}, EXAMPLE),
}


@router.post("/v1/specs", summary="The spec that a few words stand for", **_DESCRIBED)
async def spec(request: Request) -> dict[str, Any]:
    """As `planner spec`: a model's name, a bundle or a spec, with the options of `planner plan` and values set in it.

    Nothing is planned and nothing stored. What nobody said is in `taken`.
    """
    if (kind := media_type(request)) != JSON:
        raise unsupported_error(kind, JSON)
    body = await content_of(request)
    found: dict[str, Any] = await read_beside("planner.service.spec_requests:read_spec_request", body, kind)
    return found
