"""flash-attn 2's cross entropy in Triton (`flash_attn.ops.triton.cross_entropy`, `flash_attn.losses`).

Source, flash-attn 2.8.4: flash_attn/ops/triton/cross_entropy.py, flash_attn/losses/cross_entropy.py.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from planner.paper.outside.operators import floats, refuse, told_as

Tensor = torch.Tensor


class _CrossEntropy(torch.autograd.Function):
    @staticmethod
    def forward(
        context: Any, logits: Tensor, labels: Tensor, lse: Tensor | None, smoothing: float, scale: float, inplace: bool
    ) -> tuple[Tensor, Tensor]:
        logits = logits if logits.stride(-1) == 1 else logits.contiguous()
        rows = logits.size(0)
        with told_as("flash_attn::cross_entropy_fwd"):
            losses = floats(logits, rows)
            known = lse is not None and scale == 1.0 and smoothing == 0.0
            kept = lse.contiguous() if known and lse is not None else floats(logits, rows)
            squares = floats(logits, rows)
        context.save_for_backward(logits, kept, labels)
        context.mark_non_differentiable(squares)
        context.inplace = inplace
        return losses, squares

    @staticmethod
    def backward(context: Any, _losses: Tensor, _squares: Tensor) -> tuple[Tensor | None, ...]:
        logits = context.saved_tensors[0]
        with told_as("flash_attn::cross_entropy_bwd"):
            grad = logits if context.inplace else torch.empty_like(logits)
        return grad, None, None, None, None, None


def cross_entropy_loss(
    logits: Tensor, labels: Tensor, precomputed_lse: Tensor | None = None, label_smoothing: float = 0.0,
    logit_scale: float = 1.0, lse_square_scale: float = 0.0, ignore_index: int = -100, inplace_backward: bool = False,
    process_group: Any = None,
) -> Any:  # fmt: skip
    """Losses and squares of the log-sum-exp, each [rows] in float32. Raises TraceError for a divided vocabulary."""
    del lse_square_scale, ignore_index
    if process_group is not None and torch.distributed.get_world_size(process_group) > 1:
        refuse(
            "cross_entropy_loss of flash-attn", "a vocabulary over several ranks is not modelled", "process_group=None"
        )
    return _CrossEntropy.apply(logits, labels, precomputed_lse, label_smoothing, logit_scale, inplace_backward)  # type: ignore[no-untyped-call]


class CrossEntropyLoss(nn.Module):
    """The loss over classes as a module."""

    def __init__(
        self, ignore_index: int = -100, reduction: str = "mean", label_smoothing: float = 0.0, logit_scale: float = 1.0,
        lse_square_scale: float = 0.0, inplace_backward: bool = False, process_group: Any = None,
        return_z_loss: bool = False,
    ) -> None:  # fmt: skip
        super().__init__()
        if reduction not in ("mean", "none", "sum"):
            raise NotImplementedError("Only support reduction = 'mean' or 'none' or 'sum'")
        self.ignore_index, self.reduction, self.return_z_loss = ignore_index, reduction, return_z_loss
        self.settings = {
            "label_smoothing": label_smoothing, "logit_scale": logit_scale, "lse_square_scale": lse_square_scale,
            "inplace_backward": inplace_backward, "process_group": process_group,
        }  # fmt: skip

    def forward(self, input: Tensor, target: Tensor, precomputed_lse: Tensor | None = None) -> Any:
        loss, squares = cross_entropy_loss(input, target, precomputed_lse, **self.settings)
        reduced = self._reduce(loss, target)
        return (reduced, self._reduce(squares, target)) if self.return_z_loss else reduced

    def _reduce(self, values: Tensor, labels: Tensor) -> Tensor:
        if self.reduction == "mean":
            return values.sum() / (labels != self.ignore_index).sum()
        return values.sum() if self.reduction == "sum" else values
