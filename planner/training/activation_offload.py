"""Offloads activations to the host: what a block saves for its backward is copied there and back.

`torch.autograd.graph.save_on_cpu` with pinned memory, around the forward of each block. It takes every saved tensor,
weights as well: in the backward each comes back as a copy. Of a block that recomputes it takes the inputs, which are
all that `torch.utils.checkpoint` saves.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from planner.errors import SpecError
from planner.training import blocks
from planner.training.host import Host


def apply(model: nn.Module, *, wanted: bool, host: Host, pattern: str = "") -> None:
    """Makes the blocks of the model offload, in place, to this host. Raises SpecError if it has no blocks."""
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
        _wrap(block, host)


def _wrap(block: nn.Module, host: Host) -> None:
    original = block.forward

    def forward(*arguments: Any, **keywords: Any) -> Any:
        if not torch.is_grad_enabled():
            return original(*arguments, **keywords)
        with host.saving_activations():
            return original(*arguments, **keywords)

    block.forward = forward
