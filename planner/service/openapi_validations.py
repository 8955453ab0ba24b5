"""What OpenAPI says of validations and of the calibration that follows from them."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel, Field

from planner.history.validation_table import State
from planner.service.openapi_models import EXAMPLE_JOB, problems, takes
from planner.validation.request import MOST_RANKS, Device, Mode


class Validation(BaseModel):
    """A step that was measured, or will be. `error_percent` is |predicted - measured| / measured * 100."""

    schema_: str = Field(alias="schema")
    validation_id: str
    state: State
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
    """Predicted beside measured for each rank (docs/validation.md); null until there is one."""


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


EXAMPLE = {"job": EXAMPLE_JOB, "device": "cuda", "mode": "auto"}
_BODY: dict[str, Any] = {
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
    "example": EXAMPLE,
}

validate: dict[str, Any] = {
    "response_model": Validation,
    "responses": problems(400, 401, 403, 404, 413, 415, 422),
    "openapi_extra": takes(_BODY, EXAMPLE),
}
one_validation: dict[str, Any] = {"response_model": Validation, "responses": problems(404)}
validation_list: dict[str, Any] = {
    "response_model": ValidationList,
    "responses": problems(422),
    "response_model_exclude_unset": True,
}
calibration: dict[str, Any] = {"response_model": CalibrationInUse, "responses": problems()}
