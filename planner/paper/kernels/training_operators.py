"""Losses, dropout, distances, norms over lists of tensors, and the copies of gradients that fully_shard reduces."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from planner.paper.kernels.table import cpu, cuda, like_meta, target

# Source: torch 2.13 aten/src/ATen/native/Loss.cpp (mse_loss, smooth_l1_loss, huber_loss), cuda/Loss.cu
# (binary_cross_entropy). A result that is made elementwise and resized to a scalar gives no memory back.
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


@cuda("native_dropout")
def native_dropout(x: Tensor, _p: float, _train: bool | None) -> tuple[Tensor, Tensor]:
    """Source: torch 2.13 aten/src/ATen/native/cuda/Dropout.cu: mask as bool, then the result."""
    mask = torch.empty_like(x, dtype=torch.bool)
    return torch.empty_like(x), mask


# Source: torch 2.13 aten/src/ATen/native/cuda/DistanceKernel.cu (cdist_backward_kernel_impl,
# pdist_backward_kernel_impl).
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


# Source, torch 2.13: aten/src/ATen/native/cuda/ForeachReduceOp.cu, MultiTensorApply.cuh, native/ForeachUtils.h. All
# other `_foreach` operators allocate their results and nothing else.
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


# Source, torch 2.15: torch/csrc/distributed/fsdp/ChunkCat.cu, ChunkCat.cpp.
@cuda("fsdp::chunk_cat_mixed_dtype")
def chunk_cat_mixed_dtype(tensors: list[Tensor], dim: int, num_chunks: int, *, out: Tensor) -> None:
    """One kernel copies what the buffer's dtype has and casts bfloat16 to float32; other mixtures are cast before."""
    mixed = len({each.dtype for each in tensors}) > 1
    if mixed and _is_one_kernel(tensors, dim, out):
        return
    torch._chunk_cat([each.to(out.dtype) for each in tensors] if mixed else tensors, dim, num_chunks, out=out)


def _is_one_kernel(tensors: list[Tensor], dim: int, out: Tensor) -> bool:
    castable = {out.dtype} | ({torch.bfloat16} if out.dtype == torch.float32 else set())
    whole = all(each.dim() and each.numel() and each.is_contiguous() for each in (*tensors, out))
    return not target().is_cpu and dim == 0 and whole and {each.dtype for each in tensors} <= castable
