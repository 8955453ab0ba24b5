"""Endpoints of what a job may name: models, GPUs, releases of torch; and of specs from a few words."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter, Request
from pydantic import BaseModel

from planner.hardware import catalog
from planner.job import hf_config
from planner.service.http.bodies import read_beside, receive_content
from planner.service.http.body_readers import EXAMPLE, JSON, SpecDocument, read_spec_request
from planner.service.http.dependencies import Injected
from planner.service.http.openapi import WRITES, Answer, in_json, problems, takes

router = APIRouter(tags=["catalog"])


class ModelEntry(BaseModel):
    """A model as its publisher calls it; `also` are models of the very same config."""

    name: str
    parameters: int
    also: list[str]


class ModelList(Answer):
    models: list[ModelEntry]


class GpuEntry(BaseModel):
    """A GPU by its name in the catalog. `total_bytes` is what CUDA reports; `aliases` are how schedulers call it."""

    name: str
    arch: str
    total_bytes: int
    aliases: list[str]


class GpuList(Answer):
    gpus: list[GpuEntry]


class TorchEntry(BaseModel):
    """A release of torch as `software.torch` names it, and its exact version."""

    torch: str
    version: str
    transformers: str
    own: bool


class TorchList(Answer):
    torches: list[TorchEntry]


@router.get("/v1/models", summary="Models that a job may name", response_model=ModelList)
async def models() -> dict[str, Any]:
    """Models whose configs planner has; any other is described by its config.json."""
    return {"schema": "planner.models/1", "models": list(hf_config.models().values())}


@router.get("/v1/gpus", summary="GPUs that a job may name", response_model=GpuList)
async def gpus() -> dict[str, Any]:
    """The catalog; any other GPU is described by its bytes and its architecture."""
    return {"schema": "planner.gpus/1", "gpus": list(catalog.gpus().values())}


@router.get("/v1/torches", summary="Releases of torch that jobs are planned with", response_model=TorchList)
async def torches(deps: Injected) -> dict[str, Any]:
    """What this service offers; a job with another release is planned with the nearest, which its plan says."""
    return {
        "schema": "planner.torches/1",
        "torches": [
            {"torch": torch.minor, "own": not torch.python}
            | {"version": torch.versions["torch"], "transformers": torch.versions["transformers"]}
            for torch in deps.torches.offered
        ],
    }


spec_router = APIRouter(tags=["specs"])


@spec_router.post(
    "/v1/specs",
    summary="The spec that a few words stand for",
    response_model=SpecDocument,
    responses=problems(*WRITES),
    openapi_extra=takes(in_json({"$ref": "#/components/schemas/SpecBody"}, EXAMPLE)),
)
async def spec(request: Request, deps: Injected) -> dict[str, Any]:
    """As `planner spec`: a model's name, a bundle or a spec, with the options of `planner plan` and values set in it.

    Nothing is planned and nothing stored. What nobody said is in `taken`.
    """
    return await read_beside(deps.bodies, read_spec_request, await receive_content(request, JSON), JSON)
