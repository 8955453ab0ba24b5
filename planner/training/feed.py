"""Describes a micro-batch: shapes and dtypes by name, before there are tensors."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

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
