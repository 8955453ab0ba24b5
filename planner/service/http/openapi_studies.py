"""What OpenAPI says of searches, of validations and of the calibration that follows from them."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel, Field

from planner.searching.requests import MOST_TOP, USUAL_SECONDS, USUAL_TOP
from planner.searching.weighing import Objective
from planner.service.history.records import SearchState, ValidationState
from planner.service.http.openapi import EXAMPLE_JOB, prefer, problems, takes
from planner.service.validation.requests import MOST_RANKS, Device, Mode

CANCEL_SECONDS = 5.0
"""How long the answer to DELETE waits for the end."""


class Candidate(BaseModel):
    """What is different from the job, and what a plan says of the fullest rank then."""

    change: dict[str, Any]
    verdict: str
    device_bytes: int
    headroom_bytes: int
    capacity_bytes: int
    relative_cost: float | None
    """The roofline's GPU time of a token over that of the cheapest shown; null where the roofline knows no speeds."""
    shares_of_cost: dict[str, float]


class Progress(BaseModel):
    """Of how much what is done."""

    doing: str
    """For people."""
    looked_at: int
    to_look_at: int
    planned: int
    traces_left: int
    found: int
    wanted: int


class Search(BaseModel):
    """A search as it is known: `planner search --format json`, with its state. docs/search.md says more."""

    schema_: str = Field(alias="schema")
    search_id: str
    state: SearchState
    asked_at: str
    finished_at: str | None
    request: dict[str, Any]
    """As it was asked for, without the job."""
    objective: Objective
    complete: bool
    """The candidates are the best of all that were looked at: true only if it is done."""
    stopped: str
    """Why it is `stopped`: time, cancelled, interrupted (the service ended)."""
    candidates: list[Candidate]
    """The best first."""
    closest: Candidate | None
    """Of those that do not fit."""
    space: dict[str, Any]
    global_batch: int
    assumptions: list[str]
    """Of the ranking."""
    seconds: dict[str, float | None]
    progress: Progress
    problem: dict[str, str] | None
    """Why it is refused or has failed: problem, allowed, remedy, place."""


SEARCH_EXAMPLE = {"job": EXAMPLE_JOB, "gpus": 8, "axes": ["recompute=none,full", "tp=1..2"], "objective": "cost"}
_AXES = [
    {"type": "array", "items": {"type": "string"}, "description": "name=values, as on the command line"},
    {"type": "object", "additionalProperties": True, "description": "names with a value, a text of them or a list"},
]
_TEXTS = [{"type": "string"}, {"type": "array", "items": {"type": "string"}}]
_SEARCH_BODY: dict[str, Any] = {
    "type": "object",
    "properties": {
        "job": {"type": "object", "description": "As POST /v1/plans takes it in JSON."},
        "gpus": {
            "anyOf": [{"type": "integer", "minimum": 1}, {"type": "string"}],
            "description": "64, 8x8, 8x8xH100; default: as many as the job has, whose degrees are all varied.",
        },
        "gpu": {"anyOf": _TEXTS, "description": "A GPU in the place of the job's; several are compared."},
        "axes": {"anyOf": _AXES, "description": "Restrict the usual axes, or add to them."},
        "objective": {"type": "string", "enum": [each.value for each in Objective], "default": "cost"},
        "top": {"type": "integer", "minimum": 1, "maximum": MOST_TOP, "default": USUAL_TOP},
        "global_batch": {"type": "integer", "minimum": 1, "description": "Sequences of an optimizer step."},
        "seconds": {"type": "number", "exclusiveMinimum": 0, "default": USUAL_SECONDS},
    },
    "required": ["job"],
    "additionalProperties": False,
    "example": SEARCH_EXAMPLE,
}

search: dict[str, Any] = {
    "response_model": Search,
    "responses": {200: {"model": Search, "description": "it is over"}, **problems(400, 401, 403, 408, 413, 415, 422)},
    "openapi_extra": takes(_SEARCH_BODY, SEARCH_EXAMPLE)
    | {"parameters": [prefer("`wait=N`: at most N seconds for its end")]},
}
one_search: dict[str, Any] = {"response_model": Search, "responses": problems(404)}
end_search: dict[str, Any] = {
    "response_model": Search,
    "responses": problems(401, 404),
    "openapi_extra": {"security": [{"bearer": []}, {}]},
}


class Validation(BaseModel):
    """A step that was measured, or will be. `error_percent` is |predicted - measured| / measured * 100."""

    schema_: str = Field(alias="schema")
    validation_id: str
    state: ValidationState
    plan_id: str
    mode: str
    """As asked for; once it is done, as it was run."""
    device: str
    ranks: list[int]
    gpu: str
    """The job's GPU; `cpu` where the step ran on a CPU."""
    torch: str
    asked_at: str
    finished_at: str | None
    out_of_memory: bool | None
    error_percent: float | None
    problem: str
    result: dict[str, Any] | None = None
    """Predicted beside measured for each rank (docs/calibration.md); null until there is one."""


class ValidationList(BaseModel):
    schema_: str = Field(alias="schema")
    validations: list[Validation]


class CalibrationInUse(BaseModel):
    """docs/calibration.md says what the figures mean."""

    schema_: str = Field(alias="schema")
    id: str
    reserved_error: float
    outside_correction_bytes: int
    corrections: list[dict[str, Any]]
    quarantined: list[dict[str, Any]]
    stored_at: str | None
    measurements: int


VALIDATION_EXAMPLE = {"job": EXAMPLE_JOB, "device": "cuda", "mode": "auto"}
_VALIDATION_BODY: dict[str, Any] = {
    "type": "object",
    "description": "Either plan_id or job.",
    "properties": {
        "plan_id": {"type": "string"},
        "job": {"type": "object", "description": "As POST /v1/plans takes it in JSON."},
        "ranks": {
            "type": "array",
            "items": {"type": "integer", "minimum": 0},
            "minItems": 1,
            "maxItems": MOST_RANKS,
            "description": "Default: one of each rank class.",
        },
        "mode": {"type": "string", "enum": [each.value for each in Mode]},
        "device": {"type": "string", "enum": [each.value for each in Device]},
    },
    "additionalProperties": False,
    "example": VALIDATION_EXAMPLE,
}

validate: dict[str, Any] = {
    "response_model": Validation,
    "responses": problems(400, 401, 403, 404, 413, 415, 422),
    "openapi_extra": takes(_VALIDATION_BODY, VALIDATION_EXAMPLE),
}
one_validation: dict[str, Any] = {"response_model": Validation, "responses": problems(404)}
validation_list: dict[str, Any] = {
    "response_model": ValidationList,
    "responses": problems(422),
    "response_model_exclude_unset": True,
}
calibration: dict[str, Any] = {"response_model": CalibrationInUse, "responses": problems()}
