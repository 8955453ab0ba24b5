"""Finds the record of a GPU by what jobs, schedulers and clusters call it."""

from __future__ import annotations

from functools import cache

from planner.hardware.gpus import GPUS
from planner.hardware.records import GpuRecord

PRODUCT_LABEL = "nvidia.com/gpu.product"
"""The node label that names a GPU; its values are `GpuRecord.node_label`."""


@cache
def gpus() -> dict[str, GpuRecord]:
    """Every GPU by its name."""
    return {gpu.name: gpu for gpu in GPUS}


def names() -> list[str]:
    """The names of all GPUs."""
    return list(gpus())


def by_name(name: str) -> GpuRecord | None:
    """The GPU of that name, in letters of either case."""
    return _by_folded_name().get(name.casefold())


def by_alias(alias: str) -> list[GpuRecord]:
    """The GPUs that a scheduler may mean by a name such as `H100` or `h100`."""
    return [gpu for gpu in GPUS if alias.casefold() in (known.casefold() for known in gpu.aliases)]


def by_node_label(value: str) -> GpuRecord | None:
    """The GPU of nodes with this value of `nvidia.com/gpu.product`.

    None for a part of a GPU (`-MIG-1g.10gb`) and one that is shared in time (`-SHARED`): what a process may use of them
    is not the product's to say.
    """
    return _by_folded_label().get(value.casefold())


def is_model(name: str, model: str) -> bool:
    """Whether the GPU of that name is of a model; a GPU that has no record is if its name begins with the model's."""
    known = by_name(name)
    return known.model == model if known else name == model or name.startswith(f"{model}-")


@cache
def _by_folded_name() -> dict[str, GpuRecord]:
    return {gpu.name.casefold(): gpu for gpu in GPUS}


@cache
def _by_folded_label() -> dict[str, GpuRecord]:
    return {gpu.node_label.casefold(): gpu for gpu in GPUS if gpu.node_label}
