"""A model of which torch.compile captures nothing."""

from __future__ import annotations

import torch
from torch import Tensor, nn


class Breaking(nn.Module):
    """Where it begins the graph breaks, and the rest is not compiled."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(8))

    def forward(self, x: Tensor) -> Tensor:
        torch._dynamo.graph_break()
        return _scale(self.scale, x)


@torch.compiler.disable
def _scale(scale: Tensor, x: Tensor) -> Tensor:
    return scale * x
