"""Dropout: CUDA keeps a bool mask."""

from __future__ import annotations

import torch

from planner.paper.kernels.table import cuda


@cuda("native_dropout")
def native_dropout(x: torch.Tensor, _p: float, _train: bool | None) -> tuple[torch.Tensor, torch.Tensor]:
    """Source: torch 2.13 aten/src/ATen/native/cuda/Dropout.cu: mask as bool, then the result."""
    mask = torch.empty_like(x, dtype=torch.bool)
    return torch.empty_like(x), mask
