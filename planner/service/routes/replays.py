"""Endpoint of replays: a recorded snapshot of CUDA memory explained."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Query, Request

from planner.service.bodies import content_of, media_type, unsupported_error
from planner.service.openapi_timelines import replay_a_snapshot
from planner.service.reading_process import read_beside

router = APIRouter(tags=["replays"])
BYTES = "application/octet-stream"


@router.post("/v1/replays", summary="Explain a memory snapshot", **replay_a_snapshot)
async def replay(
    request: Request,
    conf: Annotated[
        str | None, Query(max_length=1000, description="what this PYTORCH_ALLOC_CONF would have reserved")
    ] = None,
) -> dict[str, Any]:
    """As `planner replay`: how many decisions of the allocator are replayed, and which lines held how much and when.

    The body is what `torch.cuda.memory._dump_snapshot` wrote, also as .gz or .xz. It is read as plain data, in a
    process of its own; nothing of it is stored.
    """
    if (kind := media_type(request)) != BYTES:
        raise unsupported_error(kind, BYTES)
    found: dict[str, Any] = await read_beside(
        "planner.service.snapshot_requests:read_replay",
        await content_of(request),
        "" if conf is None else f"={conf}",
        remedy="planner replay SNAPSHOT takes as long as it needs, on your machine",
    )
    return found
