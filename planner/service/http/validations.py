"""Endpoints of validations: measures a job's step on the cluster; reads the calibration in use."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from typing import Annotated, Any

from fastapi import APIRouter, Query, Request
from fastapi.responses import JSONResponse

from planner.job.loading import load_bundle
from planner.job.masking import MASK
from planner.job.schema import Job
from planner.planning.planned_classes import refuse_unplannable
from planner.searching.requests import read_job_member
from planner.service.history.records import ValidationState
from planner.service.history.store import History
from planner.service.http.bodies import receive_object
from planner.service.http.dependencies import Injected, code_runners_only
from planner.service.http.openapi import EXAMPLE_JOB, Answer, in_json, problems, takes
from planner.service.http.problems import RequestError
from planner.service.orders import refuse_code
from planner.service.validation import requests
from planner.settings import Settings
from planner.truth.calibration import interval as calibrations
from planner.truth.calibration.interval import Calibration

router = APIRouter(tags=["validations"])


class Validation(Answer):
    """A step that was measured, or will be. `error_percent` is |predicted - measured| / measured * 100."""

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


class ValidationList(Answer):
    validations: list[Validation]


class CalibrationInUse(Answer):
    """docs/calibration.md says what the figures mean."""

    id: str
    reserved_error: float | None
    """null: recorded runs of the job's kind say it."""
    outside_correction_bytes: int
    corrections: list[dict[str, Any]]
    quarantined: list[dict[str, Any]]
    stored_at: str | None
    measurements: int


_EXAMPLE = {"job": EXAMPLE_JOB, "device": "cuda", "mode": "auto"}
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
            "maxItems": requests.MOST_RANKS,
            "description": "Default: one of each rank class.",
        },
        "mode": {"type": "string", "enum": [mode.value for mode in requests.Mode]},
        "device": {"type": "string", "enum": [device.value for device in requests.Device]},
    },
    "additionalProperties": False,
    "example": _EXAMPLE,
}


@router.post(
    "/v1/validations",
    status_code=202,
    summary="Measure a job's step",
    response_model=Validation,
    responses=problems(400, 401, 403, 404, 413, 415, 422),
    openapi_extra=takes(in_json(_BODY, _EXAMPLE)),
)
async def validate(request: Request, deps: Injected) -> JSONResponse:
    """Runs one step for real on a GPU of the job's kind, or on CPUs, and sets it beside the plan.

    Answers at once; the state is `refused` where the cluster has no such GPU, else `pending`: ask for it by its id.
    """
    body = await receive_object(request)
    asked = await asyncio.to_thread(_request, body, deps.history, deps.settings)
    if asked.job.model.factory:
        code_runners_only(request)
    if deps.validations is None:
        raise RequestError(
            501, "this service measures nothing", remedy="deploy planner with its Validations deployment"
        )
    started = await deps.validations.start(asked)
    request.state.plan_id = started["plan_id"]
    headers = {"Location": f"/v1/validations/{started['validation_id']}", "Retry-After": "2"}
    return JSONResponse(started, 202, headers)


@router.get(
    "/v1/validations/{validation_id}", summary="A validation", response_model=Validation, responses=problems(404)
)
async def validation_by_id(validation_id: str, deps: Injected) -> dict[str, Any]:
    """Its state and, when it is done, predicted beside measured."""
    stored = await asyncio.to_thread(deps.history.validations.get, validation_id)
    if stored is None:
        raise RequestError(404, f"there is no validation {validation_id[:40]!a}", remedy="POST /v1/validations")
    return requests.validation_json(stored)


@router.get(
    "/v1/validations",
    summary="The newest validations",
    response_model=ValidationList,
    responses=problems(422),
    response_model_exclude_unset=True,
)
async def validations(
    deps: Injected,
    limit: Annotated[int, Query(ge=1, le=1000)] = 100,
    plan_id: Annotated[str | None, Query(max_length=253)] = None,
    gpu: Annotated[str | None, Query(max_length=253)] = None,
    state: ValidationState | None = None,
) -> dict[str, Any]:
    """Newest first, without their results."""
    newest = await asyncio.to_thread(deps.history.validations.newest, limit, plan_id=plan_id, state=state, gpu=gpu)
    listed = [requests.validation_json(validation, with_result=False) for validation in newest]
    return {"schema": requests.LIST_SCHEMA, "validations": listed}


@router.get("/v1/calibration", summary="What was learnt", response_model=CalibrationInUse, responses=problems())
async def calibration(deps: Injected) -> dict[str, Any]:
    """The corrections in use, on how many measurements each stands; and which were set aside, and why."""
    current = await asyncio.to_thread(deps.history.calibrations.current)
    if current is None:
        return {**calibrations.to_json(Calibration.none()), "stored_at": None, "measurements": 0}
    return {
        **current.document,
        "stored_at": current.stored_at.isoformat(),
        "measurements": current.measurements,
    }


def _request(body: Mapping[str, Any], history: History, settings: Settings) -> requests.Request:
    requests.check_keys(body)
    plan_id = body.get("plan_id", "")
    job = read_job_member(body["job"]) if "job" in body else _job_of_plan(plan_id, history)
    refuse_unplannable(job)
    refuse_code(job, settings)
    return requests.build_request(body, job, str(plan_id))


def _job_of_plan(plan_id: Any, history: History) -> Job:
    document = history.plans.document(plan_id) if isinstance(plan_id, str) else None
    if document is None:
        raise RequestError(
            404, f"there is no plan {str(plan_id)[:40]!a}", remedy="plan the job first: POST /v1/plans", place="plan_id"
        )
    if "job" not in document:
        raise RequestError(
            422,
            f"{plan_id} is the run of a program, and a validation measures the step of a spec",
            remedy="the callback in the training reports what the program takes (docs/python.md)",
            place="plan_id",
        )
    if MASK in json.dumps(document["job"]):
        raise RequestError(
            422,
            f"the job of {plan_id} has masked secrets, and does not run without them",
            allowed="the job itself (job), which is validated with its true values",
            place="plan_id",
        )
    return load_bundle(document["job"], "the plan's job")
