"""Layers of which some are equal, each as large as one of DDP's buckets of 1 MiB."""

from __future__ import annotations

import torch
from torch import nn

_WIDTH = 520


class Wide(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(_WIDTH, _WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return nn.functional.dropout(nn.functional.gelu(self.linear(x)), 0.1)


class Gated(Wide):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        value, gate = self.linear(x).chunk(2, -1)
        return x + (value * gate.sigmoid()).repeat(1, 2)


class InTurn(nn.Module):
    """Two layers are equal where the way back begins, and one is added in place to another's result."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList((Wide(), Wide(), Wide(), Wide(), Gated(), Wide(), Gated(), Wide(), Wide()))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        found, before = x, x
        for number, layer in enumerate(self.layers):
            before, found = found, layer(found)
            if number == 3:
                found.add_(before.sin())
        return found
