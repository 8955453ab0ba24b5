"""Loads a checkpoint before training: allocates what `torch.load` would, and keeps what stays of it."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from planner.errors import SpecError
from planner.events import Category
from planner.host_events import Backing, HostBlock, HostCategory
from planner.job import schema
from planner.training.host import Host
from planner.training.observer import Observer

MAP_LOCATIONS = ("cpu", "device")


def load(
    model: nn.Module, spec: schema.CheckpointLoad, device: torch.device, observer: Observer, host: Host
) -> dict[str, Tensor] | None:
    """Loads a state dict as large as the model's into the model; returns it if the reference is kept.

    Mapped to `cpu`, the host's tensors are zeros without storage of their own, so that a plan of a large model needs
    no such memory on the host; the device sees the same copies. Raises SpecError for another map_location.
    """
    if spec.map_location not in MAP_LOCATIONS:
        raise SpecError(
            f"unknown map_location {spec.map_location!r}",
            allowed=", ".join(MAP_LOCATIONS),
            place="train.checkpoint_load.map_location",
        )
    if any(isinstance(tensor, DTensor) for tensor in model.state_dict().values()):
        _into_shards(model, spec, host)
        return None
    on_device = spec.map_location == "device" or device.type == "cpu"
    read = _blocks(model, spec)
    if on_device:  # each tensor is read on the host and copied, one after the other
        read = [max(read, key=lambda each: each.bytes)] if read else []
    with host.hold(*read):
        state = _on_device(model, observer) if on_device else _on_host(model)
        model.load_state_dict(state)
    if not spec.keep_reference:
        return None
    if not on_device:
        host.keep(*read)
    return state


def _blocks(model: nn.Module, spec: schema.CheckpointLoad) -> list[HostBlock]:
    """What the file takes once it is loaded: tensors that share memory are there once."""
    backing = Backing.FILE if spec.mmap else Backing.OWN
    storages = {tensor.untyped_storage()._cdata: (name, tensor.nbytes) for name, tensor in model.state_dict().items()}
    return [
        HostBlock(bytes=size, category=HostCategory.CHECKPOINT, backing=backing, name=f"checkpoint.{name}")
        for name, size in storages.values()
    ]


def _into_shards(model: nn.Module, spec: schema.CheckpointLoad, host: Host) -> None:
    """As torch.distributed.checkpoint loads a sharded model: each rank reads its own shards on the host and copies them
    into place, so that the device takes nothing."""
    if spec.map_location == "device":
        raise SpecError(
            "a sharded model does not take a whole state dict on the device",
            allowed="cpu: each rank reads its own shards, as torch.distributed.checkpoint does",
            place="train.checkpoint_load.map_location",
        )
    with torch.no_grad():
        for tensor in model.state_dict().values():
            local = tensor.to_local() if isinstance(tensor, DTensor) else tensor
            with host.hold(HostBlock(bytes=local.nbytes, category=HostCategory.CHECKPOINT, name="shard")):
                local.copy_(torch.zeros((), dtype=local.dtype, device="cpu").expand(local.shape))


def _on_device(model: nn.Module, observer: Observer) -> dict[str, Tensor]:
    state: dict[str, Tensor] = {}
    copies: dict[int, Tensor] = {}
    for name, tensor in model.state_dict().items():
        # A checkpoint keeps shared tensors shared: tied embeddings are loaded once.
        copy = copies.get(tensor.untyped_storage()._cdata)
        if copy is None or copy.shape != tensor.shape:
            copy = tensor.detach().clone()
            observer.assign(copy, Category.OTHER, f"checkpoint.{name}")
            copies[tensor.untyped_storage()._cdata] = copy
        state[name] = copy
    return state


def _on_host(model: nn.Module) -> dict[str, Tensor]:
    return {
        name: torch.zeros((), dtype=tensor.dtype, device="cpu").expand(tensor.shape)
        for name, tensor in model.state_dict().items()
    }
