"""flash-attn 3 as a program calls it (`flash_attn_interface`): allocations of its forward and backward.

Source, flash-attn's folder hopper at the commit 0251105 (2026-08): flash_api.cpp (mha_fwd, mha_bwd),
flash_attn_interface.py. It keeps no state of random numbers, as it has no dropout; its backward adds up in float32 for
as many rows as a tile of the architecture has.
"""

from __future__ import annotations

from typing import Any

import torch

from planner.paper.outside.operators import dense, floats, operator, refuse, rounded

Tensor = torch.Tensor
Maybe = Tensor | None
Window = tuple[int, int]

VERSION = "3.0.0"
_HEAD_DIMS = (64, 96, 128, 192, 256)
"""For which kernels of the backward are built (flash_api.cpp, round_up_headdim)."""
_DTYPES = (torch.float16, torch.bfloat16, torch.float8_e4m3fn)
_ALLOWED = "flash_attn_func and flash_attn_varlen_func with num_splits of 1 or more, and flash_attn_qkvpacked_func"


def _check(q: Tensor, k: Tensor, v: Tensor) -> None:
    if q.dtype not in _DTYPES or k.dtype != q.dtype or v.dtype != q.dtype:
        raise RuntimeError("FlashAttention only supports fp16, bf16, and fp8_e4m3 data type")
    if max(q.size(-1), v.size(-1)) > 256 or q.size(-1) % 8 or v.size(-1) % 8:
        raise RuntimeError("FlashAttention takes head dimensions up to 256 that are multiples of 8")
    if q.size(-2) % k.size(-2):
        raise RuntimeError("Number of heads in key/value must divide number of heads in query")


