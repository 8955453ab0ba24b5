"""Endpoint of capacity: bytes requested, predicted and measured, and how often a verdict was wrong."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import asdict, fields
from datetime import datetime
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Depends, Query
from pydantic import BaseModel, ConfigDict, Field

from planner.history.capacity_totals import Capacity
from planner.job.gpu_names import look_up
from planner.service.dependencies import Dependencies, dependencies_of
from planner.service.openapi_capacity import AddedDocument, OnGpuDocument, QueueNeedDocument, what_if
from planner.service.problems import RequestError

router = APIRouter(tags=["capacity"])
SCHEMA = "planner.capacity/1"
MOST_GPUS = 16
_COUNTS = tuple(each.name for each in fields(Capacity) if each.name not in ("team", "queue", "gpu"))


class Totals(BaseModel):
    """Sums. Bytes are of all ranks together; requested, predicted and measured are of jobs that have not ended.

    `measured_bytes` are device bytes of the `measured_gpus` ranks that told them, for which their plans had said
    `predicted_of_measured_bytes`. `judged` jobs ended and are remembered; a verdict was wrong if it said that the job
    fits and it ran out of memory, or that it exceeds and it ran.
    """

    jobs: int
    gpus: int
    requested_bytes: int
    predicted_bytes: int
    headroom_bytes: int
    measured_bytes: int
    measured_gpus: int
    predicted_of_measured_bytes: int
    host_requested_bytes: int = 0
    """Main memory that the jobs say their nodes have."""
    host_predicted_bytes: int = 0
    """Main memory that all of their nodes will take."""
    judged: int
    wrong_verdicts: int
    said_fits_ran_out: int
    said_exceeds_ran: int
    ran_out_gpu: int
    """Remembered jobs that ended out of GPU memory; those of which no cause was told are counted here."""
    ran_out_host: int
    """Out of the host's memory."""


class CapacityRow(Totals):
    """One team in one queue on one type of GPU."""

    team: str
    queue: str
    gpu: str


class CapacityDocument(BaseModel):
    """All of it; rows by team, queue and GPU, in that order."""

    model_config = ConfigDict(populate_by_name=True)
    schema_: Literal["planner.capacity/1"] = Field("planner.capacity/1", alias="schema")
    since: datetime | None = None
    rows: list[CapacityRow]
    totals: Totals
    on: list[OnGpuDocument] | None = None
    needs: list[QueueNeedDocument] | None = None
    added: AddedDocument | None = None
    left_out: int | None = None
    """Jobs that were not looked at for `on`, `needs` and `added`, because there are too many."""


@router.get(
    "/v1/capacity",
    summary="GPU memory by team, queue and GPU",
    response_model=CapacityDocument,
    response_model_exclude_none=True,
)
async def capacity(
    deps: Annotated[Dependencies, Depends(dependencies_of)],
    since: Annotated[
        datetime | None,
        Query(description="leaves out verdicts of jobs that ended before this moment, such as 2026-01-31T12:00:00Z"),
    ] = None,
    on: Annotated[
        list[str],
        Query(max_length=MOST_GPUS, description="types of GPU, as the catalog has them: what would be on them"),
    ] = [],  # noqa: B006  FastAPI copies it
    add_nodes: Annotated[int | None, Query(ge=1, le=10_000, description="new nodes with the first of `on`")] = None,
    gpus_per_node: Annotated[int, Query(ge=1, le=64, description="of the new nodes")] = 8,
) -> dict[str, Any]:
    """Requested, predicted and measured bytes, headroom, and wrong verdicts.

    With `on`, also what would be there: each job's verdict on these GPUs, and which of them the waiting jobs need. With
    `add_nodes`, what new nodes of the first of them would change. Reckoned from stored plans: planning a job for that
    GPU says it exactly.
    """
    if since is not None and since.tzinfo is None:
        raise RequestError(
            422, "the moment has no time zone", allowed="such as 2026-01-31T12:00:00Z", place="query.since"
        )
    if add_nodes is not None and not on:
        raise RequestError(422, "of which GPU the new nodes are is not said", remedy="name it", place="query.on")
    kinds = [look_up(name, place="query.on") for name in on]
    found = document(await asyncio.to_thread(deps.history.capacity, since), since)
    if kinds:
        needs, left_out = await asyncio.to_thread(deps.history.read_needs, since)
        more = await asyncio.to_thread(what_if, needs, kinds, add_nodes, gpus_per_node)
        found |= {**more, "left_out": left_out}
    return found


def document(rows: Sequence[Capacity], since: datetime | None = None) -> dict[str, Any]:
    """The JSON object of the contract."""
    sums = Capacity(team="", queue="", gpu="", **{name: sum(getattr(row, name) for row in rows) for name in _COUNTS})
    totals = _plain(sums)
    for name in ("team", "queue", "gpu"):
        del totals[name]
    return {"schema": SCHEMA, "since": since, "rows": [_plain(row) for row in rows], "totals": totals}


def _plain(row: Capacity) -> dict[str, Any]:
    return {**asdict(row), "headroom_bytes": row.headroom_bytes, "wrong_verdicts": row.wrong_verdicts}
