"""Attention of cuDNN, which data-centre Hopper and Blackwell prefer.

Source, torch 2.13: aten/src/ATen/native/cudnn/MHA.cpp and native/transformers/cuda/attention.cu.
"""

from __future__ import annotations

from typing import Any

import torch

from planner.paper.kernels import workspaces
from planner.paper.kernels.table import cuda

Tensor = torch.Tensor

_FLOAT = 4
_BACKWARD = "cuDNN attention, backward: beyond the front end's part"


def _floats(*shape: int) -> Tensor:
    return torch.empty(shape, dtype=torch.float32, device="cuda")


@cuda("_scaled_dot_product_cudnn_attention")
def cudnn(
    query: Tensor, key: Tensor, value: Tensor, bias: Tensor | None, with_lse: bool, dropout: float = 0.0,
    causal: bool = False, debug: bool = False, *, scale: float | None = None,
) -> tuple[Any, ...]:  # fmt: skip
    lengths = query.size(2), key.size(2)
    return cudnn_forward(query, key, value, bias, None, None, *lengths, with_lse, dropout, causal, debug, scale=scale)


@cuda("_cudnn_attention_forward")
def cudnn_forward(
    query: Tensor, key: Tensor, value: Tensor, bias: Tensor | None, _cum_q: Any, _cum_k: Any, max_q: int, max_k: int,
    with_lse: bool, dropout: float = 0.0, causal: bool = False, *_: Any, **__: Any,
) -> tuple[Any, ...]:  # fmt: skip
    """The result lies as the query does; the backward needs one float32 per row and head."""
    seed = torch.empty((), dtype=torch.int64, device="cuda")
    offset = torch.empty((), dtype=torch.int64, device="cuda")
    out = _laid_out_as(query, value.size(3))
    lse = _floats(query.size(0), query.size(1), query.size(2), 1) if with_lse else None
    workspace = forward_workspace(
        query, key, value, bias=bias is not None, with_lse=with_lse, dropout=dropout, causal=causal
    )
    del workspace
    return out, lse, None, None, max_q, max_k, seed, offset, None


def forward_workspace(
    query: Tensor, key: Tensor, value: Tensor, *, bias: bool, with_lse: bool, dropout: float, causal: bool
) -> Tensor | None:
    """What cuDNN takes for a forward of [batch, heads, rows, head dim]; none where nothing was measured."""
    options = f"bias={bias} lse={with_lse} dropout={dropout > 0} causal={causal}"
    return workspaces.take("cudnn", "cuDNN attention, forward", [query, key, value], options)


def _laid_out_as(query: Tensor, value_dim: int) -> Tensor:
    """Dims in the order of the query's strides, dense."""
    shape = (*query.shape[:3], value_dim)
    order = sorted(range(4), key=lambda dim: query.stride(dim), reverse=True)
    strides, step = [0, 0, 0, 0], 1
    for dim in reversed(order):
        strides[dim], step = step, step * shape[dim]
    return torch.empty_strided(shape, strides, dtype=query.dtype, device="cuda")


@cuda("_scaled_dot_product_cudnn_attention_backward", "_cudnn_attention_backward")
def cudnn_backward(
    grad: Tensor, query: Tensor, key: Tensor, value: Tensor, out: Tensor, *_: Any, **__: Any
) -> tuple[Tensor, ...]:
    grads = tuple(torch.empty_like(t) for t in (query, key, value))
    kept = grad if grad.stride(-1) == 1 else torch.empty_like(out)
    workspace = backward_workspace(query, key, value)
    del kept, workspace
    return grads


def backward_workspace(query: Tensor, key: Tensor, value: Tensor) -> Tensor | None:
    """cuDNN's front end asks for row sums and the query's gradient in float32 beside what its kernel wants; tensors are
    [batch, heads, rows, head dim].

    Source: cudnn-frontend, include/cudnn_frontend/node/scaled_dot_product_flash_attention.h, since cuDNN 9.0.
    """
    batch, heads, rows, head_dim = query.shape
    front_end = batch * heads * rows * (head_dim + 1) * _FLOAT
    return workspaces.take("cudnn", _BACKWARD, [query, key, value], at_least=front_end)
