"""Losses, dropout, distances, norms of lists of tensors, what fully_shard reduces, operators without meta kernels."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from planner.paper import values
from planner.paper.kernels import workspaces
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
    mixed = len({tensor.dtype for tensor in tensors}) > 1
    if mixed and _is_one_kernel(tensors, dim, out):
        return
    torch._chunk_cat([tensor.to(out.dtype) for tensor in tensors] if mixed else tensors, dim, num_chunks, out=out)


def _is_one_kernel(tensors: list[Tensor], dim: int, out: Tensor) -> bool:
    castable = {out.dtype} | ({torch.bfloat16} if out.dtype == torch.float32 else set())
    whole = all(tensor.dim() and tensor.numel() and tensor.is_contiguous() for tensor in (*tensors, out))
    return not target().is_cpu and dim == 0 and whole and {tensor.dtype for tensor in tensors} <= castable


# Operators that have no meta kernel in torch 2.13: their results, which are all that they allocate. Sources:
# aten/src/ATen/native/cuda/ (MultiMarginLoss.cu, MultiLabelMarginCriterion.cu, FractionalMaxPool3d.cu,
# LogcumsumexpKernel.cu, GridSampler.cpp, LossCTC.cu, RNN.cu, Equal.cpp), native/cudnn/LossCTC.cpp.
@cuda(
    "_logcumsumexp", "glu_jvp", "_masked_softmax", "_standard_gamma_grad", "_sample_dirichlet", "_dirichlet_grad",
    "_masked_softmax_backward", "glu_backward_jvp", "batch_norm_elemt",
)  # fmt: skip
def like_first(x: Tensor, *_: Any, **__: Any) -> Tensor:
    return torch.empty_like(x)


@cuda("batch_norm_backward_elemt")
def like_second(_grad: Tensor, x: Tensor, *_: Any) -> Tensor:
    return torch.empty_like(x)


@cuda("multi_margin_loss_backward", "multilabel_margin_loss_backward", "fractional_max_pool3d_backward")
def like_second_dense(_grad: Tensor, x: Tensor, *_: Any, **__: Any) -> Tensor:
    return torch.empty_like(x, memory_format=torch.contiguous_format)


@cuda("_cummax_helper", "_cummin_helper", "_compute_linear_combination.out")
def writes_only(*_: Any, **__: Any) -> None: ...


# torch 2.13 aten/src/ATen/native/cuda/WeightNorm.cu; 2.6 has no meta kernel for it.
@cuda("_weight_norm_interface_backward")
def weight_norm_backward(_grad: Tensor, v: Tensor, g: Tensor, _norms: Tensor, _dim: int) -> tuple[Tensor, Tensor]:
    return torch.empty_like(v), torch.empty_like(g)


@cuda("_aminmax")
def smallest_and_largest(x: Tensor) -> tuple[Tensor, Tensor]:
    return x.new_empty(()), x.new_empty(())


@cuda("equal")
def equal(a: Tensor, b: Tensor) -> bool:
    """Shapes are known; values are read, if anybody knows them."""
    if a.shape != b.shape:
        return False
    if a.numel() == 0 or a.data_ptr() == b.data_ptr():
        return True
    known = [torch.ops.paper.known_value(t) for t in (a, b)]
    if None not in known:
        return bool(torch.equal(*known))
    if (truth := values.truth_of(a)) is not None:
        return truth
    return bool((a == b).all().item())


@cuda("cudnn_grid_sampler")
def grid_sampler(x: Tensor, grid: Tensor) -> Tensor:
    kept = x.contiguous(), grid.contiguous()
    out = x.new_empty(x.size(0), x.size(1), grid.size(1), grid.size(2))
    del kept
    return out


@cuda("cudnn_grid_sampler_backward")
def grid_sampler_backward(x: Tensor, grid: Tensor, grad: Tensor) -> tuple[Tensor, Tensor]:
    kept = x.contiguous(), grid.contiguous(), grad.contiguous()
    of_x, of_grid = torch.empty_like(kept[0]), torch.empty_like(kept[1])
    del kept
    return of_x, of_grid


@cuda("_use_miopen_ctc_loss", "_use_miopen_ctc_loss.Tensor")
def ctc_by_miopen(*_: Any) -> bool:
    return False


@cuda("_use_cudnn_ctc_loss", "_use_cudnn_ctc_loss.Tensor")
def ctc_by_cudnn(log_probs: Tensor, targets: Tensor, input_lengths: Any, target_lengths: Any, blank: int) -> bool:
    """cuDNN wants targets and lengths in int32; targets on the host where the lengths are plain numbers."""
    if blank != 0 or not torch.backends.cudnn.enabled or log_probs.dtype is not torch.float32:
        return False
    if targets.dtype is not torch.int32 or targets.dim() != 1 or log_probs.dim() != 3:
        return False
    if isinstance(input_lengths, Tensor):
        same = input_lengths.dtype is torch.int32 and target_lengths.dtype is torch.int32
        return same and targets.is_cuda and targets.is_contiguous()
    whole = all(length == log_probs.size(0) for length in input_lengths)
    return targets.is_cpu and whole and all(length < 256 for length in target_lengths)


@cuda("_cudnn_ctc_loss", "_cudnn_ctc_loss.Tensor")
def ctc_of_cudnn(log_probs: Tensor, *_: Any, **__: Any) -> tuple[Tensor, Tensor]:
    losses = log_probs.new_empty(log_probs.size(1))
    gradient = torch.empty_like(log_probs)
    workspaces.take("cudnn", "cuDNN CTC loss", [log_probs])
    return losses, gradient


@cuda("_ctc_loss.Tensor", "_ctc_loss")
def ctc(
    log_probs: Tensor, targets: Tensor, _inputs: Any, target_lengths: Any, *_: Any, **__: Any
) -> tuple[Tensor, Tensor]:
    """Lengths, first on the host, and the alphas: batch, time, twice the longest target and one."""
    batch = log_probs.size(1)
    if targets.dim() == 2:
        longest = targets.size(1)
    else:
        longest = int(max(target_lengths.tolist() if isinstance(target_lengths, Tensor) else target_lengths))
    lengths = [torch.empty(batch, dtype=torch.int64, device="cuda") for _ in range(3)]
    alphas = log_probs.new_empty(batch, log_probs.size(0), 2 * longest + 1)
    losses = log_probs.new_empty(batch)
    del lengths
    return losses, alphas


@cuda("_ctc_loss_backward.Tensor", "_ctc_loss_backward")
def ctc_backward(
    _grad: Tensor, log_probs: Tensor, _targets: Tensor, _inputs: Any, _lengths: Any, _losses: Tensor, alphas: Tensor,
    *_: Any, **__: Any,
) -> Tensor:  # fmt: skip
    """The betas are as large as the alphas were."""
    lengths = [torch.empty(log_probs.size(1), dtype=torch.int64, device="cuda") for _ in range(3)]
    gradient = torch.empty_like(log_probs, memory_format=torch.contiguous_format)
    betas = torch.empty_like(alphas)
    del lengths, betas
    return gradient


@cuda("_thnn_fused_gru_cell")
def gru_cell(_gates: Tensor, _hidden_gates: Tensor, hx: Tensor, *_: Any) -> tuple[Tensor, Tensor]:
    """The workspace holds five values per hidden unit, for the backward."""
    workspace = hx.new_empty(hx.size(0), hx.size(1) * 5)
    return torch.empty_like(hx), workspace


@cuda("_thnn_fused_gru_cell_backward")
def gru_cell_backward(grad: Tensor, workspace: Tensor, has_bias: bool) -> tuple[Tensor | None, ...]:
    rows, hidden = workspace.size(0), workspace.size(1) // 5
    of_input, of_hidden = (workspace.new_empty(rows, 3 * hidden) for _ in range(2))
    of_hx = torch.empty_like(grad)
    of_biases = [of_input.sum(0), of_hidden.sum(0)] if has_bias else [None, None]
    return of_input, of_hidden, of_hx, *of_biases


@cuda("slow_conv_transpose3d")
def slow_transposed_convolution(
    x: Tensor, weight: Tensor, kernel: Sequence[int], _bias: Tensor | None, stride: Sequence[int],
    padding: Sequence[int], output_padding: Sequence[int], dilation: Sequence[int],
) -> Tensor:  # fmt: skip
    """Columns of one sample at a time, then the result."""
    sizes = [
        (n - 1) * s - 2 * p + d * (k - 1) + o + 1
        for n, k, s, p, o, d in zip(x.shape[-3:], kernel, stride, padding, output_padding, dilation, strict=True)
    ]
    out = x.new_empty(*x.shape[:-4], weight.size(1), *sizes)
    columns = x.new_empty(weight.size(1) * kernel[0] * kernel[1] * kernel[2], x.shape[-3:].numel())
    del columns
    return out


@cuda("slow_conv_dilated2d", "slow_conv_dilated3d")
def slow_dilated_convolution(
    x: Tensor, weight: Tensor, kernel: Sequence[int], _bias: Tensor | None, stride: Sequence[int],
    padding: Sequence[int], dilation: Sequence[int],
) -> Tensor:  # fmt: skip
    dims = len(kernel)
    sizes = [
        (n + 2 * p - d * (k - 1) - 1) // s + 1
        for n, k, s, p, d in zip(x.shape[-dims:], kernel, stride, padding, dilation, strict=True)
    ]
    out = x.new_empty(*x.shape[: -dims - 1], weight.size(0), *sizes)
    columns = x.new_empty(weight[0].numel(), out.shape[-dims:].numel())
    del columns
    return out
