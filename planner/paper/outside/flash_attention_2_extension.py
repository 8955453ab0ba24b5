"""The functions of flash-attn 2's extension `flash_attn_2_cuda`, which allocate and compute nothing.

Source, flash-attn 2.8.4: csrc/flash_attn/flash_api.cpp (mha_fwd, mha_varlen_fwd, mha_bwd, mha_varlen_bwd and
set_params_splitkv). Torch's own copy of these kernels, in planner/paper/kernels/attention.py, pads nothing and
asks for a second seed.
"""

from __future__ import annotations

import math
from typing import Any

import torch

from planner.paper.kernels.table import target
from planner.paper.outside.operators import floats, recorded_as, refuse, rounded

Tensor = torch.Tensor
Maybe = Tensor | None

_MOST_SPLITS = 128
_DTYPES = (torch.float16, torch.bfloat16)


def _check(q: Tensor, k: Tensor, v: Tensor) -> None:
    """As the extension's own checks, whose errors a program may rely on."""
    if q.dtype not in _DTYPES:
        raise RuntimeError("FlashAttention only support fp16 and bf16 data type")
    if k.dtype != q.dtype or v.dtype != q.dtype:
        raise RuntimeError("query and key must have the same dtype")
    if q.size(-1) > 256 or q.size(-1) % 8:
        raise RuntimeError("FlashAttention takes head dimensions up to 256 that are multiples of 8")
    if q.size(-2) % k.size(-2):
        raise RuntimeError("Number of heads in key/value must divide number of heads in query")
    if target().capability < (8, 0):
        raise RuntimeError("FlashAttention only supports Ampere GPUs or newer.")


def head_dim_rounded(head_dim: int) -> int:
    return rounded(head_dim, 32 if head_dim <= 128 else 64)


def _swaps_groups(q: Tensor, k: Tensor, rows: int, window: tuple[int, int], dropout: float, slopes: Maybe) -> bool:
    """A single query row: the heads that share a key become rows."""
    return rows == 1 and q.size(-2) > k.size(-2) and max(window) < 0 and dropout == 0.0 and slopes is None


def _split_accumulators(q: Tensor, splits: int, batch: int, rows: int, columns: int, dropout: float) -> list[Tensor]:
    """Where the keys are split over blocks so that a small batch fills the GPU; `splits` 0: by the extension's rule."""
    if dropout:
        return []
    heads, head_dim = q.size(-2), q.size(-1)
    count = splits or _splits(batch * heads, rows, columns, head_dim)
    if count <= 1:
        return []
    shape = (count, batch, heads, rows)
    return [floats(q, *shape), floats(q, *shape, head_dim_rounded(head_dim))]


