"""Reads a forward's signature: names and how many arguments by position."""

from __future__ import annotations

import inspect
from dataclasses import dataclass

from torch import nn


@dataclass(frozen=True, slots=True)
class ForwardSignature:
    names: tuple[str, ...]
    positional: int
    anything: bool
    """The forward has `**kwargs`."""

    def has(self, name: str) -> bool:
        return self.anything or name in self.names


def of_forward(model: nn.Module) -> ForwardSignature:
    """The parameters of `model.forward`, `self` left out."""
    parameters = inspect.signature(model.forward).parameters.values()
    by_position = [p for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    unbounded = any(p.kind is p.VAR_POSITIONAL for p in parameters)
    return ForwardSignature(
        names=tuple(p.name for p in parameters if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)),
        positional=10**6 if unbounded else len(by_position),
        anything=any(p.kind is p.VAR_KEYWORD for p in parameters),
    )
