"""Norms over many tensors at once: a result for each, and first a partial one for each chunk of each.

Source, torch 2.13: aten/src/ATen/native/cuda/ForeachReduceOp.cu, MultiTensorApply.cuh, native/ForeachUtils.h. All other
`_foreach` operators allocate their results and nothing else.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch

from planner.paper.kernels.table import cuda

Tensor = torch.Tensor

_CHUNK = 65536


@cuda("_foreach_norm.Scalar", "_foreach_powsum.Scalar")
def norms(tensors: Sequence[Tensor], order: float = 2, dtype: torch.dtype | None = None) -> list[Tensor]:
    if float(order) not in (1.0, 2.0, math.inf) or not _in_one_go(tensors):
        return [torch.linalg.vector_norm(t, order, dtype=dtype) for t in tensors]
    kind = dtype or tensors[0].dtype
    accumulated = torch.float32 if kind in (torch.float16, torch.bfloat16) else kind
    return _reduce_each(tensors, kind, accumulated)


@cuda("_foreach_max")
def maxima(tensors: Sequence[Tensor], *_: Any) -> list[Tensor]:
    if not _in_one_go(tensors):
        return [t.max() for t in tensors]
    return _reduce_each(tensors, tensors[0].dtype, tensors[0].dtype)


def _reduce_each(tensors: Sequence[Tensor], kind: torch.dtype, accumulated: torch.dtype) -> list[Tensor]:
    chunks = max(-(-t.numel() // _CHUNK) for t in tensors)
    partial = torch.empty(len(tensors) * chunks, dtype=accumulated, device="cuda")
    results = [torch.empty((), dtype=kind, device="cuda") for _ in tensors]
    del partial
    return results


def _in_one_go(tensors: Sequence[Tensor]) -> bool:
    """One dtype, dense: one kernel takes them all. Integers are converted, one by one."""
    first = tensors[0].dtype
    same = all(t.dtype is first and torch.ops.aten.is_non_overlapping_and_dense(t) for t in tensors)
    return same and first.is_floating_point