def _splits(batch_heads: int, rows: int, columns: int, head_dim: int) -> int:
    block = 256 if head_dim <= 64 else 128 if head_dim <= 128 else 64
    key_blocks, work, slots = -(-columns // block), batch_heads * -(-rows // 64), target().multiprocessors * 2
    if work >= 0.8 * slots:
        return 1
    useful = [n for n in range(1, min(_MOST_SPLITS, slots, key_blocks) + 1) if n == 1 or _differs(key_blocks, n)]
    filled = {n: work * n / slots / math.ceil(work * n / slots) for n in useful}
    return next((n for n in useful if filled[n] >= 0.85 * max(filled.values())), 1)


def _differs(key_blocks: int, splits: int) -> bool:
    return -(-key_blocks // splits) != -(-key_blocks // (splits - 1))


@recorded_as("flash_attn::fwd")
def fwd(
    q: Tensor, k: Tensor, v: Tensor, out: Maybe, slopes: Maybe, dropout: float, _scale: float, _causal: bool,
    left: int, right: int, _softcap: float, return_softmax: bool, _generator: Any = None,
) -> list[Tensor]:  # fmt: skip
    """Result, log-sum-exp, the probabilities if asked for, and the state of the random numbers, in this order."""
    _check(q, k, v)
    batch, rows, heads, head_dim = q.shape
    columns, kv_heads = k.size(1), k.size(2)
    swaps = _swaps_groups(q, k, rows, _window(left, right, columns), dropout, slopes)
    if swaps:
        q = q.reshape(batch, kv_heads, heads // kv_heads, head_dim).transpose(1, 2)
    out = torch.empty_like(q) if out is None else out
    lse = floats(q, batch, q.size(2), q.size(1))
    shape = (batch, heads, rounded(rows, 128), rounded(columns, 128)) if return_softmax else (0,)
    probabilities = q.new_empty(shape)
    accumulators = _split_accumulators(q, 0, batch, q.size(1), columns, dropout)
    seed = torch.empty(2, dtype=torch.int64, device=q.device)
    if swaps:
        out = out.transpose(1, 2).reshape(batch, 1, heads, head_dim)
        q = q.transpose(1, 2).reshape(batch, 1, heads, head_dim)
        lse = lse.reshape(batch, heads, 1)
    del accumulators
    return [out, lse, probabilities, seed]


@recorded_as("flash_attn::varlen_fwd")
def varlen_fwd(
    q: Tensor, k: Tensor, v: Tensor, out: Maybe, cu_q: Tensor, _cu_k: Tensor, _used_k: Maybe, _leftpad: Maybe,
    block_table: Maybe, slopes: Maybe, max_q: int, max_k: int, dropout: float, _scale: float, _zero: bool,
    _causal: bool, left: int, right: int, _softcap: float, return_softmax: bool, _generator: Any = None,
    splits: int = 0,
) -> list[Tensor]:  # fmt: skip
    """Sequences one after another: the log-sum-exp is one row a head."""
    _check(q, k, v)
    batch, heads, head_dim, kv_heads = cu_q.numel() - 1, q.size(1), q.size(2), k.size(-2)
    swaps = _swaps_groups(q, k, max_q, _window(left, right, max_k), dropout, slopes)
    groups = heads // kv_heads
    if swaps:
        q = q.reshape(batch, kv_heads, groups, head_dim).transpose(1, 2).reshape(batch * groups, kv_heads, head_dim)
    out = torch.empty_like(q) if out is None else out
    lse = floats(q, q.size(1), q.size(0))
    shape = (batch, heads, rounded(max_q, 128), rounded(max_k, 128)) if return_softmax else (0,)
    probabilities = q.new_empty(shape)
    accumulators = _split_accumulators(q, splits, batch, groups, max_k, dropout) if swaps else []
    seed = torch.empty(2, dtype=torch.int64, device=q.device)
    if swaps:
        before, after = (batch, groups, kv_heads, head_dim), (batch, heads, head_dim)
        out = out.reshape(before).transpose(1, 2).reshape(after)
        q = q.reshape(before).transpose(1, 2).reshape(after)
        lse = lse.reshape(heads, batch)
    del accumulators, block_table
    return [out, lse, probabilities, seed]


@recorded_as("flash_attn::bwd")
def bwd(
    _grad: Tensor, q: Tensor, k: Tensor, v: Tensor, _out: Tensor, _lse: Tensor, dq: Maybe, dk: Maybe, dv: Maybe,
    _slopes: Maybe, _dropout: float, _scale: float, _causal: bool, _left: int, _right: int, _softcap: float,
    deterministic: bool, _generator: Any = None, _seed: Maybe = None,
) -> list[Tensor]:  # fmt: skip
    """Row sums and the query's gradient in float32, both for 128 rows at a time; with grouped heads also gradients of
    every head's key and value, which are summed into those of the groups."""
    _check(q, k, v)
    batch, rows, heads, head_dim = q.shape
    dq, dk, dv = (torch.empty_like(t) if g is None else g for t, g in ((q, dq), (k, dk), (v, dv)))
    padded = rounded(rows, 128)
    row_sums = floats(q, batch, heads, padded)
    splits = _deterministic_splits(batch, heads) if deterministic else ()
    in_float = floats(q, *splits, batch, padded, heads, head_dim_rounded(head_dim))
    expanded = [] if k.size(2) == heads else [k.new_empty(batch, k.size(1), heads, head_dim) for _ in range(2)]
    del in_float, expanded
    return [dq, dk, dv, row_sums]


@recorded_as("flash_attn::varlen_bwd")
def varlen_bwd(
    _grad: Tensor, q: Tensor, k: Tensor, v: Tensor, _out: Tensor, _lse: Tensor, dq: Maybe, dk: Maybe, dv: Maybe,
    cu_q: Tensor, _cu_k: Tensor, _slopes: Maybe, _max_q: int, _max_k: int, _dropout: float, _scale: float, _zero: bool,
    _causal: bool, _left: int, _right: int, _softcap: float, deterministic: bool, _generator: Any = None,
    _seed: Maybe = None,
) -> list[Tensor]:  # fmt: skip
    """As `bwd`, with 128 rows more for each sequence in place of rounding."""
    _check(q, k, v)
    batch, heads, head_dim = cu_q.numel() - 1, q.size(1), q.size(2)
    dq, dk, dv = (torch.empty_like(t) if g is None else g for t, g in ((q, dq), (k, dk), (v, dv)))
    padded = q.size(0) + 128 * batch
    row_sums = floats(q, heads, padded)
    splits = _deterministic_splits(batch, heads) if deterministic else ()
    in_float = floats(q, *splits, padded, heads, head_dim_rounded(head_dim))
    expanded = [] if k.size(1) == heads else [k.new_empty(k.size(0), heads, head_dim) for _ in range(2)]
    del in_float, expanded
    return [dq, dk, dv, row_sums]


def fwd_kvcache(*_arguments: Any, **_named: Any) -> Any:
    """Decoding with a cache. Raises TraceError."""
    refuse(
        "flash_attn_with_kvcache of flash-attn",
        "decoding with a cache is not modelled",
        "flash_attn_func, flash_attn_varlen_func and their packed forms",
    )


def _deterministic_splits(batch: int, heads: int) -> tuple[int]:
    return (-(-target().multiprocessors // (batch * heads)),)


def _window(left: int, right: int, columns: int) -> tuple[int, int]:
    """A window as wide as the keys is none."""
    return (-1 if left >= columns else left), (-1 if right >= columns else right)
