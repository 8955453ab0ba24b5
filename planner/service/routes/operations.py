"""For whoever runs the service: is it alive, and is it ready?"""

from __future__ import annotations

import asyncio
import logging
from typing import Annotated

from fastapi import APIRouter, Depends

from planner.errors import PlannerError
from planner.service import documents
from planner.service.office import Office, office
from planner.service.problems import RequestError

router = APIRouter(tags=["operations"])
PROBE_SECONDS = 3.0
"""Less than any prober waits."""
_log = logging.getLogger("planner.service")


@router.get("/livez", summary="Is this replica alive?", **documents.alive)
async def livez() -> documents.Health:
    """Answers as long as the replica can answer at all."""
    return documents.Health(status="alive")


@router.get("/readyz", summary="Can jobs be planned?", **documents.ready)
async def readyz(here: Annotated[Office, Depends(office)]) -> documents.Health:
    """200 if the history and the tracing processes can be reached, else 503 that says which cannot."""
    faults = [fault for fault in await asyncio.gather(_history(here), _tracers(here)) if fault]
    if faults:
        raise RequestError(503, "; ".join(faults), place="readyz")
    return documents.Health(status="ready")


async def _history(here: Office) -> str:
    try:
        await asyncio.wait_for(asyncio.to_thread(here.history.ping), PROBE_SECONDS)
    except TimeoutError:
        return f"the history {here.history.place} does not answer"
    except PlannerError as error:
        return f"the history {here.history.place} cannot be used: {error.problem}"
    return ""


async def _tracers(here: Office) -> str:
    if here.tracers_ready is None:
        return ""
    try:
        await asyncio.wait_for(here.tracers_ready(), PROBE_SECONDS)
    except TimeoutError:
        return "the tracing processes do not answer"
    except PlannerError as error:
        return error.problem
    except Exception as error:  # whatever Ray says of a deployment that is not there
        _log.warning("the tracing processes cannot be reached: %s", error)
        return "the tracing processes cannot be reached"
    return ""
