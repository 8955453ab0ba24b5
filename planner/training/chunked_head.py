"""Calls a model's head for one chunk of tokens after the other, so that its logits are never one tensor.

As litgpt 0.4 does (litgpt/model.py: `lm_head_chunk_size`), whose precision plugins then cast what the model returned
(lightning 2.3: fabric/plugins/precision/half.py): the chunks exist in the dtype of the head until all are cast.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from planner.errors import SpecError
from planner.job import schema
from planner.training.dtypes import floating
from planner.training.models.decoder import Decoder


def apply(model: nn.Module, loss: schema.Loss) -> None:
    """From now on the head returns a list of `loss.chunks` tensors (batch, tokens of the chunk, vocabulary).

    Raises SpecError for a model without a head that gives logits of tokens.
    """
    if not loss.chunk_head:
        return
    head = _head_of(model)
    if not isinstance(head, nn.Module):
        raise SpecError(
            f"{type(model).__name__} has no head that gives logits of tokens",
            allowed="models with a head for language, as causal_lm",
            place="train.loss.chunk_head",
        )
    whole, dtype = head.forward, floating(loss.dtype, place="train.loss.dtype")

    def in_chunks(hidden: Tensor) -> list[Tensor]:
        return _cast([whole(part) for part in hidden.chunk(loss.chunks, dim=1)], dtype)

    head.forward = in_chunks  # its module, and so whatever wraps it, stays what it is


def _head_of(model: nn.Module) -> Any:
    if isinstance(model, Decoder):
        return model.head
    return getattr(model, "get_output_embeddings", lambda: None)()


def _cast(parts: list[Tensor], dtype: torch.dtype) -> list[Tensor]:
    return [part.to(dtype) for part in parts]
