"""Gives memory on the device to a model that was built and split without it.

Programs that split a model build it on the meta device, split it, and only then give it memory: torchtitan, and
accelerate with FSDP2. What they would have drawn or loaded is of no matter here, as long as it is finite.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from planner.training.host import Host, RealHost


def materialize(model: nn.Module, device: torch.device, host: Host | None = None, *, offloaded: bool = False) -> None:
    """Memory on `device` for every parameter and buffer, in place; small random weights, buffers of zeros.

    `host` fills them, by default for real. `offloaded`: parameters rest on the host, buffers do not, as fully_shard's
    CPUOffloadPolicy wants it. What is tied stays tied.
    """
    filling = RealHost() if host is None else host
    tied = _tied_parameters(model)
    model.to_empty(device=torch.device("cpu") if offloaded else device)
    for (owner, first), *others in tied:
        for module, name in others:
            module._parameters[name] = owner._parameters[first]
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.is_floating_point():
                filling.fill(_local(parameter))
    _zero_buffers(model, device)


def _tied_parameters(model: nn.Module) -> list[list[tuple[nn.Module, str]]]:
    """Who holds a parameter together: from meta, `to_empty` gives each of them one of its own (torch 2.13)."""
    owners: dict[int, list[tuple[nn.Module, str]]] = {}
    for module in model.modules():
        for name, parameter in module._parameters.items():
            if parameter is not None:
                owners.setdefault(id(parameter), []).append((module, name))
    return [together for together in owners.values() if len(together) > 1]


def _zero_buffers(model: nn.Module, device: torch.device) -> None:
    moved: dict[Tensor, Tensor] = {}
    for module in model.modules():
        for name, buffer in module._buffers.items():
            if buffer is None:
                continue
            if _local(buffer).device.type == device.type:
                _local(buffer).zero_()
                continue
            if buffer not in moved:
                moved[buffer] = torch.zeros_like(buffer, device=device)
            module._buffers[name] = moved[buffer]


def _local(tensor: Tensor) -> Tensor:
    return getattr(tensor, "_local_tensor", tensor)
