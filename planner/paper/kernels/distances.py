"""Distances between rows: their backward makes a gradient for every pair, and adds those up.

Source: torch 2.13 aten/src/ATen/native/cuda/DistanceKernel.cu (cdist_backward_kernel_impl, pdist_backward_kernel_impl).
"""

from __future__ import annotations

import torch

from planner.paper.kernels.table import cuda, like_meta

Tensor = torch.Tensor


@cuda("_cdist_backward")
def distances_backward(grad: Tensor, x: Tensor, other: Tensor, p: float, distances: Tensor) -> Tensor:
    result: Tensor = like_meta("_cdist_backward", grad, x, other, p, distances)
    rows, width = x.shape[-2:]
    pairs = 0 if p == 0 or grad.numel() == 0 or width == 0 else other.size(-2)
    if pairs:
        each = x.new_empty(result.numel() // (rows * width), pairs, rows, width)
        torch.sum(each, 1, out=result.view(-1, rows, width))
        del each
    return result


@cuda("_pdist_backward")
def distances_within_backward(grad: Tensor, x: Tensor, p: float, distances: Tensor) -> Tensor:
    result: Tensor = like_meta("_pdist_backward", grad, x, p, distances)
    if p != 0 and grad.numel() and x.numel():
        each = x.new_empty(x.size(0) - 1, *x.shape)
        torch.sum(each, 0, out=result)
        del each
    return result
