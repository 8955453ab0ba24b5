"""Kernels over lists of tensors: norms have an accumulator of 320 floats, the others write to what they are given.

Source, TransformerEngine 2.11: pytorch/csrc/extensions/multi_tensor/{l2norm,scale,adam,sgd}.cpp.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from planner.paper.outside.operators import floats, told

Tensor = torch.Tensor
Lists = Sequence[Sequence[Tensor]]

_PARTS = 320


@told("transformer_engine::multi_tensor_l2norm")
def multi_tensor_l2norm(
    chunk_size: int, _noop: Tensor, lists: Lists, per_tensor: bool | None = None
) -> tuple[Tensor, Tensor]:
    """The norm of all, and with `per_tensor` those of each."""
    first = lists[0][0]
    accumulator = torch.zeros(_PARTS, dtype=torch.float32, device="cuda")
    whole = floats(first, 1)
    count = len(lists[0]) if per_tensor else 0
    chunks = max((-(-each.numel() // chunk_size) for each in lists[0]), default=0)
    parts = floats(first, count * chunks)
    each_of_them = floats(first, count)
    del accumulator, parts
    return whole, each_of_them


def multi_tensor_unscale_l2norm(
    chunk_size: int, noop: Tensor, lists: Lists, _scale: Tensor, per_tensor: bool | None = None
) -> tuple[Tensor, Tensor]:
    """As `multi_tensor_l2norm`."""
    made: tuple[Tensor, Tensor] = multi_tensor_l2norm(chunk_size, noop, lists, per_tensor)
    return made


def in_place(_chunk_size: int, _noop: Tensor, lists: Lists, *_settings: Any) -> None:
    """Writes to the last list of tensors, and to others of its lists."""
    for each in lists[-1]:
        torch.ops.paper.forget_value(each)
