"""The parts of batch normalization that SyncBatchNorm puts together across ranks.

Source, torch 2.13: aten/src/ATen/native/cuda/Normalization.cu, Normalization.cuh.
"""

from __future__ import annotations

from typing import Any

import torch

from planner.paper.kernels.table import cuda

Tensor = torch.Tensor


def _per_channel(x: Tensor) -> Tensor:
    kind = torch.float64 if x.dtype is torch.float64 else torch.float32
    return torch.empty(x.size(1), dtype=kind, device="cuda")


@cuda("batch_norm_stats")
def statistics(x: Tensor, _eps: float) -> tuple[Tensor, Tensor]:
    return _per_channel(x), _per_channel(x)


@cuda("batch_norm_gather_stats", "batch_norm_gather_stats_with_counts")
def gather_statistics(x: Tensor, *_: Any) -> tuple[Tensor, Tensor]:
    return _per_channel(x), _per_channel(x)


@cuda("batch_norm_update_stats")
def update_statistics(x: Tensor, *_: Any) -> tuple[Tensor, Tensor]:
    return _per_channel(x), _per_channel(x)


@cuda("batch_norm_elemt")
def normalize(x: Tensor, *_: Any) -> Tensor:
    return torch.empty_like(x)


@cuda("batch_norm_backward_reduce")
def reduce_gradients(
    _grad: Tensor, x: Tensor, _mean: Tensor, _invstd: Tensor, weight: Tensor | None, *wanted: bool
) -> tuple[Tensor | None, ...]:
    sums = (_per_channel(x), _per_channel(x)) if wanted[0] else (None, None)
    of_weight = weight.new_empty(x.size(1)) if weight is not None and wanted[1] else None
    of_bias = weight.new_empty(x.size(1)) if weight is not None and wanted[2] else None
    return *sums, of_weight, of_bias


@cuda("batch_norm_backward_elemt")
def gradient(_grad: Tensor, x: Tensor, *_: Any) -> Tensor:
    return torch.empty_like(x)
