"""Loads a checkpoint before training: allocates what `torch.load` would, and keeps what stays of it."""

from __future__ import annotations

from typing import Any

import torch
from torch.distributed.tensor import DTensor

from planner.errors import SpecError
from planner.host_events import HostBlock, HostCategory
from planner.training import absent_peers, checkpoint_reading, observers
from planner.training.checkpoint_reading import Loading

MAP_LOCATIONS = ("cpu", "device")


def load(loading: Loading) -> Any:
    """Loads a checkpoint as large as the model, or the model and its optimizer; returns its state dict if the reference
    is kept.

    Raises SpecError for another map_location.
    """
    spec = loading.spec
    if spec.map_location not in MAP_LOCATIONS:
        raise SpecError(
            f"unknown map_location {spec.map_location!r}",
            allowed=", ".join(MAP_LOCATIONS),
            place="train.checkpoint_load.map_location",
        )
    state: Any = None
    if spec.kind != "state_dict":
        # Jobs that load so alone pay for the import of torch.distributed.checkpoint.
        from planner.training import distributed_checkpoints

        with absent_peers.naming_devices():
            state = distributed_checkpoints.LOADS[spec.kind](loading)
    elif any(isinstance(tensor, DTensor) for tensor in loading.model.state_dict().values()):
        _into_shards(loading)
    else:
        state = _whole(loading)
    observers.tell_optimizer_state(loading.optimizer, loading.model, loading.observer)
    return state if spec.keep_reference else None


def _whole(loading: Loading) -> Any:
    """As a program that calls torch.load, load_state_dict of the model and that of the optimizer."""
    state: dict[str, Any] = {"model": loading.model_state()}
    if loading.spec.optimizer:
        state["optimizer"] = checkpoint_reading.by_numbers(loading)
    with loading.held(state):
        loading.model.load_state_dict(state["model"])
        if loading.spec.optimizer:
            loading.optimizer.load_state_dict(state["optimizer"])
    return state


def _into_shards(loading: Loading) -> None:
    """As torch.distributed.checkpoint loads a sharded model: each rank reads its own shards on the host and copies them
    into place, so that the device takes nothing."""
    if loading.spec.map_location == "device":
        raise SpecError(
            "a sharded model does not take a whole state dict on the device",
            allowed="cpu: each rank reads its own shards, as torch.distributed.checkpoint does",
            remedy="kind: full_state_dict takes a whole one, on the device or on the host",
            place="train.checkpoint_load.map_location",
        )
    with torch.no_grad():
        for tensor in loading.model.state_dict().values():
            local = tensor.to_local() if isinstance(tensor, DTensor) else tensor
            with loading.host.hold(HostBlock(bytes=local.nbytes, category=HostCategory.CHECKPOINT, name="shard")):
                local.copy_(torch.zeros((), dtype=local.dtype, device="cpu").expand(local.shape))
