"""What a checkpoint's file gives: tensors on the device or on the host, and the state of an optimizer."""

from __future__ import annotations

import copy
from collections import defaultdict
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
    def on_device(self) -> bool:
        """Whether the checkpoint's tensors are put on the device: on a CPU there is no other place."""
        return self.spec.map_location == "device" or self.device.type == "cpu"

    def tensor(self, shape: torch.Size, dtype: torch.dtype) -> Tensor:
        """One that the file has. On the host it is zeros without storage of its own, so that a plan of a large model
        needs no such memory there; the device sees the same copies."""
        if self.on_device:
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

    @contextmanager
    def held(self, state: Any) -> Iterator[None]:
        """Inside, the host holds what it reads of a state dict: all of it, or on its way to the device one tensor
        after the other. What the program keeps of it stays."""
        backing = Backing.FILE if self.spec.mmap else Backing.OWN
        blocks = [
            HostBlock(bytes=each.nbytes, category=HostCategory.CHECKPOINT, backing=backing, name=f"checkpoint.{name}")
            for name, each in _distinct(state).items()
        ]
        if self.on_device:
            blocks = [max(blocks, key=lambda each: each.bytes)] if blocks else []
        with self.host.hold(*blocks):
            yield
        if self.spec.keep_reference and not self.on_device:
            self.host.keep(*blocks)

    def _copy(self, name: str, tensor: Tensor) -> Tensor:
        copy = self.tensor(tensor.shape, tensor.dtype)
        if self.on_device:
            if not isinstance(tensor, DTensor):
                copy.copy_(tensor.detach())
            self.observer.assign(copy, Category.OTHER, f"checkpoint.{name}")
        return copy


def _distinct(state: Any, name: str = "") -> dict[str, Tensor]:
    """The tensors of a nested state dict by their names, each once."""
    found: dict[str, Tensor] = {}
    if isinstance(state, Tensor):
        found[name] = state
    children = state.items() if isinstance(state, dict) else enumerate(state) if isinstance(state, list) else ()
    for key, value in children:
        found.update(_distinct(value, f"{name}.{key}" if name else str(key)))
    names = {id(each): key for key, each in reversed(found.items())}
    return {key: found[key] for key in names.values()}


State = dict[str, Any]


def by_numbers(loading: Loading) -> State:
    """As `optimizer.state_dict()`: parameters by their numbers."""
    return _state(loading, {id(each): number for number, each in enumerate(_parameters(loading.optimizer))})


def by_names(loading: Loading) -> State:
    """As `get_optimizer_state_dict` gives it: parameters by their names, whole tensors."""
    return _state(loading, {id(each): name for name, each in loading.model.named_parameters()})


def _state(loading: Loading, keys: dict[int, Any]) -> State:
    optimizer = loading.optimizer
    born = _born(optimizer)
    state = {
        keys[id(parameter)]: {name: _loaded(loading, value) for name, value in values.items()}
        for parameter, values in zip(_parameters(optimizer), born, strict=True)
        if values
    }
    groups = [
        {**{key: value for key, value in group.items() if key != "params"}, "params": [keys[id(p)] for p in members]}
        for group in optimizer.param_groups
        if (members := group["params"]) is not None
    ]
    return {"state": state, "param_groups": groups}


def _loaded(loading: Loading, value: Any) -> Any:
    """A tensor from the meta device comes from a file; one of the host (a count of steps) is as it is."""
    if not isinstance(value, Tensor) or value.device.type != "meta":
        return value
    return loading.tensor(value.shape, value.dtype)


def _born(optimizer: Optimizer) -> list[dict[str, Any]]:
    """For each parameter, whole, what a step of a twin on the meta device makes.

    Raises SpecError for an optimizer that does not step there.
    """
    twin = copy.copy(optimizer)
    twin.state = defaultdict(dict)
    twin.param_groups = [
        {**_without_kernels(group), "params": [_meta(each) for each in group["params"]]}
        for group in optimizer.param_groups
    ]
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
    return [dict(twin.state[each]) for each in _parameters(twin)]


def _without_kernels(group: dict[str, Any]) -> dict[str, Any]:
    """Kernels of devices are refused on meta, which makes the same state but for the counts of steps."""
    return {**group, **{key: False for key in ("fused", "capturable") if group.get(key)}}


def _meta(parameter: Tensor) -> nn.Parameter:
    made = nn.Parameter(torch.empty(parameter.shape, dtype=parameter.dtype, device="meta"))
    made.grad = torch.empty_like(made)
    return made


def _parameters(optimizer: Optimizer) -> list[Tensor]:
    return [each for group in optimizer.param_groups for each in group["params"]]
