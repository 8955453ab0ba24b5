"""Finds the record of a GPU by what jobs, schedulers and clusters call it."""

from __future__ import annotations

import re
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


def by_any_name(name: str) -> list[GpuRecord]:
    """The GPUs that people may mean by a name: a record's own, an alias, a product as nvidia-smi and node labels write
    it, or some of their words that say the model (`h100 sxm`, `A100 80GB`, `GeForce RTX 4090`), whatever stands between
    the words. Several, where the words leave it open; none, where a word is unknown or no model is said.
    """
    joined = _joined(name)
    if not joined:
        return []
    if exact := [gpu for gpu in GPUS if joined in (_joined(gpu.name), _joined(gpu.product))]:
        return exact
    if called := [gpu for gpu in GPUS if joined in map(_joined, gpu.aliases)]:
        return called
    words = _words(name)
    return [gpu for gpu in GPUS if words <= _all_words(gpu) and any(model <= words for model in _model_words(gpu))]


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


_MAKERS = frozenset({"nvidia", "amd", "geforce", "tesla", "instinct"})
"""Words of products that no one misses."""
_SOCKETS = {"sxm2": "sxm", "sxm4": "sxm", "sxm5": "sxm", "sxm6": "sxm", "40g": "40gb", "80g": "80gb", "16g": "16gb"}


def _words(name: str) -> frozenset[str]:
    found = re.split(r"[\s_-]+", name.casefold().strip())
    return frozenset(_SOCKETS.get(word, word) for word in found) - _MAKERS - {""}


def _joined(name: str) -> str:
    return "".join(word for word in re.split(r"[\s_-]+", name.casefold().strip()) if word not in _MAKERS)


@cache
def _all_words(gpu: GpuRecord) -> frozenset[str]:
    return frozenset().union(*map(_words, (gpu.name, gpu.model, gpu.product, *gpu.aliases)))


@cache
def _model_words(gpu: GpuRecord) -> tuple[frozenset[str], ...]:
    return tuple(map(_words, (gpu.model, *gpu.aliases)))


@cache
def _by_folded_name() -> dict[str, GpuRecord]:
    return {gpu.name.casefold(): gpu for gpu in GPUS}


@cache
def _by_folded_label() -> dict[str, GpuRecord]:
    return {gpu.node_label.casefold(): gpu for gpu in GPUS if gpu.node_label}
