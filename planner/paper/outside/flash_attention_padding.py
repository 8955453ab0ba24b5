"""flash-attn 2's `bert_padding`: sequences without their padding, and with it again.

Source, flash-attn 2.8.4: flash_attn/bert_padding.py. How many tokens are no padding is a value: it is read, and
answered as any other.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.nn.functional import pad

Tensor = torch.Tensor


class _IndexFirstAxis(torch.autograd.Function):
    """Rows by gather, whose index is repeated for every column without memory."""

    @staticmethod
    def forward(context: Any, given: Tensor, indices: Tensor) -> Tensor:
        context.save_for_backward(indices)
        context.rows = given.size(0)
        flat = given.flatten(1)
        taken = torch.gather(flat, 0, indices.unsqueeze(1).expand(-1, flat.size(1)))
        return taken.reshape(-1, *given.shape[1:])

    @staticmethod
    def backward(context: Any, grad: Tensor) -> tuple[Tensor, None]:
        (indices,) = context.saved_tensors
        flat = grad.flatten(1)
        spread = torch.zeros(context.rows, flat.size(1), dtype=grad.dtype, device=grad.device)
        spread.scatter_(0, indices.unsqueeze(1).expand(-1, flat.size(1)), flat)
        return spread.reshape(context.rows, *grad.shape[1:]), None


class _IndexPutFirstAxis(torch.autograd.Function):
    @staticmethod
    def forward(context: Any, values: Tensor, indices: Tensor, rows: int) -> Tensor:
        context.save_for_backward(indices)
        spread = torch.zeros(rows, *values.shape[1:], dtype=values.dtype, device=values.device)
        spread[indices] = values
        return spread

    @staticmethod
    def backward(context: Any, grad: Tensor) -> tuple[Tensor, None, None]:
        (indices,) = context.saved_tensors
        return grad[indices], None, None


index_first_axis = _IndexFirstAxis.apply
index_put_first_axis = _IndexPutFirstAxis.apply


def unpad_input(
    hidden_states: Tensor, attention_mask: Tensor, unused_mask: Tensor | None = None
) -> tuple[Tensor, Tensor, Tensor, int, Tensor]:
    """Rows that the mask [batch, rows] keeps, their numbers, where sequences begin, the longest one, rows used."""
    kept = attention_mask if unused_mask is None else attention_mask + unused_mask
    lengths = kept.sum(dim=-1, dtype=torch.int32)
    used = attention_mask.sum(dim=-1, dtype=torch.int32)
    indices = torch.nonzero(kept.flatten(), as_tuple=False).flatten()
    longest = int(lengths.max().item())
    begins = pad(torch.cumsum(lengths, dim=0, dtype=torch.int32), (1, 0))
    rows = index_first_axis(hidden_states.flatten(0, 1), indices)  # type: ignore[no-untyped-call]
    return rows, indices, begins, longest, used


def pad_input(hidden_states: Tensor, indices: Tensor, batch: int, seqlen: int) -> Tensor:
    """The rows at their places in [batch, seqlen]; the others are zero."""
    spread: Tensor = index_put_first_axis(hidden_states, indices, batch * seqlen)  # type: ignore[no-untyped-call]
    return spread.view(batch, seqlen, *spread.shape[1:])
