"""What OpenAPI says of timelines."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel, ConfigDict, Field

from planner.service.openapi_models import problems


class Timeline(BaseModel):
    """Memory of a rank class over time; abridged here.

    `at` are events of the allocator, ascending; each list is as long. `held` has for each moment
    `[[holder, bytes, count], ...]`, the largest first, and `who` says who the holders are.
    """

    model_config = ConfigDict(populate_by_name=True, extra="allow")
    schema_: str = Field(alias="schema")
    plan_id: str
    representative: int
    ranks: str
    events: int
    capacity_bytes: int
    outside_bytes: int
    at: list[int]
    places: list[float]
    """Where the moments lie on the width of a picture, from 0 to 1."""
    allocated_bytes: dict[str, list[int]]
    reserved_bytes: list[int]
    phases: list[dict[str, Any]]
    who: list[dict[str, Any]]
    held: list[list[tuple[int, int, int]]]


one_timeline: dict[str, Any] = {"response_model": Timeline, "responses": problems(404, 422)}


class Replay(BaseModel):
    """As `planner replay --format json` prints it, with each device's `timeline` and out-of-memory entries."""

    model_config = ConfigDict(populate_by_name=True, extra="allow")
    schema_: str = Field(alias="schema")
    conf: str
    """PYTORCH_ALLOC_CONF of the recorded process; empty also where the snapshot does not say."""
    devices: list[dict[str, Any]]


replay_a_snapshot: dict[str, Any] = {
    "response_model": Replay,
    "responses": problems(400, 401, 408, 413, 415, 422),
    "openapi_extra": {
        "requestBody": {
            "required": True,
            "content": {"application/octet-stream": {"schema": {"type": "string", "format": "binary"}}},
        },
        "security": [{"bearer": []}, {}],
    },
}
