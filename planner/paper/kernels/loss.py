"""Losses whose result keeps a storage of the size of their input.

Source: torch 2.13 aten/src/ATen/native/Loss.cpp (mse_loss, smooth_l1_loss): the result is made elementwise and resized
to a scalar, which gives no memory back; a second elementwise tensor is averaged into it.
"""

from __future__ import annotations

import torch

from planner.paper.kernels.table import cpu, cuda

Tensor = torch.Tensor
_NONE = 0


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
