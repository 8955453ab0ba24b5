"""Losses that are made elementwise before they are averaged, and results that keep a storage of the size of the input.

Source: torch 2.13 aten/src/ATen/native/Loss.cpp (mse_loss, smooth_l1_loss, huber_loss), cuda/Loss.cu
(binary_cross_entropy). A result that is made elementwise and resized to a scalar gives no memory back.
"""

from __future__ import annotations

import torch

from planner.paper.kernels.table import cpu, cuda

Tensor = torch.Tensor
_NONE, _MEAN = 0, 1


@cpu("mse_loss", "smooth_l1_loss")
@cuda("mse_loss", "smooth_l1_loss")
def elementwise_loss(x: Tensor, target: Tensor, reduction: int = 1, _beta: float = 1.0) -> Tensor:
    shape = torch.broadcast_shapes(x.shape, target.shape)
    result = x.new_empty(shape)
    if reduction == _NONE:
        return result
    elementwise = x.new_empty(shape)
    result.resize_(())
    del elementwise
    return result


@cpu("binary_cross_entropy")
@cuda("binary_cross_entropy")
def cross_entropy_of_two(x: Tensor, _target: Tensor, _weight: Tensor | None = None, reduction: int = 1) -> Tensor:
    """The reduced loss is copied into the elementwise one, which is resized."""
    result = torch.empty_like(x)
    if reduction == _NONE:
        return result
    reduced = _reduced(result, reduction)
    return result.resize_(reduced.shape)


@cpu("huber_loss")
@cuda("huber_loss")
def huber_loss(x: Tensor, target: Tensor, reduction: int = 1, _delta: float = 1.0) -> Tensor:
    elementwise = x.new_empty(torch.broadcast_shapes(x.shape, target.shape))
    return elementwise if reduction == _NONE else _reduced(elementwise, reduction)


def _reduced(elementwise: Tensor, reduction: int) -> Tensor:
    return elementwise.mean() if reduction == _MEAN else elementwise.sum()
