"""Attention: flash, memory-efficient and cuDNN's; what each keeps for the backward, and its workspaces."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from planner.paper.kernels import workspaces
from planner.paper.kernels.table import cpu, cuda, scratch, target
from planner.upstream import torch_releases

# Source, torch 2.13: aten/src/ATen/native/transformers/cuda/flash_attn/flash_api.cpp, attention.cu and
# attention_backward.cu. Which attention kernel runs is decided in native/attention.cpp.
_MOST_SPLITS = 128


def _ceil(number: int, divisor: int) -> int:
    return -(-number // divisor)


def _round(number: int, multiple: int) -> int:
    return -(-number // multiple) * multiple


def _floats(*shape: int) -> Tensor:
    return torch.empty(shape, dtype=torch.float32, device="cuda")


@cuda("_scaled_dot_product_flash_attention")
def flash(
    query: Tensor, key: Tensor, value: Tensor, dropout: float = 0.0, _causal: bool = False, debug: bool = False,
    *, scale: float | None = None,  # noqa: ARG001
) -> tuple[Any, ...]:  # fmt: skip
    """Heads before rows in, heads before rows out; inside it is the other way round."""
    q, k, v = (t.transpose(1, 2) for t in (query, key, value))
    out, lse, seed, unused, mask = _flash_dense(q, k, v, dropout, debug)
    return out.transpose(1, 2), lse, None, None, query.size(2), key.size(2), seed, unused, mask


@cuda("_flash_attention_forward")
def flash_forward(
    query: Tensor, key: Tensor, value: Tensor, cum_q: Tensor | None, _cum_k: Tensor | None, max_q: int, max_k: int,
    dropout: float, _causal: bool, debug: bool, **_: Any,
) -> tuple[Tensor, ...]:  # fmt: skip
    if cum_q is None:
        return _flash_dense(query, key, value, dropout, debug)
    return _flash_packed(query, cum_q.numel() - 1, max_q, max_k, dropout)


def _flash_dense(q: Tensor, k: Tensor, _v: Tensor, dropout: float, debug: bool) -> tuple[Tensor, ...]:
    batch, rows, heads, head_dim = q.shape
    columns, kv_heads = k.size(1), k.size(2)
    if rows == 1 and heads > kv_heads and dropout == 0.0:
        q = q.reshape(batch, kv_heads, heads // kv_heads, head_dim).transpose(1, 2)
    out = torch.empty_like(q)
    lse = _floats(batch, q.size(2), q.size(1))
    debug_mask = q.new_empty(batch, heads, _round(rows, 128), _round(columns, 128)) if debug else None
    splits = flash_splits(batch * q.size(2), q.size(1), columns, head_dim) if dropout == 0.0 else 1
    accumulators = _split_accumulators(splits, (batch, q.size(2), q.size(1)), head_dim)
    seed, unused = _flash_seeds(dropout)
    del accumulators
    if q.size(1) != rows:
        out = out.transpose(1, 2).reshape(batch, 1, heads, head_dim)
        lse = lse.reshape(batch, heads, 1)
    return out, lse, seed, unused, q.new_empty(0) if debug_mask is None else debug_mask


def _flash_packed(q: Tensor, batch: int, max_q: int, max_k: int, dropout: float) -> tuple[Tensor, ...]:
    """Sequences of different lengths, one after another: the log-sum-exp is one row per head."""
    out = torch.empty_like(q)
    heads, head_dim = q.size(1), q.size(2)
    lse = _floats(heads, q.size(0))
    splits = flash_splits(batch * heads, max_q, max_k, head_dim) if dropout == 0.0 and max_q == 1 else 1
    accumulators = _split_accumulators(splits, (batch, heads, max_q), head_dim)
    seed, unused = _flash_seeds(dropout)
    del accumulators
    return out, lse, seed, unused, q.new_empty(0)


def _flash_seeds(dropout: float) -> tuple[Tensor, Tensor]:
    """Since torch 2.7 on the device; before two numbers on the host, seed and offset."""
    if not torch_releases.since(2, 7):
        return torch.empty((), dtype=torch.int64), torch.empty((), dtype=torch.int64)
    seed = torch.empty(2, dtype=torch.uint64, device="cuda")
    unused = torch.empty((), dtype=torch.uint64, device="cuda")
    if dropout > 0.0:
        seed = torch.empty(2, dtype=torch.uint64, device="cuda")
    return seed, unused


def _split_accumulators(splits: int, rows: tuple[int, int, int], head_dim: int) -> tuple[Tensor, ...]:
    if splits <= 1:
        return ()
    return _floats(splits, *rows), _floats(splits, *rows, flash_head_dim(head_dim))


def flash_head_dim(head_dim: int) -> int:
    """As the kernels have it in their accumulators."""
    return _round(head_dim, 32 if head_dim <= 128 else 64)


def flash_splits(batch_heads: int, rows: int, columns: int, head_dim: int) -> int:
    """Over how many blocks the keys are split, so that a small batch fills the GPU (flash_api.cpp)."""
    block = 256 if head_dim <= 64 else 128 if head_dim <= 128 else 64
    key_blocks, work, slots = -(-columns // block), batch_heads * -(-rows // 64), target().multiprocessors * 2
    if work >= 0.8 * slots:
        return 1
    most = min(_MOST_SPLITS, slots, key_blocks)
    useful = [n for n in range(1, most + 1) if n == 1 or -(-key_blocks // n) != -(-key_blocks // (n - 1))]
    filled = {n: work * n / slots / math.ceil(work * n / slots) for n in useful}
    return next((n for n in useful if filled[n] >= 0.85 * max(filled.values())), 1)


@cuda("_scaled_dot_product_flash_attention_backward")
def flash_backward(
    grad: Tensor, query: Tensor, key: Tensor, value: Tensor, out: Tensor, _lse: Tensor, *_: Any, **__: Any
) -> tuple[Tensor, ...]:
    swapped = (t.transpose(1, 2) for t in (grad, query, key, value, out))
    return tuple(t.transpose(1, 2) for t in _flash_dense_backward(*swapped))


@cuda("_flash_attention_backward")
def flash_attention_backward(
    grad: Tensor, query: Tensor, key: Tensor, value: Tensor, out: Tensor, _lse: Tensor, cum_q: Tensor | None,
    _cum_k: Tensor | None, *_: Any, **__: Any,
) -> tuple[Tensor, ...]:  # fmt: skip
    if cum_q is None:
        return _flash_dense_backward(grad, query, key, value, out)
    batch, heads, head_dim = cum_q.numel() - 1, query.size(1), query.size(2)
    kept = grad.contiguous(), out.contiguous()
    grads = tuple(torch.empty_like(t) for t in (query, key, value))
    rows = query.size(0) + 128 * batch
    temporaries = [_floats(heads, rows), _floats(rows, heads, flash_head_dim(head_dim))]
    if key.size(1) != heads:
        temporaries += [key.new_empty(key.size(0), heads, head_dim) for _ in range(2)]
    del kept, temporaries
    return grads


def _flash_dense_backward(grad: Tensor, q: Tensor, k: Tensor, v: Tensor, out: Tensor) -> tuple[Tensor, ...]:
    """Row sums and the query's gradient in float32; with grouped queries, gradients of every head's key and value."""
    batch, rows, heads, head_dim = q.shape
    kept = grad.contiguous(), out.contiguous()
    grads = tuple(torch.empty_like(t) for t in (q, k, v))
    padded = _round(rows, 128)
    row_sums = _floats(batch, heads, padded)
    splits: tuple[int, ...] = ()
    if torch.are_deterministic_algorithms_enabled() and not torch.is_deterministic_algorithms_warn_only_enabled():
        splits = (-(-target().multiprocessors // (batch * heads)),)
    query_gradient = _floats(*splits, batch, padded, heads, flash_head_dim(head_dim))
    expanded = []
    if k.size(2) != heads:
        expanded = [k.new_empty(batch, k.size(1), heads, head_dim) for _ in range(2)]
    del kept, row_sums, query_gradient, expanded
    return grads


@cpu("_scaled_dot_product_flash_attention")
def flash_on_cpu(query: Tensor, key: Tensor, _value: Tensor, *_: Any, **__: Any) -> tuple[Any, ...]:
    """Source: torch 2.13 aten/src/ATen/native/transformers/attention.cpp and cpu/FlashAttentionKernel.cpp."""
    batch, heads, rows = query.shape[:3]
    out = torch.empty_like(query)
    lse = _floats(batch, rows, heads)
    nothing = query.new_empty(0)
    return out, lse.transpose(1, 2), None, None, rows, key.size(2), nothing, nothing, nothing


@cpu("_scaled_dot_product_flash_attention_backward")
def flash_backward_on_cpu(
    _grad: Tensor, query: Tensor, key: Tensor, value: Tensor, *_: Any, **__: Any
) -> tuple[Tensor, ...]:
    return tuple(t.new_empty(t.size(0), t.size(2), t.size(1), t.size(3)).transpose(1, 2) for t in (query, key, value))


# Source, torch 2.13: aten/src/ATen/native/transformers/cuda/attention.cu, attention_backward.cu and
# mem_eff_attention/kernel_forward.h, kernel_backward.h.
_LSE_ALIGNMENT = 32
_FLOAT = 4
_LOCK = 16

Grads = tuple[Tensor | None, ...]


@cuda("_scaled_dot_product_efficient_attention")
def memory_efficient(
    query: Tensor, key: Tensor, value: Tensor, _bias: Tensor | None, with_lse: bool, dropout: float = 0.0,
    _causal: bool = False, *, scale: float | None = None,  # noqa: ARG001
) -> tuple[Tensor, ...]:  # fmt: skip
    q, k, v = (t.transpose(1, 2) for t in (query, key, value))
    out, lse, seed, offset = _memory_efficient_attention(q, k, v, q.size(0), q.size(1), with_lse, dropout)
    return out.transpose(1, 2), lse, seed, offset


@cuda("_efficient_attention_forward")
def memory_efficient_forward(
    query: Tensor, key: Tensor, value: Tensor, _bias: Tensor | None, cum_q: Tensor | None, _cum_k: Tensor | None,
    max_q: int | None, max_k: int | None, dropout: float, _mask: int, with_lse: bool = False, **_: Any,
) -> tuple[Any, ...]:  # fmt: skip
    batch = query.size(0) if cum_q is None else cum_q.numel() - 1
    rows, columns = max_q or query.size(1), max_k or key.size(1)
    return *_memory_efficient_attention(query, key, value, batch, rows, with_lse, dropout), rows, columns


def _memory_efficient_attention(
    q: Tensor, _k: Tensor, v: Tensor, batch: int, rows: int, with_lse: bool, _dropout: float
) -> tuple[Tensor, ...]:
    """The seeds of a dropout stay on the host. Large heads add up in float32 beside a 16-bit result."""
    seed = torch.empty((), dtype=torch.int64)
    offset = torch.empty((), dtype=torch.int64)
    out = q.new_empty(q.size(0), q.size(1), q.size(2), v.size(3))
    lse = _floats(batch, q.size(2), _round(rows, _LSE_ALIGNMENT) if with_lse else 0)
    accumulator = None
    if max(q.size(3), v.size(3)) > 128 and q.dtype is not torch.float32:
        accumulator = _floats(*out.shape)
    del accumulator
    return out, lse, seed, offset


@cuda("_scaled_dot_product_efficient_attention_backward")
def memory_efficient_backward(
    grad: Tensor, query: Tensor, key: Tensor, value: Tensor, bias: Tensor | None, _out: Tensor, _lse: Tensor,
    _seed: Tensor, _offset: Tensor, _dropout: float, wanted: list[bool], *_: Any, **__: Any,
) -> Grads:  # fmt: skip
    grad, q, k, v = (t.transpose(1, 2) for t in (grad, query, key, value))
    *grads, grad_bias = _efficient_backward(grad, q, k, v, bias if wanted[3] else None)
    return (*(t.transpose(1, 2) for t in grads if t is not None), grad_bias)


@cuda("_efficient_attention_backward")
def memory_efficient_attention_backward(
    grad: Tensor, query: Tensor, key: Tensor, value: Tensor, bias: Tensor | None, _out: Tensor, _cum_q: Any,
    _cum_k: Any, _max_q: int, _max_k: int, _lse: Tensor, _dropout: float, _seed: Tensor, _offset: Tensor, _mask: int,
    bias_gradient: bool, *, shared_storage_dqdkdv: bool = False, **_: Any,
) -> Grads:  # fmt: skip
    return _efficient_backward(grad, query, key, value, bias if bias_gradient else None, shared=shared_storage_dqdkdv)


def _efficient_backward(
    grad: Tensor, q: Tensor, k: Tensor, v: Tensor, bias: Tensor | None, *, shared: bool = False
) -> Grads:
    kept = grad.contiguous()
    if shared:
        grad_q, grad_k, grad_v = q.new_empty(q.size(0), q.size(1), 3, q.size(2), q.size(3)).unbind(2)
    else:
        grad_q, grad_k, grad_v = q.new_empty(q.shape), k.new_empty(k.shape), v.new_empty(v.shape)
    grad_bias = None
    if bias is not None:
        last = bias.size(-1)
        grad_bias = bias.new_empty(*bias.shape[:-1], _round(last, 16)).narrow(-1, 0, last)
    batch, rows, heads, head_dim = q.shape
    row_sums = _floats(batch, heads, rows)
    taken = _backward_workspace_bytes(batch * heads, rows, k.size(1), head_dim, v.size(3), q.dtype is torch.float32)
    workspace = scratch(taken) if taken else None
    del kept, row_sums, workspace
    return grad_q, grad_k, grad_v, grad_bias


def _backward_workspace_bytes(
    batch_heads: int, rows: int, columns: int, head_dim: int, value_dim: int, is_float: bool
) -> int:
    """Bytes of the workspace of memory-efficient attention's backward: gradients of query, key and value in float32.

    The tiles are those of torch 2.13, mem_eff_attention/kernels/generate_kernels.py; their use is in
    mem_eff_attention/kernel_backward.h (workspace_size) and attention_backward.cu (how keys are split).
    """
    rows_tile, columns_tile, in_registers = _backward_tiles(max(head_dim, value_dim), is_float)
    splits = _ceil(columns, columns_tile)
    if batch_heads >= 256 and columns <= 2 * columns_tile:
        splits = 1
    accumulates = not in_registers and not is_float
    if accumulates:
        splits = max(1, min(splits, 200 // batch_heads))
    elements = _ceil(rows, rows_tile) * _ceil(head_dim, columns_tile) * (_LOCK // _FLOAT + rows_tile * columns_tile)
    if accumulates:
        padded = rows_tile * (_ceil(head_dim, rows_tile) + _ceil(value_dim, rows_tile))
        elements += splits * columns_tile * padded
    return batch_heads * _ceil(elements, 4) * 4 * _FLOAT


def _backward_tiles(head_dim: int, is_float: bool) -> tuple[int, int, bool]:
    """Rows and columns of a tile, and whether the gradients of key and value stay in registers."""
    largest = next(limit for limit in (32, 64, 128, 1 << 16) if head_dim <= limit)
    modern = target().capability >= (8, 0)
    rows = 128 if largest > 64 and (modern or (target().capability == (7, 0) and not is_float)) else 64
    if target().capability in ((8, 6), (8, 9), (12, 0), (12, 1)):
        rows = 64  # too little shared memory for the larger tile
    in_registers = not is_float and largest <= rows
    columns = 128 if modern and in_registers and largest > 64 else 64
    return rows, columns, in_registers


# Source, torch 2.13: aten/src/ATen/native/cudnn/MHA.cpp and native/transformers/cuda/attention.cu.
_BACKWARD = "cuDNN attention, backward: beyond the front end's part"


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
    forward_workspace(query, key, value, bias=bias is not None, with_lse=with_lse, dropout=dropout, causal=causal)
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
