"""How many elements the parameters of a model's parts have."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Elements:
    """Elements of parameters, each of which a training step gives a gradient: of the model's body, and of its head.

    A head that shares the weight of an embedding counts without it. Classes for other tasks have the body alone and
    a head of their own, which is not counted.
    """

    body: int
    head: int = 0


def linear(inputs: int, outputs: int, *, bias: bool = False) -> int:
    """Elements of nn.Linear."""
    return outputs * (inputs + bias)


def layer_norm(size: int, *, bias: bool = True) -> int:
    """Elements of nn.LayerNorm; without a bias those of nn.RMSNorm."""
    return size * (1 + bias)
