"""Endpoints of the page: `/`, its files, and the interface's description at `/docs`. Nothing comes from elsewhere."""

from __future__ import annotations

from fastapi import APIRouter, Request, Response

from planner.service.problems import RequestError
from planner.web import assets

router = APIRouter(include_in_schema=False)
_POLICY = (
    "default-src 'self'; img-src 'self' data:; object-src 'none'; base-uri 'none'; form-action 'none'; "
    "frame-ancestors 'none'"
)
"""Of everything that a browser shows. `data:` is for the images in the style sheet of Swagger UI."""
_HEADERS = {
    "Content-Security-Policy": _POLICY,
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-cache",  # asked for again, and answered with 304 unless planner was upgraded
}


@router.get("/")
async def page(request: Request) -> Response:
    """The page."""
    return _answer("page/index.html", request)


@router.get("/docs")
async def docs(request: Request) -> Response:
    """The description of the interface, by Swagger UI."""
    return _answer("page/docs.html", request)


@router.get("/favicon.ico")
async def icon(request: Request) -> Response:
    """What browsers ask for unasked."""
    return _answer("page/icon.svg", request)


@router.get("/assets/{name:path}")
async def asset(name: str, request: Request) -> Response:
    """A file of these pages."""
    return _answer(name, request)


def _answer(name: str, request: Request) -> Response:
    found = assets.find(name)
    if found is None:
        raise RequestError(404, f"there is no file {name[:80]!a}", remedy="open the page at /")
    headers = {**_HEADERS, "ETag": found.etag}
    if request.headers.get("if-none-match") == found.etag:
        return Response(status_code=304, headers=headers)
    return Response(found.content, headers=headers, media_type=found.media_type)
