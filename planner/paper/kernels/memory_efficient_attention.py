"""Memory-efficient attention: rows of the log-sum-exp in steps of 32, a workspace in float32 for the backward.

Source, torch 2.13: aten/src/ATen/native/transformers/cuda/attention.cu, attention_backward.cu and
mem_eff_attention/kernel_forward.h, kernel_backward.h.
"""

from __future__ import annotations

from typing import Any

import torch

from planner.paper.kernels.table import cuda, scratch, target

Tensor = torch.Tensor

_LSE_ALIGNMENT = 32
_FLOAT = 4
_LOCK = 16

Grads = tuple[Tensor | None, ...]


def _round(number: int, multiple: int) -> int:
    return -(-number // multiple) * multiple


def _floats(*shape: int) -> Tensor:
    return torch.empty(shape, dtype=torch.float32, device="cuda")


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
    grad_q, grad_k, grad_v = _efficient_gradients(q, k, v, shared)
    grad_bias = None
    if bias is not None:
        last = bias.size(-1)
        grad_bias = bias.new_empty(*bias.shape[:-1], _round(last, 16)).narrow(-1, 0, last)
    batch, rows, heads, head_dim = q.shape
    row_sums = _floats(batch, heads, rows)
    taken = _backward_workspace_bytes(
        batch_heads=batch * heads,
        rows=rows,
        columns=k.size(1),
        head_dim=head_dim,
        value_dim=v.size(3),
        is_float=q.dtype is torch.float32,
    )
    workspace = scratch(taken) if taken else None
    del kept, row_sums, workspace
    return grad_q, grad_k, grad_v, grad_bias


def _efficient_gradients(q: Tensor, k: Tensor, v: Tensor, shared: bool) -> tuple[Tensor, Tensor, Tensor]:
    if shared:
        whole = q.new_empty(q.size(0), q.size(1), 3, q.size(2), q.size(3))
        return whole.select(2, 0), whole.select(2, 1), whole.select(2, 2)
    return q.new_empty(q.shape), k.new_empty(k.shape), v.new_empty(v.shape)


def _backward_workspace_bytes(
    *, batch_heads: int, rows: int, columns: int, head_dim: int, value_dim: int, is_float: bool
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
    if target().capability in ((8, 6), (8, 9), (12, 0)):
        rows = 64  # too little shared memory for the larger tile
    in_registers = not is_float and largest <= rows
    columns = 128 if modern and in_registers and largest > 64 else 64
    return rows, columns, in_registers


def _ceil(number: int, divisor: int) -> int:
    return -(-number // divisor)
