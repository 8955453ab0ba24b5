"""Finds the record of a GPU by what jobs, schedulers and clusters call it, and how fast it computes and talks."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator
from functools import cache

from planner.hardware import mig
from planner.hardware.gpu_records import GpuRecord, Speed
from planner.hardware.gpus import GPUS

PRODUCT_LABEL = "nvidia.com/gpu.product"
"""The node label that names a GPU; its values are `GpuRecord.node_label`."""


@cache
def gpus() -> dict[str, GpuRecord]:
    """Every whole GPU by its name."""
    return {gpu.name: gpu for gpu in GPUS}


@cache
def slices() -> dict[str, tuple[GpuRecord, ...]]:
    """The MIG slices of every GPU that has any, the smallest first, by the GPU's name."""
    return {gpu.name: parts for gpu in GPUS if (parts := tuple(mig.slices_of(gpu)))}


@cache
def digest() -> str:
    """Of all records: another catalog makes other plans."""
    return hashlib.sha256(repr((GPUS, slices())).encode()).hexdigest()[:12]


def names() -> list[str]:
    """The names of all whole GPUs."""
    return list(gpus())


@cache
def _by_folded_name() -> dict[str, GpuRecord]:
    return {gpu.name.casefold(): gpu for gpu in (*GPUS, *(part for parts in slices().values() for part in parts))}


def by_name(name: str) -> GpuRecord | None:
    """The GPU of that name, or the MIG slice, in letters of either case."""
    return _by_folded_name().get(name.casefold())


def slice_of(gpu: GpuRecord, profile: str) -> GpuRecord | None:
    """The slice of this profile (`1g.10gb`) of a GPU, or of the GPU that a slice is of; None where it has none."""
    return mig.choose_slice(slices().get(gpu.whole or gpu.name, ()), profile)


def parts_with(part: GpuRecord, least_bytes: float) -> Iterator[GpuRecord]:
    """Of the GPU that a slice is of: its slices and all of it that have so many bytes, the smallest first."""
    parts = (*slices()[part.whole], gpus()[part.whole])
    yield from sorted((one for one in parts if one.total_bytes >= least_bytes), key=lambda one: one.total_bytes)


def by_alias(alias: str) -> list[GpuRecord]:
    """The GPUs that a scheduler may mean by a name such as `H100` or `h100`."""
    return [gpu for gpu in GPUS if alias.casefold() in (known.casefold() for known in gpu.aliases)]


def by_any_name(name: str) -> list[GpuRecord]:
    """The GPUs that people may mean by a name: a record's own, an alias, a product as nvidia-smi and node labels write
    it, or some of their words that say the model (`h100 sxm`, `A100 80GB`, `GeForce RTX 4090`), whatever stands between
    the words. Several, where the words leave it open; none, where a word is unknown or no model is said. With a MIG
    profile in it (`H100:1g.10gb`, `A100-SXM4-40GB MIG 1g.5gb`) the slices of those GPUs that have it; every GPU's,
    where there is nothing else.
    """
    if profile := mig.profile_in(name):
        whole = mig.without_profile(name)
        of = by_any_name(whole) if whole.strip() else GPUS
        parts = [part for gpu in of if (part := slice_of(gpu, profile)) is not None]
        return [part for part in parts if part.slice == profile] or parts
    joined = _joined(name)
    if not joined:
        return []
    if exact := [gpu for gpu in GPUS if joined in (_joined(gpu.name), _joined(gpu.product))]:
        return exact
    if called := [gpu for gpu in GPUS if joined in map(_joined, gpu.aliases)]:
        return called
    words, matches = _words(name), []
    for gpu in GPUS:
        models = [_words(model) for model in (gpu.model, *gpu.aliases)]
        if words <= _words(gpu.name).union(_words(gpu.product), *models) and any(model <= words for model in models):
            matches.append(gpu)
    return matches


def by_node_label(value: str) -> GpuRecord | None:
    """The GPU of nodes with this value of `nvidia.com/gpu.product`.

    `-MIG-1g.10gb` behind it makes a slice of it, as GPU feature discovery labels nodes of one kind of slices. None for
    one that is shared in time (`-SHARED`): what a process may use of it is not the product's to say.
    """
    profile, folded = mig.profile_in(value), mig.without_profile(value).casefold()
    whole = next((gpu for gpu in GPUS if gpu.node_label and gpu.node_label.casefold() == folded), None)
    return slice_of(whole, profile) if whole is not None and profile else whole


def is_model(name: str, model: str) -> bool:
    """Whether the GPU of that name is of a model; a GPU that has no record is if its name begins with the model's."""
    known = by_name(name)
    return known.model == model if known else name == model or name.startswith(f"{model}-")


_MAKERS = frozenset({"nvidia", "amd", "geforce", "tesla", "instinct"})
"""Words of products that no one misses."""
_SOCKETS = {"sxm2": "sxm", "sxm4": "sxm", "sxm5": "sxm", "sxm6": "sxm", "40g": "40gb", "80g": "80gb", "16g": "16gb"}


def _words(name: str) -> frozenset[str]:
    words = re.split(r"[\s_-]+", name.casefold().strip())
    return frozenset(_SOCKETS.get(word, word) for word in words) - _MAKERS - {""}


def _joined(name: str) -> str:
    return "".join(word for word in re.split(r"[\s_-]+", name.casefold().strip()) if word not in _MAKERS)


def speed_of(gpu: GpuRecord | str) -> Speed | None:
    """The peaks of a GPU of the catalog; None for one that a spec describes by its figures."""
    name = gpu.name if isinstance(gpu, GpuRecord) else gpu
    record = by_name(name)
    return None if record is None else record.speed


def network_gb_s(gpu: str) -> float:
    """Between nodes, for each GPU and way: what is usual beside such GPUs (DGX H100 and A100 user guides)."""
    record, speed = by_name(gpu), speed_of(gpu)
    if record is None or speed is None or speed.link_gb_s < 100:
        return 12.5
    if record.arch in ("sm_90", "sm_100", "sm_103", "gfx942"):
        return 50.0
    return 25.0 if record.arch in ("sm_80", "gfx90a") else 12.5
