"""Endpoints of probes: is it alive, and is it ready?"""

from __future__ import annotations

import asyncio
import logging
from typing import Annotated

from fastapi import APIRouter, Depends

from planner.errors import PlannerError
from planner.service import openapi_models
from planner.service.dependencies import Dependencies, dependencies_of
from planner.service.problems import RequestError

router = APIRouter(tags=["operations"])
PROBE_SECONDS = 3.0
"""Less than any prober waits."""
_log = logging.getLogger("planner.service")


@router.get("/livez", summary="Is this replica alive?", **openapi_models.alive)
async def livez() -> openapi_models.Health:
    """Answers as long as the replica can answer at all."""
    return openapi_models.Health(status="alive")


@router.get("/readyz", summary="Can jobs be planned?", **openapi_models.ready)
async def readyz(deps: Annotated[Dependencies, Depends(dependencies_of)]) -> openapi_models.Health:
    """200 if the history and the tracing processes can be reached, else 503 that says which cannot."""
    faults = [fault for fault in await asyncio.gather(_history(deps), _tracers(deps)) if fault]
    if faults:
        raise RequestError(503, "; ".join(faults), place="readyz")
    return openapi_models.Health(status="ready")


async def _history(deps: Dependencies) -> str:
    try:
        await asyncio.wait_for(asyncio.to_thread(deps.history.probe), PROBE_SECONDS)
    except TimeoutError:
        return f"the history {deps.history.place} does not answer"
    except PlannerError as error:
        return f"the history {deps.history.place} cannot be used: {error.problem}"
    return ""


async def _tracers(deps: Dependencies) -> str:
    if deps.tracers_ready is None:
        return ""
    try:
        await asyncio.wait_for(deps.tracers_ready(), PROBE_SECONDS)
    except TimeoutError:
        return "the tracing processes do not answer"
    except PlannerError as error:
        return error.problem
    except Exception as error:  # whatever Ray says of a deployment that is not there
        _log.warning("the tracing processes cannot be reached: %s", error)
        return "the tracing processes cannot be reached"
    return ""
