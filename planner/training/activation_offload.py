"""Activations that rest on the host: what a block saves for its backward is copied there, and back when it is needed.

`torch.autograd.graph.save_on_cpu` with pinned memory, around the forward of each block. It takes every saved tensor,
weights as well: in the backward each comes back as a copy.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.autograd.graph import save_on_cpu

from planner.errors import SpecError
from planner.training import blocks


def apply(model: nn.Module, *, wanted: bool, pattern: str = "") -> None:
    """Makes the blocks of the model offload, in place. Raises SpecError if it has no blocks."""
    if not wanted:
        return
    found = blocks.find(model, pattern)
    if not found:
        raise SpecError(
            f"no repeated layers are found in {type(model).__name__}",
            remedy="say which modules are offloaded in model.blocks",
            place="train.activation_offload",
        )
    for _, block in found:
        _wrap(block)


def _wrap(block: nn.Module) -> None:
    original = block.forward

    def forward(*arguments: Any, **keywords: Any) -> Any:
        if not torch.is_grad_enabled():
            return original(*arguments, **keywords)
        with save_on_cpu(pin_memory=torch.cuda.is_available(), device_type="cuda"):
            return original(*arguments, **keywords)

    block.forward = forward