@operator("paper_flash_attn_3::forward")
def _forward(
    q: Tensor, k: Tensor, v: Tensor, cu_q: Tensor | None, max_q: int, max_k: int, causal: bool, left: int, right: int,
    splits: int, has_lengths: bool,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """Result and log-sum-exp; counters of the scheduler, and accumulators where keys are split, go at the end."""
    _check(q, k, v)
    q, k = dense(q), dense(k)
    v = v.contiguous() if v.stride(-1) != 1 and v.stride(-3) != 1 else v
    dtype = torch.bfloat16 if q.dtype is torch.float8_e4m3fn else q.dtype
    heads, value_dim = q.size(-2), v.size(-1)
    out = torch.empty((*q.shape[:-1], value_dim), dtype=dtype, device=q.device)
    rows = (q.size(0), heads, q.size(1)) if cu_q is None else (heads, q.size(0))
    lse = floats(q, *rows)
    batch = q.size(0) if cu_q is None else cu_q.numel() - 1
    matters = causal and not (max_q == 1 and left == right == -1)  # a single row sees all keys
    counters = _scheduler_counters(batch, *_mask(matters, left, right, max_q, max_k), splits, has_lengths)
    held = [torch.empty(counters, dtype=torch.int32, device=q.device)] if counters else []
    if splits > 1:
        held += [floats(q, splits, *rows, value_dim), floats(q, splits, *rows)]
    del held
    return out, lse


def _mask(causal: bool, left: int, right: int, max_q: int, max_k: int) -> tuple[bool, bool]:
    """Whether the kernel's mask is causal, and whether it is a window: one as wide as the sequence is none."""
    left = left if left < max_k - 1 else -1
    right = 0 if causal else right if right < max_q - 1 else -1
    is_causal = left < 0 and right == 0
    return is_causal, max(left, right) >= 0 and not is_causal


def _scheduler_counters(batch: int, causal: bool, local: bool, splits: int, has_lengths: bool) -> int:
    """Whole numbers of 4 bytes that the scheduler of tiles asks for (flash_api.cpp, metadata_size)."""
    bounded = causal or local
    if torch.cuda.get_device_capability() >= (9, 0):
        counts = (bounded and splits == 1) or has_lengths
    else:
        counts = (causal and not has_lengths) or (has_lengths and splits > 1)
    if not counts and not has_lengths:
        return 0
    vectors = 2 * has_lengths + (not local) + bounded
    return int(counts) + rounded(batch, 4) * vectors


@operator("paper_flash_attn_3::backward", writes=("dq", "dk", "dv"))
def _backward(
    grad: Tensor, q: Tensor, k: Tensor, v: Tensor, out: Tensor, lse: Tensor, dq: Tensor, dk: Tensor, dv: Tensor,
    cu_q: Tensor | None, max_q: int, max_k: int, causal: bool, left: int, right: int, softcap: float,
    deterministic: bool, has_lengths: bool,
) -> Tensor:  # fmt: skip
    """Row sums; the rest is in float32 and goes at the end."""
    del lse, dq, dk, dv  # gradients are written, in memory that is theirs
    _check(q, k, v)
    kept = [dense(tensor) for tensor in (grad, q, k, v, out)]
    batch = q.size(0) if cu_q is None else cu_q.numel() - 1
    heads, kv_heads, head_dim = (
        q.size(-2),
        k.size(-2),
        next(size for size in _HEAD_DIMS if max(q.size(-1), v.size(-1)) <= size),
    )
    is_causal, local = _mask(causal, left, right, max_q, max_k)
    tile_q, tile_k = _backward_tiles(head_dim, is_causal, local, softcap > 0.0)
    if has_lengths:
        total_q = q.size(0) if cu_q is not None else batch * q.size(1)
        total_k = k.size(0) if k.dim() == 3 else batch * k.size(1)
        of_q: tuple[int, ...] = (heads, rounded(total_q + batch * tile_q, tile_q))
        of_k: tuple[int, ...] = (kv_heads, rounded(total_k + batch * tile_k, tile_k))
    else:
        of_q, of_k = (batch, heads, rounded(max_q, tile_q)), (batch, kv_heads, rounded(max_k, tile_k))
    row_sums, rest = floats(q, *of_q), [floats(q, *of_q), floats(q, *of_q, head_dim)]
    if kv_heads != heads:
        rest += [floats(q, *of_k, head_dim), floats(q, *of_k, head_dim)]
    rest.append(torch.empty(-(-max_q // tile_q), batch, heads, dtype=torch.int32, device=q.device))
    if kv_heads != heads and deterministic:
        steps = (-(-max_k // tile_k), batch, kv_heads)
        rest += [torch.empty(steps, dtype=torch.int32, device=q.device) for _ in range(2)]
    del kept, rest
    return row_sums


def _backward_tiles(head_dim: int, causal: bool, local: bool, softcap: bool) -> tuple[int, int]:
    """Rows of queries and of keys that one block works on (flash_api.cpp, kBlockM and kBlockN)."""
    if torch.cuda.get_device_capability() >= (9, 0):
        by_dim = {64: 96 if causal and softcap else 128, 128: 64 if causal or local or softcap else 80}
        return by_dim.get(head_dim, 64), 128 if head_dim <= 128 else 96 if head_dim <= 192 else 80
    if torch.cuda.get_device_capability() in ((8, 6), (8, 9)):
        return 64 if head_dim <= 192 else 32, {64: 128, 96: 128, 128: 96}.get(head_dim, 64)
    return 128 if head_dim <= 64 else 64, 128 if head_dim <= 128 else 80 if head_dim <= 192 else 64


class _Attention(torch.autograd.Function):
    """Dense or, with `cu_q`, of sequences one after another; without `k` all three are packed in the first."""

    @staticmethod
    def forward(
        context: Any, first: Tensor, k: Maybe, v: Maybe, query_heads: int | None, cu_q: Maybe, cu_k: Maybe, max_q: int,
        max_k: int, causal: bool, window: Window, softcap: float, splits: int, deterministic: bool, with_lse: bool,
        has_lengths: bool,
    ) -> Any:  # fmt: skip
        if splits < 1:
            refuse("flash-attn 3", f"num_splits={splits} leaves the number to a rule of the library", _ALLOWED)
        is_packed = k is None or v is None
        q, k, v = _parts(first, query_heads) if k is None or v is None else (first, k, v)
        if not has_lengths:
            max_q, max_k = q.size(1), k.size(1)
        out, lse = torch.ops.paper_flash_attn_3.forward(
            q, k, v, cu_q, max_q, max_k, causal, *window, splits, has_lengths
        )
        context.save_for_backward(q, k, v, out, lse, cu_q, cu_k)
        context.packed = (first.shape, query_heads) if is_packed else None
        context.lengths = max_q, max_k
        context.settings = causal, *window, softcap, deterministic, has_lengths
        return (out, lse) if with_lse else out

    @staticmethod
    def backward(context: Any, grad: Tensor, *_unused: Any) -> Any:
        q, k, v, out, lse, cu_q, _ = context.saved_tensors
        made: tuple[Maybe, ...]
        if context.packed is None:
            made = grads = torch.empty_like(q), torch.empty_like(k), torch.empty_like(v)
        else:
            shape, query_heads = context.packed
            packed = q.new_empty(shape)
            made, grads = (packed, None, None), _parts(packed, query_heads)
        torch.ops.paper_flash_attn_3.backward(
            grad, q, k, v, out, lse, *grads, cu_q, *context.lengths, *context.settings
        )
        return *made, *[None] * 12


def _parts(qkv: Tensor, query_heads: int | None) -> tuple[Tensor, Tensor, Tensor]:
    if qkv.dim() == 5:
        q, k, v = qkv.unbind(-3)
        return q, k, v
    if query_heads is None:
        raise ValueError("num_heads_q is needed where heads of query, key and value lie in one dim")
    kv_heads = (qkv.size(2) - query_heads) // 2
    q, k, v = qkv.split([query_heads, kv_heads, kv_heads], dim=-2)
    return q, k, v


def _plain(chunk: int, *unusual: Any) -> None:
    if chunk or any(value is not None for value in unusual):
        refuse("flash-attn 3", "qv, descaling and attention_chunk are not modelled", _ALLOWED)


def flash_attn_func(
    q: Tensor, k: Tensor, v: Tensor, softmax_scale: float | None = None, causal: bool = False, qv: Maybe = None,
    q_descale: Maybe = None, k_descale: Maybe = None, v_descale: Maybe = None, window_size: Window = (-1, -1),
    attention_chunk: int = 0, softcap: float = 0.0, num_splits: int = 1, pack_gqa: bool | None = None,
    deterministic: bool = False, sm_margin: int = 0, return_attn_probs: bool = False,
) -> Any:  # fmt: skip
    """Attention over [batch, rows, heads, head dim]."""
    del softmax_scale, pack_gqa, sm_margin
    _plain(attention_chunk, qv, q_descale, k_descale, v_descale)
    return _Attention.apply(
        q, k, v, None, None, None, 0, 0, causal, tuple(window_size), softcap, num_splits, deterministic,
        return_attn_probs, False,
    )  # type: ignore[no-untyped-call]  # fmt: skip


def flash_attn_varlen_func(
    q: Tensor, k: Tensor, v: Tensor, cu_seqlens_q: Maybe, cu_seqlens_k: Maybe, max_seqlen_q: int, max_seqlen_k: int,
    seqused_q: Maybe = None, seqused_k: Maybe = None, softmax_scale: float | None = None, causal: bool = False,
    qv: Maybe = None, q_descale: Maybe = None, k_descale: Maybe = None, v_descale: Maybe = None,
    window_size: Window = (-1, -1), attention_chunk: int = 0, softcap: float = 0.0, num_splits: int = 1,
    pack_gqa: bool | None = None, deterministic: bool = False, sm_margin: int = 0, return_attn_probs: bool = False,
) -> Any:  # fmt: skip
    """Attention over sequences that lie one after another, [rows of all, heads, head dim]."""
    del seqused_q, seqused_k, softmax_scale, pack_gqa, sm_margin
    _plain(attention_chunk, qv, q_descale, k_descale, v_descale)
    # Dynamo (torch 2.13, _dynamo/variables/higher_order_ops.py) takes no tensor twice, which torch 2.9 did.
    cu_seqlens_k = None if cu_seqlens_k is cu_seqlens_q else cu_seqlens_k
    return _Attention.apply(
        q, k, v, None, cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k, causal, tuple(window_size), softcap,
        num_splits, deterministic, return_attn_probs, True,
    )  # type: ignore[no-untyped-call]  # fmt: skip


def flash_attn_qkvpacked_func(
    qkv: Tensor, softmax_scale: float | None = None, causal: bool = False, q_descale: Maybe = None,
    k_descale: Maybe = None, v_descale: Maybe = None, window_size: Window = (-1, -1), attention_chunk: int = 0,
    softcap: float = 0.0, deterministic: bool = False, num_heads_q: int | None = None, sm_margin: int = 0,
    return_attn_probs: bool = False,
) -> Any:  # fmt: skip
    """As `flash_attn_func`, with all three in [batch, rows, 3, heads, head dim] or with heads one after another."""
    del softmax_scale, sm_margin
    _plain(attention_chunk, q_descale, k_descale, v_descale)
    return _Attention.apply(
        qkv, None, None, num_heads_q, None, None, 0, 0, causal, tuple(window_size), softcap, 1, deterministic,
        return_attn_probs, False,
    )  # type: ignore[no-untyped-call]  # fmt: skip


def flash_attn_with_kvcache(*_arguments: Any, **_named: Any) -> Any:
    """Decoding with a cache. Raises TraceError."""
    refuse("flash_attn_with_kvcache of flash-attn 3", "decoding with a cache is not modelled", _ALLOWED)
