"""Models that torch.compile does not capture, or not whole."""

from __future__ import annotations

import torch
from torch import Tensor, nn


@torch.library.custom_op("planner_test::unknown", mutates_args=())
def unknown(x: Tensor) -> Tensor:
    """Says nothing of what it returns."""
    return x.clone()


class _Scaling(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(8))


class Breaking(_Scaling):
    """Where it begins the graph breaks, and the rest is not compiled."""

    def forward(self, x: Tensor) -> Tensor:
        torch._dynamo.graph_break()
        return _scale(self.scale, x)


class Calling(_Scaling):
    """Calls an operator without a fake implementation."""

    def forward(self, x: Tensor) -> Tensor:
        return unknown(x * self.scale)


class Reading(_Scaling):
    """Takes one of two ways by the values of a tensor."""

    def forward(self, x: Tensor) -> Tensor:
        scaled = x * self.scale
        return -scaled if scaled.sum() > 0 else scaled


@torch.compiler.disable
def _scale(scale: Tensor, x: Tensor) -> Tensor:
    return scale * x


class CompilingItself(_Scaling):
    """Compiles a part of what it does."""

    def forward(self, x: Tensor) -> Tensor:
        return torch.compile(torch.sin)(x * self.scale)
