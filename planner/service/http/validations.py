"""Endpoints of validations: measures a job's step on the cluster; reads the calibration in use."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Mapping
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Query, Request
from fastapi.responses import JSONResponse

from planner.errors import SpecError
from planner.job.loading import BUNDLE_SCHEMA, load_bundle, load_document
from planner.job.schema import Job
from planner.planning import pipeline
from planner.service.history.records import ValidationState
from planner.service.history.store import History
from planner.service.http import openapi_studies as described
from planner.service.http.bodies import object_of
from planner.service.http.dependencies import Dependencies, code_runners_only, dependencies_of
from planner.service.http.problems import RequestError
from planner.service.orders import refuse_code
from planner.service.validation import requests as requests
from planner.settings import Settings
from planner.truth.calibration import interval as calibrations
from planner.truth.calibration.interval import Calibration

router = APIRouter(tags=["validations"])
VALIDATION_ID = re.compile(r"va-[a-z2-7]{26}")
InjectedDependencies = Annotated[Dependencies, Depends(dependencies_of)]


@router.post("/v1/validations", status_code=202, summary="Measure a job's step", **described.validate)
async def validate(request: Request, deps: InjectedDependencies) -> JSONResponse:
    """Runs one step for real on a GPU of the job's kind, or on CPUs, and sets it beside the plan.

    Answers at once; the state is `refused` where the cluster has no such GPU, else `pending`: ask for it by its id.
    """
    body = await object_of(request)
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


@router.get("/v1/validations/{validation_id}", summary="A validation", **described.one_validation)
async def validation_by_id(validation_id: str, deps: InjectedDependencies) -> dict[str, Any]:
    """Its state and, when it is done, predicted beside measured."""
    known = VALIDATION_ID.fullmatch(validation_id)
    found = await asyncio.to_thread(deps.history.validations.get, validation_id) if known else None
    if found is None:
        raise RequestError(404, f"there is no validation {validation_id[:40]!a}", remedy="POST /v1/validations")
    return requests.validation_json(found)


@router.get("/v1/validations", summary="The newest validations", **described.validation_list)
async def validations(
    deps: InjectedDependencies,
    limit: Annotated[int, Query(ge=1, le=1000)] = 100,
    plan_id: Annotated[str | None, Query(max_length=253)] = None,
    gpu: Annotated[str | None, Query(max_length=253)] = None,
    state: ValidationState | None = None,
) -> dict[str, Any]:
    """Newest first, without their results."""
    found = await asyncio.to_thread(deps.history.validations.newest, limit, plan_id=plan_id, state=state, gpu=gpu)
    listed = [requests.validation_json(each, with_result=False) for each in found]
    return {"schema": requests.LIST_SCHEMA, "validations": listed}


@router.get("/v1/calibration", summary="What was learnt", **described.calibration)
async def calibration(deps: InjectedDependencies) -> dict[str, Any]:
    """The corrections in use, on how many measurements each stands; and which were set aside, and why."""
    return await asyncio.to_thread(_calibration, deps.history)


def _calibration(history: History) -> dict[str, Any]:
    current = history.calibrations.current()
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
    job = _job(body["job"]) if "job" in body else _job_of_plan(plan_id, history)
    pipeline.refuse_unplannable(job)
    refuse_code(job, settings)
    return requests.request_of(body, job, str(plan_id))


def _job(given: Any) -> Job:
    if not isinstance(given, Mapping):
        raise SpecError("the job is no object", allowed=f"a bundle ({BUNDLE_SCHEMA}), or a spec in JSON", place="job")
    return load_bundle(given, "job") if "schema" in given else load_document(given, "job")


def _job_of_plan(plan_id: Any, history: History) -> Job:
    found = history.plans.document(plan_id) if isinstance(plan_id, str) else None
    if found is None:
        raise RequestError(
            404, f"there is no plan {str(plan_id)[:40]!a}", remedy="plan the job first: POST /v1/plans", place="plan_id"
        )
    if "job" not in found:
        raise RequestError(
            422,
            f"{plan_id} is the run of a program, and a validation measures the step of a spec",
            remedy="the callback in the training reports what the program takes (docs/python.md)",
            place="plan_id",
        )
    return load_bundle(found["job"], "the plan's job")
