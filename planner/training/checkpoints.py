"""Loads a state dict before training: allocates what `torch.load` would, and keeps what stays of it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor
from torch.optim.optimizer import Optimizer

from planner.errors import SpecError
from planner.events import Category
from planner.host_events import Backing, HostBlock, HostCategory
from planner.job import schema
from planner.training.host import Host
from planner.training.observers import Observer
from planner.training.optimizers import copy_to_meta


@dataclass(frozen=True, slots=True, kw_only=True)
class Loading:
    """What is loaded into what, and who is told."""

    spec: schema.CheckpointLoad
    model: nn.Module
    optimizer: torch.optim.Optimizer
    device: torch.device
    observer: Observer
    host: Host

    @property
    def _on_device(self) -> bool:
        """Whether the checkpoint's tensors are put on the device: on a CPU there is no other place."""
        return self.spec.map_location == "device" or self.device.type == "cpu"

    def _tensor(self, shape: torch.Size, dtype: torch.dtype) -> Tensor:
        """One that the file has. On the host it is zeros without storage of its own, so that a plan of a large model
        needs no such memory there; the device sees the same copies."""
        if self._on_device:
            return torch.empty(shape, dtype=dtype, device=self.device).zero_()
        return torch.zeros((), dtype=dtype, device="cpu").expand(shape)

    def model_state(self) -> dict[str, Tensor]:
        """The model's state dict as it comes from the file, whole tensors."""
        state: dict[str, Tensor] = {}
        copies: dict[tuple[int, torch.Size], Tensor] = {}
        for name, tensor in self.model.state_dict().items():
            # A checkpoint keeps shared tensors shared: tied embeddings are loaded once.
            local = tensor.to_local() if isinstance(tensor, DTensor) else tensor
            key = local.untyped_storage()._cdata, tensor.shape
            if key not in copies:
                copies[key] = self._copy(name, tensor)
            state[name] = copies[key]
        return state

    def _copy(self, name: str, tensor: Tensor) -> Tensor:
        copy = self._tensor(tensor.shape, tensor.dtype)
        if self._on_device:
            if not isinstance(tensor, DTensor):
                copy.copy_(tensor.detach())
            self.observer.assign(copy, Category.OTHER, f"checkpoint.{name}")
        return copy

    def optimizer_state(self, *, by_names: bool) -> dict[str, Any]:
        """As `optimizer.state_dict()` gives it, parameters by their numbers; or `by_names` as
        `get_optimizer_state_dict` does. Tensors are whole. Raises SpecError for an optimizer that does not step on the
        meta device."""
        parameters = [parameter for group in self.optimizer.param_groups for parameter in group["params"]]
        named = self.model.named_parameters() if by_names else enumerate(parameters)
        keys: dict[int, Any] = {id(parameter): key for key, parameter in named}
        state = {
            keys[id(parameter)]: {name: self._loaded(value) for name, value in values.items()}
            for parameter, values in zip(parameters, _first_states(self.optimizer), strict=True)
            if values
        }
        groups = [
            {**group, "params": [keys[id(parameter)] for parameter in group["params"]]}
            for group in self.optimizer.param_groups
        ]
        return {"state": state, "param_groups": groups}

    def _loaded(self, value: Any) -> Any:
        """A tensor from the meta device comes from a file; one of the host (a count of steps) is as it is."""
        if not isinstance(value, Tensor) or value.device.type != "meta":
            return value
        return self._tensor(value.shape, value.dtype)

    @contextmanager
    def held(self, state: Any) -> Iterator[None]:
        """Inside, the host holds what it reads of a state dict: all of it, or on its way to the device one tensor
        after the other. What the program keeps of it stays."""
        backing = Backing.FILE if self.spec.mmap else Backing.OWN
        blocks = [
            HostBlock(bytes=tensor.nbytes, category=HostCategory.CHECKPOINT, backing=backing, name=f"checkpoint.{name}")
            for name, tensor in _distinct(state).items()
        ]
        if self._on_device:
            blocks = [max(blocks, key=lambda block: block.bytes)] if blocks else []
        with self.host.hold(*blocks):
            yield
        if self.spec.keep_reference and not self._on_device:
            self.host.keep(*blocks)


def _distinct(state: Any, name: str = "") -> dict[str, Tensor]:
    """The tensors of a nested state dict by their names, each once."""
    tensors: dict[str, Tensor] = {}
    if isinstance(state, Tensor):
        tensors[name] = state
    children = state.items() if isinstance(state, dict) else enumerate(state) if isinstance(state, list) else ()
    for key, value in children:
        tensors.update(_distinct(value, f"{name}.{key}" if name else str(key)))
    names = {id(tensor): key for key, tensor in reversed(tensors.items())}
    return {key: tensors[key] for key in names.values()}


def _first_states(optimizer: Optimizer) -> list[dict[str, Any]]:
    """For each parameter, whole, what a step of a twin on the meta device makes."""
    shapes = {parameter: parameter.shape for group in optimizer.param_groups for parameter in group["params"]}
    twin = copy_to_meta(optimizer, shapes)
    try:
        twin.step()
    except Exception as refusal:
        raise SpecError(
            f"the state that {type(optimizer).__name__} loads is not known: it does not step without a device"
            f" ({type(refusal).__name__}: {str(refusal).splitlines()[0] if str(refusal) else ''})",
            allowed="an optimizer of torch.optim",
            remedy="optimizer: false loads the model alone",
            place="train.checkpoint_load.optimizer",
        ) from refusal
    return [dict(twin.state[parameter]) for group in twin.param_groups for parameter in group["params"]]


def load(loading: Loading) -> Any:
    """Loads by load_state_dict a checkpoint as large as the model, or the model and its optimizer; the state dict of a
    model that is not sharded."""
    if any(isinstance(tensor, DTensor) for tensor in loading.model.state_dict().values()):
        _load_shards(loading)
        return None
    return _load_whole(loading)


def _load_whole(loading: Loading) -> Any:
    """As a program that calls torch.load, load_state_dict of the model and that of the optimizer."""
    state: dict[str, Any] = {"model": loading.model_state()}
    if loading.spec.optimizer:
        state["optimizer"] = loading.optimizer_state(by_names=False)
    with loading.held(state):
        loading.model.load_state_dict(state["model"])
        if loading.spec.optimizer:
            loading.optimizer.load_state_dict(state["optimizer"])
    return state


def _load_shards(loading: Loading) -> None:
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
