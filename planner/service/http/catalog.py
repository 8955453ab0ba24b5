"""Endpoints of what a job may name: models, GPUs, releases of torch; and of specs from a few words."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from fastapi import APIRouter, Depends, Request
from pydantic import BaseModel, ConfigDict, Field

from planner.hardware import catalog
from planner.job import hf_config
from planner.service.http.bodies import content_of, media_type, read_beside, unsupported_error
from planner.service.http.body_readers import EXAMPLE, JSON, SpecDocument
from planner.service.http.dependencies import Dependencies, dependencies_of
from planner.service.http.openapi import WRITES, in_json, problems, takes

router = APIRouter(tags=["catalog"])


class ModelEntry(BaseModel):
    """A model as its publisher calls it; `also` are models of the very same config."""

    name: str
    parameters: int
    also: list[str]


class _Listed(BaseModel):
    model_config = ConfigDict(populate_by_name=True)


class ModelList(_Listed):
    schema_: Literal["planner.models/1"] = Field("planner.models/1", alias="schema")
    models: list[ModelEntry]


class GpuEntry(BaseModel):
    """A GPU by its name in the catalog. `total_bytes` is what CUDA reports; `aliases` are how schedulers call it."""

    name: str
    arch: str
    total_bytes: int
    aliases: list[str]


class GpuList(_Listed):
    schema_: Literal["planner.gpus/1"] = Field("planner.gpus/1", alias="schema")
    gpus: list[GpuEntry]


class TorchEntry(BaseModel):
    """A release of torch as `software.torch` names it, and its exact version."""

    torch: str
    version: str
    transformers: str
    own: bool
    """Whether it is the service's own."""


class TorchList(_Listed):
    schema_: Literal["planner.torches/1"] = Field("planner.torches/1", alias="schema")
    torches: list[TorchEntry]


@router.get("/v1/models", summary="Models that a job may name", response_model=ModelList)
async def models() -> dict[str, Any]:
    """Models whose configs planner has; any other is described by its config.json."""
    return {"models": list(hf_config.models().values())}


@router.get("/v1/gpus", summary="GPUs that a job may name", response_model=GpuList)
async def gpus() -> dict[str, Any]:
    """The catalog; any other GPU is described by its bytes and its architecture."""
    return {"gpus": list(catalog.gpus().values())}


@router.get("/v1/torches", summary="Releases of torch that jobs are planned with", response_model=TorchList)
async def torches(deps: Annotated[Dependencies, Depends(dependencies_of)]) -> dict[str, Any]:
    """What this service offers; a job with another release is planned with the nearest, which its plan says."""
    return {
        "torches": [
            TorchEntry(
                torch=torch.minor,
                version=torch.versions["torch"],
                transformers=torch.versions["transformers"],
                own=not torch.python,
            )
            for torch in deps.torches.offered
        ]
    }


spec_router = APIRouter(tags=["specs"])


@spec_router.post(
    "/v1/specs",
    summary="The spec that a few words stand for",
    response_model=SpecDocument,
    responses=problems(*WRITES),
    openapi_extra=takes(in_json({"$ref": "#/components/schemas/SpecBody"}, EXAMPLE)),
)
async def spec(request: Request, deps: Annotated[Dependencies, Depends(dependencies_of)]) -> dict[str, Any]:
    """As `planner spec`: a model's name, a bundle or a spec, with the options of `planner plan` and values set in it.

    Nothing is planned and nothing stored. What nobody said is in `taken`.
    """
    if (kind := media_type(request)) != JSON:
        raise unsupported_error(kind, JSON)
    body = await content_of(request)
    reader = "planner.service.http.body_readers:read_spec_request"
    document: dict[str, Any] = await read_beside(deps.bodies, reader, body, kind)
    return document
