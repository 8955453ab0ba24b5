"""Endpoint of Prometheus metrics, the same from every replica."""

from __future__ import annotations

import asyncio
from typing import Annotated

from fastapi import APIRouter, Depends, Request, Response

from planner.metrics.exposition import exposition
from planner.service.dependencies import Dependencies, dependencies_of

router = APIRouter(tags=["operations"])


@router.get(
    "/metrics",
    summary="Metrics for Prometheus",
    response_class=Response,
    responses={200: {"content": {"text/plain": {}, "application/openmetrics-text": {}}}},
)
async def metrics(request: Request, deps: Annotated[Dependencies, Depends(dependencies_of)]) -> Response:
    """Text format 0.0.4, or OpenMetrics if `Accept` asks for it.

    It answers 200 also while the history cannot be read, with `planner_store_up 0`: a scrape that fails could not tell
    why.
    """
    body, media_type = await asyncio.to_thread(exposition, deps.history, request.headers.get("Accept", ""))
    return Response(body, headers={"Content-Type": media_type})
