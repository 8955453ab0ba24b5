"""What OpenAPI says of runs of programs."""

from __future__ import annotations

from typing import Any

from pydantic import ConfigDict

from planner.report.statement import Verdict
from planner.service.openapi_models import PendingPlan, _Answer, prefer, problems
from planner.service.run_requests import EXAMPLE, RunBody


class Run(_Answer):
    """A program's run, as `planner run --format json` prints it; abridged here."""

    model_config = ConfigDict(extra="allow")
    plan_id: str
    verdict: Verdict
    calibrated: bool
    command: list[str]
    gpu: str
    nodes: int
    gpus_per_node: int
    ending: str
    iterations: int
    rank_classes: list[dict[str, Any]]
    host: dict[str, Any] | None = None
    """What each node holds, as in a plan."""
    assumptions: list[dict[str, Any]]
    provenance: dict[str, str]
    seconds: dict[str, float]


def _query() -> list[dict[str, Any]]:
    """The keys of the body, for a tarball; there a command is one text."""
    described = RunBody.model_json_schema()["properties"]
    return [
        {
            "name": name,
            "in": "query",
            "required": False,
            "description": "of a tarball (required)" if name == "command" else "of a tarball",
            "schema": {"type": "string"} if name == "command" else described[name],
        }
        for name in described
        if name != "path"
    ]


_TARBALL = {"schema": {"type": "string", "format": "binary"}}
run_a_program: dict[str, Any] = {
    "response_model": Run,
    "responses": {
        202: {"model": PendingPlan, "description": "it is being run"},
        **problems(400, 401, 403, 408, 413, 415, 422, 504),
    },
    "openapi_extra": {
        "requestBody": {
            "required": True,
            "content": {
                "application/json": {"schema": RunBody.model_json_schema(), "example": EXAMPLE},
                "application/gzip": _TARBALL,
                "application/x-tar": _TARBALL,
            },
        },
        "security": [{"bearer": []}, {}],
        "parameters": [*_query(), prefer("`wait=N`: at most N seconds; `respond-async`: 202 instead of 504")],
    },
}
one_run: dict[str, Any] = {"response_model": Run, "responses": problems(404)}
