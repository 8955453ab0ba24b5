"""Endpoints of what may be named in a job: models whose configs planner has, GPUs, releases of torch."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from fastapi import APIRouter, Depends
from pydantic import BaseModel, ConfigDict, Field

from planner.hardware import catalog
from planner.job import known_models
from planner.service.dependencies import Dependencies, dependencies_of

router = APIRouter(tags=["catalog"])


class ModelEntry(BaseModel):
    """A model as its publisher calls it; `also` are models of the very same config."""

    name: str
    parameters: int
    also: list[str]


class ModelList(BaseModel):
    model_config = ConfigDict(populate_by_name=True)
    schema_: Literal["planner.models/1"] = Field("planner.models/1", alias="schema")
    models: list[ModelEntry]


class GpuEntry(BaseModel):
    """A GPU by its name in the catalog. `total_bytes` is what CUDA reports; `aliases` are how schedulers call it."""

    name: str
    arch: str
    total_bytes: int
    aliases: list[str]


class GpuList(BaseModel):
    model_config = ConfigDict(populate_by_name=True)
    schema_: Literal["planner.gpus/1"] = Field("planner.gpus/1", alias="schema")
    gpus: list[GpuEntry]


class TorchEntry(BaseModel):
    """A release of torch as `software.torch` names it, and its exact version."""

    torch: str
    version: str
    transformers: str
    own: bool
    """Whether it is the service's own."""


class TorchList(BaseModel):
    model_config = ConfigDict(populate_by_name=True)
    schema_: Literal["planner.torches/1"] = Field("planner.torches/1", alias="schema")
    torches: list[TorchEntry]


@router.get("/v1/models", summary="Models that a job may name", response_model=ModelList)
async def models() -> dict[str, Any]:
    """Models whose configs planner has; any other is described by its config.json."""
    found = known_models.models().values()
    return {"models": [{"name": each.name, "parameters": each.parameters, "also": list(each.also)} for each in found]}


@router.get("/v1/gpus", summary="GPUs that a job may name", response_model=GpuList)
async def gpus() -> dict[str, Any]:
    """The catalog; any other GPU is described by its bytes and its architecture."""
    found = catalog.gpus().values()
    return {
        "gpus": [
            {"name": each.name, "arch": each.arch, "total_bytes": each.total_bytes, "aliases": list(each.aliases)}
            for each in found
        ]
    }


@router.get("/v1/torches", summary="Releases of torch that jobs are planned with", response_model=TorchList)
async def torches(deps: Annotated[Dependencies, Depends(dependencies_of)]) -> dict[str, Any]:
    """What this service offers; a job with another release is planned with the nearest, which its plan says."""
    return {
        "torches": [
            {
                "torch": each.minor,
                "version": each.versions["torch"],
                "transformers": each.versions["transformers"],
                "own": not each.python,
            }
            for each in deps.torches.offered
        ]
    }
