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
    """The middle one stands between others, and is met once on the way back."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(Wide(), Wide(), Wide(), Gated(), Wide(), Wide(), Gated(), Gated(), Wide())

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = self.layers(x)
        return found
