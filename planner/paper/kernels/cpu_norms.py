"""Norms on a CPU: RMS norm is made of single operators, batch norm has no backend of its own.

Sources, torch 2.13: aten/src/ATen/native/layer_norm.cpp (rms_norm_composite), Normalization.cpp.
"""

from __future__ import annotations

from typing import Any

import torch

from planner.paper.kernels.table import like_meta

Tensor = torch.Tensor


def rms_norm(x: Tensor, normalized_shape: list[int], weight: Tensor | None = None, eps: float | None = None) -> Tensor:
    """The composite that runs where there is no fused kernel."""
    dims = list(range(x.dim() - len(normalized_shape), x.dim()))
    small = x.dtype in (torch.float16, torch.bfloat16)
    upcast = x.float() if small else x
    epsilon = torch.finfo(upcast.dtype).eps if eps is None else eps
    scale = torch.rsqrt(torch.pow(upcast, 2).mean(dims, keepdim=True).add_(epsilon))
    result = upcast.mul(scale)
    if weight is not None:
        result = result.mul(weight)
    return result.type_as(x)


def batch_norm_backward(
    grad: Tensor, x: Tensor, weight: Tensor | None, mean: Any, var: Any, save_mean: Any, save_invstd: Any,
    train: bool, eps: float, wanted: list[bool],
) -> Any:  # fmt: skip
    """In training, products of the size of the input live while the gradient is made."""
    grads = like_meta(
        "native_batch_norm_backward", grad, x, weight, mean, var, save_mean, save_invstd, train, eps, wanted
    )
    if train and wanted[0]:
        torch.empty_like(x)
    return grads
