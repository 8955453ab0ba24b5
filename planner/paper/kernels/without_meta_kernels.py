"""Operators that have no meta kernel in torch 2.13: their results, which are all that they allocate.

Sources: aten/src/ATen/native/cuda/ (MultiMarginLoss.cu, MultiLabelMarginCriterion.cu, FractionalMaxPool3d.cu,
LogcumsumexpKernel.cu, GridSampler.cpp, LossCTC.cu, RNN.cu, Equal.cpp), native/cudnn/LossCTC.cpp.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from planner.paper import values
from planner.paper.kernels import workspaces
from planner.paper.kernels.table import cuda


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
