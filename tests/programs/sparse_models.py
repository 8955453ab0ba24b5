"""A model whose weights are changed by sparse tensors, as peft's SHiRA does, for runs on a CPU."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional


class Adapted(nn.Module):
    """A frozen layer, to whose weight a trained value is added at each of some places."""

    places: Tensor

    def __init__(self, width: int, changed: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(width, width), requires_grad=False)
        self.change = nn.Parameter(torch.zeros(changed))
        self.register_buffer("places", torch.randint(0, width, (2, changed), dtype=torch.int))

    def forward(self, x: Tensor) -> Tensor:
        weight = self.weight.clone()
        weight += torch.sparse_coo_tensor(self.places, self.change * 1.0, weight.shape)
        return functional.linear(x, weight)


class SparselyAdapted(nn.Sequential):
    def __init__(self, width: int = 512, changed: int = 20_000, layers: int = 3) -> None:
        super().__init__(*(Adapted(width, changed) for _ in range(layers)), nn.Linear(width, 10))
