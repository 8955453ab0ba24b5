"""What a checkpoint's file gives: whole tensors on the device or on the host, and what the host holds of them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from planner.events import Category
from planner.host_events import Backing, HostBlock, HostCategory
from planner.job import schema
from planner.training.host import Host
from planner.training.observer import Observer


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
