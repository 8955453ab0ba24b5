"""Normalization, also synchronized across ranks: statistics kept for the backward, and its partial sums."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from planner.paper.kernels import workspaces
from planner.paper.kernels.table import cuda, scratch, target

# Sources, torch 2.13: aten/src/ATen/native/cuda/layer_norm_kernel.cu, group_norm_kernel.cu, Normalization.cuh,
# native/cudnn/BatchNorm.cpp, native/group_norm.cpp.
_PARTIAL_ROWS = 64 * 1024
_PARTIAL_BLOCKS = 32 * 1024
_WARP = 32


def _statistics(x: Tensor, shape: Sequence[int]) -> Tensor:
    dtype = torch.float64 if x.dtype is torch.float64 else torch.float32
    return torch.empty(tuple(shape), dtype=dtype, device="cuda")


def _rows(x: Tensor, normalized: Sequence[int]) -> tuple[list[int], int, int]:
    """Shape of the statistics, number of rows, elements of a row."""
    outer = x.dim() - len(normalized)
    return [*x.shape[:outer], *[1] * len(normalized)], math.prod(x.shape[:outer]), math.prod(normalized)


@cuda("native_layer_norm")
def layer_norm(
    x: Tensor, normalized: Sequence[int], _weight: Tensor | None, _bias: Tensor | None, _eps: float
) -> tuple[Tensor, ...]:
    kept = x.contiguous()
    shape, rows, _ = _rows(x, normalized)
    out = torch.empty_like(kept, memory_format=torch.contiguous_format)
    mean, rstd = _statistics(x, [rows]), _statistics(x, [rows])
    return out, mean.view(shape), rstd.view(shape)


@cuda("native_layer_norm_backward")
def layer_norm_backward(
    grad: Tensor, x: Tensor, normalized: Sequence[int], _mean: Tensor, _rstd: Tensor, weight: Tensor | None,
    bias: Tensor | None, wanted: Sequence[bool],
) -> tuple[Tensor | None, ...]:  # fmt: skip
    kept = x.contiguous(), grad.contiguous()
    _, rows, columns = _rows(x, normalized)
    of_x = torch.empty_like(kept[0], memory_format=torch.contiguous_format) if wanted[0] else None
    like = weight if weight is not None else bias
    of_weight = torch.empty_like(weight) if wanted[1] and weight is not None else None
    of_bias = torch.empty_like(like) if wanted[2] and like is not None else None
    of_weight, of_bias = _summed_in_parts(rows, columns, of_weight, of_bias)
    return of_x, of_weight, of_bias


@cuda("_fused_rms_norm")
def rms_norm(x: Tensor, normalized: Sequence[int], _weight: Tensor | None, _eps: float | None) -> tuple[Tensor, Tensor]:
    kept = x.contiguous()
    shape, rows, _ = _rows(x, normalized)
    out = torch.empty_like(kept, memory_format=torch.contiguous_format)
    return out, _statistics(x, [rows]).view(shape)


@cuda("_fused_rms_norm_backward")
def rms_norm_backward(
    grad: Tensor, x: Tensor, normalized: Sequence[int], _rstd: Tensor, weight: Tensor | None, wanted: Sequence[bool]
) -> tuple[Tensor | None, Tensor | None]:
    kept = x.contiguous(), grad.contiguous()
    _, rows, columns = _rows(x, normalized)
    of_x = torch.empty_like(kept[0], memory_format=torch.contiguous_format) if wanted[0] else None
    of_weight = torch.empty_like(weight) if wanted[1] and weight is not None else None
    of_weight, _ = _summed_in_parts(rows, columns, of_weight, None)
    return of_x, of_weight


def _summed_in_parts(
    rows: int, columns: int, of_weight: Tensor | None, of_bias: Tensor | None
) -> tuple[Tensor | None, Tensor | None]:
    """Many short rows are summed over blocks first, and the blocks then; the results are those of the second sum."""
    if rows <= _PARTIAL_ROWS or columns // _WARP >= target().multiprocessors // 2:
        return of_weight, of_bias
    across = -(-columns // _WARP)
    blocks = min(_PARTIAL_BLOCKS // across, -(-rows // _WARP))
    parts = [None if t is None else t.new_empty(blocks, columns) for t in (of_weight, of_bias)]
    of_weight, of_bias = (None if part is None else part.sum(0) for part in parts)
    return of_weight, of_bias


@cuda("native_group_norm")
def group_norm(
    x: Tensor, weight: Tensor | None, bias: Tensor | None, batch: int, channels: int, positions: int, groups: int,
    _eps: float,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    kept = x.contiguous()
    out = torch.empty_like(kept)
    mean, rstd = kept.new_empty(batch, groups), kept.new_empty(batch, groups)
    if positions > 1 and (weight is not None or bias is not None):
        scale_and_shift = _statistics(x, [batch, channels]), _statistics(x, [batch, channels])
        del scale_and_shift
    return out, mean, rstd


@cuda("native_group_norm_backward")
def group_norm_backward(
    grad: Tensor, x: Tensor, _mean: Tensor, _rstd: Tensor, weight: Tensor | None, batch: int, channels: int,
    positions: int, groups: int, wanted: Sequence[bool],
) -> tuple[Tensor | None, ...]:  # fmt: skip
    kept = grad.contiguous(), x.contiguous()
    of_x = torch.empty_like(kept[1]) if wanted[0] else None
    of_weight = x.new_empty(channels) if wanted[1] else None
    of_bias = x.new_empty(channels) if wanted[2] else None
    if positions > 1:
        sums = [_statistics(x, [batch, channels]) for _ in range(2)]
        if of_x is not None:
            sums += [_statistics(x, [batch, groups]) for _ in range(2)]
            if weight is not None:
                sums.append(_statistics(x, [batch, channels]))
        del sums
    elif of_x is not None:
        sums = [_statistics(x, [batch, groups]) for _ in range(2)]
        del sums
    return of_x, of_weight, of_bias


@cuda("cudnn_batch_norm")
def cudnn_batch_norm(
    x: Tensor, weight: Tensor, _bias: Tensor | None, _mean: Tensor | None, _var: Tensor | None, training: bool,
    *_: Any,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    out = torch.empty_like(x, memory_format=_suggest_memory_format(x))
    if not training:
        return out, weight.new_empty(0), weight.new_empty(0), scratch(0)
    mean, variance = weight.new_empty(x.size(1)), weight.new_empty(x.size(1))
    # Allocated before the workspace: aten/src/ATen/native/cudnn/BatchNorm.cpp.
    reserve = scratch(workspaces.bytes_kept("cuDNN batch normalization, reserve", [x], _layout_of(x), 0))
    _cudnn_workspace("cuDNN batch normalization, forward", x)
    return out, mean, variance, reserve


def _cudnn_workspace(kernel: str, x: Tensor) -> Tensor | None:
    """The measured workspace. Where nothing was measured: none in float32 with channels first, otherwise unknown.

    Source, frames of published snapshots of training: 30 forwards and 30 backwards of 1 to 4 MiB (JasperSolt/EoR_NN at
    6686e9f, torch 2.2), 140 forwards of 1 MiB to 4.9 GiB (HugePandaCoder/octree-nca-groupeq, my_snapshot.pickle, blobs
    0072096 and 1e496ac, torch 2.5 and 2.3) allocate their results and statistics alone: no workspace, no reserve.
    """
    layout = _layout_of(x)
    if x.dtype is torch.float32 and layout == "layout=channels_first":
        return scratch(workspaces.bytes_kept(kernel, [x], layout, 0))
    return workspaces.take("cudnn", kernel, [x], layout)


def _layout_of(x: Tensor) -> str:
    return f"layout={'channels_first' if _suggest_memory_format(x) is torch.contiguous_format else 'channels_last'}"


@cuda("cudnn_batch_norm_backward")
def cudnn_batch_norm_backward(x: Tensor, grad: Tensor, weight: Tensor, *_: Any) -> tuple[Tensor, Tensor, Tensor]:
    kept = grad.contiguous(memory_format=_suggest_memory_format(x))
    of_x = torch.empty_like(x, memory_format=_suggest_memory_format(x))
    of_weight, of_bias = torch.empty_like(weight), torch.empty_like(weight)
    workspace = _cudnn_workspace("cuDNN batch normalization, backward", x)
    del kept, workspace
    return of_x, of_weight, of_bias


def _suggest_memory_format(x: Tensor) -> torch.memory_format:
    last = {4: torch.channels_last, 5: torch.channels_last_3d}.get(x.dim())
    is_last = last is not None and x.is_contiguous(memory_format=last) and not x.is_contiguous()
    return last if last is not None and is_last else torch.contiguous_format


# Source, torch 2.13: aten/src/ATen/native/cuda/Normalization.cu, Normalization.cuh.
def _per_channel(x: Tensor) -> Tensor:
    return _statistics(x, [x.size(1)])


@cuda("batch_norm_stats", "batch_norm_gather_stats", "batch_norm_gather_stats_with_counts", "batch_norm_update_stats")
def statistics(x: Tensor, *_: Any) -> tuple[Tensor, Tensor]:
    return _per_channel(x), _per_channel(x)


@cuda("batch_norm_backward_reduce")
def reduce_gradients(
    _grad: Tensor, x: Tensor, _mean: Tensor, _invstd: Tensor, weight: Tensor | None, *wanted: bool
) -> tuple[Tensor | None, ...]:
    sums = (_per_channel(x), _per_channel(x)) if wanted[0] else (None, None)
    of_weight = weight.new_empty(x.size(1)) if weight is not None and wanted[1] else None
    of_bias = weight.new_empty(x.size(1)) if weight is not None and wanted[2] else None
    return *sums, of_weight, of_bias
