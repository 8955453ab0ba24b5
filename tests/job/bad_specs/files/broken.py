"""Factories that cannot be used, each in its own way."""

import torch
from torch import nn


def mlp(width=16):
    return nn.Sequential(nn.Linear(width, width), nn.ReLU(), nn.Linear(width, 4))


def frozen():
    return mlp().requires_grad_(False)


def raises():
    raise RuntimeError("no weights in /data")


def no_module():
    return {"weights": torch.zeros(3)}


def needs_more():
    import a_package_that_is_not_there  # noqa: F401


wanted = "a name, not a callable"


class Gated(nn.Module):
    """Decides by a value which way to go."""

    def __init__(self):
        super().__init__()
        self.gate, self.body = nn.Linear(16, 1), nn.Linear(16, 4)

    def forward(self, x):
        if self.gate(x).mean() > 0:
            return self.body(x)
        return self.body(-x)


def gated():
    return nn.Sequential(nn.ReLU(), Gated())


class Chosen(nn.Module):
    """Keeps the rows that a value chooses: their number is a value too."""

    def __init__(self):
        super().__init__()
        self.body = nn.Linear(16, 4)

    def forward(self, x):
        return self.body(x[x.sum(dim=1) > 0])


class Mismatched(nn.Module):
    """Two layers that do not fit together."""

    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(16, 8), nn.Linear(16, 4)

    def forward(self, x):
        return self.second(self.first(x))
