"""Dropout on a CPU: the mask is kept in the input's dtype, already scaled.

Source: torch 2.13 aten/src/ATen/native/Dropout.cpp (no fused kernel outside CUDA): noise like the input, then the
product.
"""

from __future__ import annotations

import torch

from planner.paper.kernels.table import cpu

Tensor = torch.Tensor


@cpu("native_dropout")
def native_dropout(x: Tensor, p: float, train: bool | None) -> tuple[Tensor, Tensor]:
    if p == 0 or train is False:
        return torch.empty_like(x), torch.empty_like(x, dtype=torch.bool)
    noise = torch.empty_like(x)
    return torch.empty_like(x), noise


@cpu("native_dropout_backward")
def native_dropout_backward(grad: Tensor, _mask: Tensor, _scale: float) -> Tensor:
    return torch.empty_like(grad)
