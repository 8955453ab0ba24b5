"""Describes a micro-batch before there are tensors: shapes, dtypes by name, the arguments of a forward."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn

from planner.errors import SpecError
from planner.job import schema


@dataclass(frozen=True, slots=True, kw_only=True)
class Feed:
    """The tensors of a micro-batch, by name, without the batch dim."""

    arguments: Mapping[str, schema.Input]
    """What the model is called with."""
    positional: bool = False
    """Called by position: the forward has none of these names."""
    labels: Mapping[str, schema.Input] = field(default_factory=dict)
    """What the model needs in addition to compute its own loss; the first is the target of a loss by hand."""
    own_labels: Mapping[str, schema.Input] | None = None
    """Where the model's own loss wants other labels than a loss by hand."""
    by_hand: Mapping[str, schema.Input] = field(default_factory=dict)
    """Arguments that the model makes from the labels when it computes its own loss, and needs otherwise."""
    constants: Mapping[str, Any] = field(default_factory=dict)
    own_loss: bool = False
    """The model's output has nothing a loss by hand could start from: only its own loss is possible."""
    padded: bool = False
    """The attention mask has gaps: sequences shorter than the first of their batch are filled up."""
    image_token: int = -1
    image_tokens: int = 0
    """So many of the first tokens of `input_ids` stand for the image."""


FLOATING = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16, "float64": torch.float64}
INTEGER = {
    "int64": torch.int64, "int32": torch.int32, "int16": torch.int16, "int8": torch.int8,
    "uint8": torch.uint8, "bool": torch.bool,
}  # fmt: skip


def floating(name: str, *, place: str) -> torch.dtype:
    """The floating-point dtype of that name; SpecError for any other name."""
    if name not in FLOATING:
        raise SpecError(f"{name!r} is no floating-point dtype", allowed=", ".join(FLOATING), place=place)
    return FLOATING[name]


def any_dtype(name: str, *, place: str) -> torch.dtype:
    """The dtype of that name; SpecError for an unknown one."""
    known = FLOATING | INTEGER
    if name not in known:
        raise SpecError(f"{name!r} is no dtype", allowed=", ".join(known), place=place)
    return known[name]


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
