"""Flash attention: a result and four bytes a row are kept; the backward adds up in float32.

Source, torch 2.13: aten/src/ATen/native/transformers/cuda/flash_attn/flash_api.cpp, attention.cu and
attention_backward.cu. Which attention kernel runs is decided in native/attention.cpp.
"""

from __future__ import annotations

import math
from typing import Any

import torch

from planner.paper.kernels.table import cpu, cuda, target
from planner.upstream import versions

Tensor = torch.Tensor

_MOST_SPLITS = 128


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
    debug_mask = None
    if debug:
        debug_mask = q.new_empty(batch, heads, _round(rows, 128), _round(columns, 128))
    splits = _splits(batch * q.size(2), q.size(1), columns, head_dim) if dropout == 0.0 else 1
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
    splits = _splits(batch * heads, max_q, max_k, head_dim) if dropout == 0.0 and max_q == 1 else 1
    accumulators = _split_accumulators(splits, (batch, heads, max_q), head_dim)
    seed, unused = _flash_seeds(dropout)
    del accumulators
    return out, lse, seed, unused, q.new_empty(0)


def _flash_seeds(dropout: float) -> tuple[Tensor, Tensor]:
    """Since torch 2.7 on the device; before two numbers on the host, seed and offset."""
    if not versions.since(2, 7):
        return torch.empty((), dtype=torch.int64), torch.empty((), dtype=torch.int64)
    seed = torch.empty(2, dtype=torch.uint64, device="cuda")
    unused = torch.empty((), dtype=torch.uint64, device="cuda")
    if dropout > 0.0:
        seed = torch.empty(2, dtype=torch.uint64, device="cuda")
    return seed, unused


def _split_accumulators(splits: int, rows: tuple[int, int, int], head_dim: int) -> tuple[Tensor, ...]:
    if splits <= 1:
        return ()
    return _floats(splits, *rows), _floats(splits, *rows, _head_dim_rounded(head_dim))


def _head_dim_rounded(head_dim: int) -> int:
    return _round(head_dim, 32 if head_dim <= 128 else 64)


def _splits(batch_heads: int, rows: int, columns: int, head_dim: int) -> int:
    """Over how many blocks the keys are split, so that a small batch fills the GPU (flash_api.cpp)."""
    block = 256 if head_dim <= 64 else 128 if head_dim <= 128 else 64
    key_blocks = -(-columns // block)
    work = batch_heads * -(-rows // 64)
    slots = target().multiprocessors * 2
    if work >= 0.8 * slots:
        return 1
    most = min(_MOST_SPLITS, slots, key_blocks)
    useful = [n for n in range(1, most + 1) if n == 1 or -(-key_blocks // n) != -(-key_blocks // (n - 1))]
    filled = {n: work * n / slots / math.ceil(work * n / slots) for n in useful}
    best = max(filled.values())
    return next(n for n in useful if filled[n] >= 0.85 * best)


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
    temporaries = [_floats(heads, rows), _floats(rows, heads, _head_dim_rounded(head_dim))]
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
    query_gradient = _floats(*splits, batch, padded, heads, _head_dim_rounded(head_dim))
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
    return (
        out, lse.transpose(1, 2), None, None, rows, key.size(2), nothing, nothing, nothing
    )  # fmt: skip


@cpu("_scaled_dot_product_flash_attention_backward")
def flash_backward_on_cpu(
    _grad: Tensor, query: Tensor, key: Tensor, value: Tensor, *_: Any, **__: Any
) -> tuple[Tensor, ...]:
    return tuple(t.new_empty(t.size(0), t.size(2), t.size(1), t.size(3)).transpose(1, 2) for t in (query, key, value))
