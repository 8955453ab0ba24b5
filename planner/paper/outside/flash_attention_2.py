"""flash-attn 2 as a program calls it: its extension, attention, padding, rotary embeddings, cross entropy."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import nn
from torch.nn.functional import pad

from planner.paper.outside.operators import dense, floats, kernel, operator, record_operator, refuse, rounded

Tensor = torch.Tensor
Maybe = Tensor | None
Window = tuple[int, int]

VERSION = "2.8.4"

# The functions of the extension `flash_attn_2_cuda`, which allocate and compute nothing. Source, flash-attn 2.8.4:
# csrc/flash_attn/flash_api.cpp (mha_fwd, mha_varlen_fwd, mha_bwd, mha_varlen_bwd and set_params_splitkv).
_DTYPES = (torch.float16, torch.bfloat16)
_MOST_SPLITS = 128


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
    if torch.cuda.get_device_capability() < (8, 0):
        raise RuntimeError("FlashAttention only supports Ampere GPUs or newer.")


def _swaps_groups(q: Tensor, k: Tensor, rows: int, window: tuple[int, int], dropout: float, slopes: Maybe) -> bool:
    """A single query row: the heads that share a key become rows."""
    return rows == 1 and q.size(-2) > k.size(-2) and max(window) < 0 and dropout == 0.0 and slopes is None


def _split_accumulators(q: Tensor, splits: int, batch: int, rows: int, columns: int, dropout: float) -> list[Tensor]:
    """Where the keys are split over blocks so that a small batch fills the GPU; `splits` 0: by the extension's rule."""
    if dropout:
        return []
    heads, head_dim = q.size(-2), q.size(-1)
    count = splits or _splits_of_keys(batch * heads, rows, columns, head_dim)
    if count <= 1:
        return []
    shape = (count, batch, heads, rows)
    return [floats(q, *shape), floats(q, *shape, _head_dim_of_accumulators(head_dim))]


def _head_dim_of_accumulators(head_dim: int) -> int:
    return rounded(head_dim, 32 if head_dim <= 128 else 64)


def _splits_of_keys(batch_heads: int, rows: int, columns: int, head_dim: int) -> int:
    """Over how many blocks the keys are split, so that a small batch fills the GPU."""
    block = 256 if head_dim <= 64 else 128 if head_dim <= 128 else 64
    key_blocks, work = -(-columns // block), batch_heads * -(-rows // 64)
    slots = torch.cuda.get_device_properties().multi_processor_count * 2
    if work >= 0.8 * slots:
        return 1
    most = min(_MOST_SPLITS, slots, key_blocks)
    useful = [n for n in range(1, most + 1) if n == 1 or -(-key_blocks // n) != -(-key_blocks // (n - 1))]
    filled = {n: work * n / slots / math.ceil(work * n / slots) for n in useful}
    return next((n for n in useful if filled[n] >= 0.85 * max(filled.values())), 1)


@kernel("flash_attn::fwd")
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


@kernel("flash_attn::varlen_fwd")
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


@kernel("flash_attn::bwd")
def bwd(
    _grad: Tensor, q: Tensor, k: Tensor, v: Tensor, _out: Tensor, _lse: Tensor, dq: Maybe, dk: Maybe, dv: Maybe,
    _slopes: Maybe, _dropout: float, _scale: float, _causal: bool, _left: int, _right: int, _softcap: float,
    deterministic: bool, _generator: Any = None, _seed: Maybe = None,
) -> list[Tensor]:  # fmt: skip
    """Rows are padded to 128 in each sequence."""
    batch, rows = q.shape[:2]
    return _differentiate((q, k, v), (dq, dk, dv), batch, (batch,), rounded(rows, 128), deterministic)


@kernel("flash_attn::varlen_bwd")
def varlen_bwd(
    _grad: Tensor, q: Tensor, k: Tensor, v: Tensor, _out: Tensor, _lse: Tensor, dq: Maybe, dk: Maybe, dv: Maybe,
    cu_q: Tensor, _cu_k: Tensor, _slopes: Maybe, _max_q: int, _max_k: int, _dropout: float, _scale: float, _zero: bool,
    _causal: bool, _left: int, _right: int, _softcap: float, deterministic: bool, _generator: Any = None,
    _seed: Maybe = None,
) -> list[Tensor]:  # fmt: skip
    """As `bwd`, with 128 rows more for each sequence in place of rounding."""
    batch = cu_q.numel() - 1
    return _differentiate((q, k, v), (dq, dk, dv), batch, (), q.size(0) + 128 * batch, deterministic)


def _differentiate(
    given: tuple[Tensor, ...], grads: tuple[Maybe, ...], batch: int, outer: tuple[int, ...], rows: int,
    deterministic: bool,
) -> list[Tensor]:  # fmt: skip
    """Row sums and the query's gradient in float32; with grouped heads also gradients of every head's key and value,
    which are summed into those of the groups."""
    q, k, v = given
    _check(q, k, v)
    heads, head_dim = q.shape[-2:]
    made = [torch.empty_like(t) if grad is None else grad for t, grad in zip(given, grads, strict=True)]
    row_sums = floats(q, *outer, heads, rows)
    multiprocessors = torch.cuda.get_device_properties().multi_processor_count
    splits = (-(-multiprocessors // (batch * heads)),) if deterministic else ()
    in_float = floats(q, *splits, *outer, rows, heads, _head_dim_of_accumulators(head_dim))
    expanded = [] if k.size(-2) == heads else [k.new_empty(*k.shape[:-2], heads, head_dim) for _ in range(2)]
    del in_float, expanded
    return [*made, row_sums]


def fwd_kvcache(*_arguments: Any, **_named: Any) -> Any:
    """Decoding with a cache. Raises TraceError."""
    refuse(
        "flash_attn_with_kvcache of flash-attn",
        "decoding with a cache is not modelled",
        "flash_attn_func, flash_attn_varlen_func and their packed forms",
    )


def _window(left: int, right: int, columns: int) -> tuple[int, int]:
    """A window as wide as the keys is none."""
    return (-1 if left >= columns else left), (-1 if right >= columns else right)


# What is kept for the backward and what the backward makes is as in flash-attn 2.8.4,
# flash_attn/flash_attn_interface.py: heads are padded to a multiple of 8, gradients of packed inputs are one tensor,
# and the operators of torch have the package's names and signatures, so that compiled programs find the same ones.
_MULTIPLE = 8


@operator("flash_attn::_flash_attn_forward")
def _flash_attn_forward(
    q: Tensor, k: Tensor, v: Tensor, dropout_p: float, softmax_scale: float, causal: bool, window_size_left: int,
    window_size_right: int, softcap: float, alibi_slopes: Tensor | None, return_softmax: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    return tuple(fwd(
        dense(q), dense(k), dense(v), None, alibi_slopes, dropout_p, softmax_scale, causal, window_size_left,
        window_size_right, softcap, return_softmax,
    ))  # type: ignore[return-value]  # fmt: skip


@operator("flash_attn::_flash_attn_varlen_forward")
def _flash_attn_varlen_forward(
    q: Tensor, k: Tensor, v: Tensor, cu_seqlens_q: Tensor, cu_seqlens_k: Tensor, max_seqlen_q: int, max_seqlen_k: int,
    dropout_p: float, softmax_scale: float, causal: bool, window_size_left: int = -1, window_size_right: int = -1,
    softcap: float = 0.0, alibi_slopes: Tensor | None = None, return_softmax: bool = False,
    block_table: Tensor | None = None, leftpad_k: Tensor | None = None, seqused_k: Tensor | None = None,
    zero_tensors: bool = False, num_splits: int = 0,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    return tuple(varlen_fwd(
        dense(q), dense(k), dense(v), None, cu_seqlens_q, cu_seqlens_k, seqused_k, leftpad_k, block_table,
        alibi_slopes, max_seqlen_q, max_seqlen_k, dropout_p, softmax_scale, zero_tensors, causal, window_size_left,
        window_size_right, softcap, return_softmax, None, num_splits,
    ))  # type: ignore[return-value]  # fmt: skip


@operator("flash_attn::_flash_attn_backward", writes=("dq", "dk", "dv"))
def _flash_attn_backward(
    dout: Tensor, q: Tensor, k: Tensor, v: Tensor, out: Tensor, softmax_lse: Tensor, dq: Tensor | None,
    dk: Tensor | None, dv: Tensor | None, dropout_p: float, softmax_scale: float, causal: bool, window_size_left: int,
    window_size_right: int, softcap: float, alibi_slopes: Tensor | None, deterministic: bool,
    rng_state: Tensor | None = None,
) -> Tensor:  # fmt: skip
    kept = dense(dout), dense(q), dense(k), dense(v), dense(out)
    row_sums = bwd(
        *kept, softmax_lse, dq, dk, dv, alibi_slopes, dropout_p, softmax_scale, causal, window_size_left,
        window_size_right, softcap, deterministic, None, rng_state,
    )[3]  # fmt: skip
    del kept
    return row_sums


@operator("flash_attn::_flash_attn_varlen_backward", writes=("dq", "dk", "dv"))
def _flash_attn_varlen_backward(
    dout: Tensor, q: Tensor, k: Tensor, v: Tensor, out: Tensor, softmax_lse: Tensor, dq: Tensor | None,
    dk: Tensor | None, dv: Tensor | None, cu_seqlens_q: Tensor, cu_seqlens_k: Tensor, max_seqlen_q: int,
    max_seqlen_k: int, dropout_p: float, softmax_scale: float, causal: bool, window_size_left: int,
    window_size_right: int, softcap: float, alibi_slopes: Tensor | None, deterministic: bool,
    rng_state: Tensor | None = None, zero_tensors: bool = False,
) -> Tensor:  # fmt: skip
    kept = dense(dout), dense(q), dense(k), dense(v), dense(out)
    row_sums = varlen_bwd(
        *kept, softmax_lse, dq, dk, dv, cu_seqlens_q, cu_seqlens_k, alibi_slopes, max_seqlen_q, max_seqlen_k,
        dropout_p, softmax_scale, zero_tensors, causal, window_size_left, window_size_right, softcap, deterministic,
        None, rng_state,
    )[3]  # fmt: skip
    del kept
    return row_sums


class _Attention(torch.autograd.Function):
    """All six functions. Inputs are q, k, v; q and packed keys and values; or all of them packed: what is not there is
    None. Sequences have lengths if `cu_q` is there."""

    @staticmethod
    def forward(
        context: Any, first: Tensor, second: Tensor | None, third: Tensor | None, cu_q: Tensor | None,
        cu_k: Tensor | None, max_q: int, max_k: int, dropout: float, scale: float | None, causal: bool, window: Window,
        softcap: float, slopes: Tensor | None, deterministic: bool, with_probabilities: bool,
        block_table: Tensor | None, with_gradients: bool,
    ) -> Any:  # fmt: skip
        q, k, v = _unpacked(first, second, third)
        head_dim = q.size(-1)
        scale = head_dim**-0.5 if scale is None else scale
        if head_dim % _MULTIPLE:
            wider = [0, _MULTIPLE - head_dim % _MULTIPLE]
            q, k, v = pad(q, wider), pad(k, wider), pad(v, wider)
        wanted = with_probabilities and dropout > 0
        if cu_q is None:
            out, lse, probabilities, seed = torch.ops.flash_attn._flash_attn_forward(
                q, k, v, dropout, scale, causal, *window, softcap, slopes, wanted
            )
        else:
            out, lse, probabilities, seed = torch.ops.flash_attn._flash_attn_varlen_forward(
                q, k, v, cu_q, cu_k, max_q, max_k, dropout, scale, causal, *window, softcap, slopes, wanted,
                block_table,
            )  # fmt: skip
        given = [each for each in (first, second, third) if each is not None]
        if with_gradients and any(each.requires_grad for each in given):
            context.save_for_backward(q, k, v, out, lse, seed, cu_q, cu_k)
            context.inputs = len(given)
            context.lengths = max_q, max_k
            context.settings = dropout, scale, causal, *window, softcap, slopes, deterministic
        result = out[..., :head_dim]
        return (result, lse, probabilities) if with_probabilities else result

    @staticmethod
    def backward(context: Any, grad: Tensor, *_unused: Any) -> Any:
        q, k, v, out, lse, seed, cu_q, cu_k = context.saved_tensors
        head_dim = grad.size(-1)
        given, (dq, dk, dv) = _gradients(q, k, v, context.inputs)
        padded = pad(grad, [0, _MULTIPLE - head_dim % _MULTIPLE]) if head_dim % _MULTIPLE else grad
        if cu_q is None:
            torch.ops.flash_attn._flash_attn_backward(
                padded, q, k, v, out, lse, dq, dk, dv, *context.settings, rng_state=seed
            )
        else:
            torch.ops.flash_attn._flash_attn_varlen_backward(
                padded, q, k, v, out, lse, dq, dk, dv, cu_q, cu_k, *context.lengths, *context.settings, rng_state=seed
            )
        made = [each[..., :head_dim] for each in given]
        return *made, *[None] * (17 - len(made))


def _unpacked(first: Tensor, second: Tensor | None, third: Tensor | None) -> tuple[Tensor, Tensor, Tensor]:
    """Views of query, key and value: packed ones lie in the dim before the heads."""
    if second is None:
        q, k, v = (first.select(-3, index).detach() for index in range(3))
        return q, k, v
    if third is None:
        return first, second.select(-3, 0).detach(), second.select(-3, 1).detach()
    return first, second, third


def _gradients(q: Tensor, k: Tensor, v: Tensor, inputs: int) -> tuple[list[Tensor], tuple[Tensor, Tensor, Tensor]]:
    """Those of the inputs, and of query, key and value in them."""
    if inputs == 3:
        dq, dk, dv = torch.empty_like(q), torch.empty_like(k), torch.empty_like(v)
        return [dq, dk, dv], (dq, dk, dv)
    if inputs == 2:
        dq, dkv = torch.empty_like(q), k.new_empty((*k.shape[:-2], 2, *k.shape[-2:]))
        return [dq, dkv], (dq, dkv.select(-3, 0), dkv.select(-3, 1))
    dqkv = q.new_empty((*q.shape[:-2], 3, *q.shape[-2:]))
    return [dqkv], (dqkv.select(-3, 0), dqkv.select(-3, 1), dqkv.select(-3, 2))


def flash_attn_func(
    q: Tensor, k: Tensor, v: Tensor, dropout_p: float = 0.0, softmax_scale: float | None = None, causal: bool = False,
    window_size: Window = (-1, -1), softcap: float = 0.0, alibi_slopes: Tensor | None = None,
    deterministic: bool = False, return_attn_probs: bool = False,
) -> Any:  # fmt: skip
    """Attention over [batch, rows, heads, head dim]."""
    return _Attention.apply(
        q, k, v, None, None, 0, 0, dropout_p, softmax_scale, causal, window_size, softcap, alibi_slopes, deterministic,
        return_attn_probs, None, torch.is_grad_enabled(),
    )  # type: ignore[no-untyped-call]  # fmt: skip


def flash_attn_kvpacked_func(
    q: Tensor, kv: Tensor, dropout_p: float = 0.0, softmax_scale: float | None = None, causal: bool = False,
    window_size: Window = (-1, -1), softcap: float = 0.0, alibi_slopes: Tensor | None = None,
    deterministic: bool = False, return_attn_probs: bool = False,
) -> Any:  # fmt: skip
    """As `flash_attn_func`, with keys and values in [batch, rows, 2, heads, head dim]."""
    return _Attention.apply(
        q, kv, None, None, None, 0, 0, dropout_p, softmax_scale, causal, window_size, softcap, alibi_slopes,
        deterministic, return_attn_probs, None, torch.is_grad_enabled(),
    )  # type: ignore[no-untyped-call]  # fmt: skip


def flash_attn_qkvpacked_func(
    qkv: Tensor, dropout_p: float = 0.0, softmax_scale: float | None = None, causal: bool = False,
    window_size: Window = (-1, -1), softcap: float = 0.0, alibi_slopes: Tensor | None = None,
    deterministic: bool = False, return_attn_probs: bool = False,
) -> Any:  # fmt: skip
    """As `flash_attn_func`, with all three in [batch, rows, 3, heads, head dim]."""
    return _Attention.apply(
        qkv, None, None, None, None, 0, 0, dropout_p, softmax_scale, causal, window_size, softcap, alibi_slopes,
        deterministic, return_attn_probs, None, torch.is_grad_enabled(),
    )  # type: ignore[no-untyped-call]  # fmt: skip


def flash_attn_varlen_func(
    q: Tensor, k: Tensor, v: Tensor, cu_seqlens_q: Tensor, cu_seqlens_k: Tensor, max_seqlen_q: int, max_seqlen_k: int,
    dropout_p: float = 0.0, softmax_scale: float | None = None, causal: bool = False, window_size: Window = (-1, -1),
    softcap: float = 0.0, alibi_slopes: Tensor | None = None, deterministic: bool = False,
    return_attn_probs: bool = False, block_table: Tensor | None = None,
) -> Any:  # fmt: skip
    """Attention over sequences that lie one after another, [rows of all, heads, head dim]; `cu_seqlens_q` has one
    entry more than there are sequences."""
    return _Attention.apply(
        q, k, v, cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k, dropout_p, softmax_scale, causal,
        window_size, softcap, alibi_slopes, deterministic, return_attn_probs, block_table, torch.is_grad_enabled(),
    )  # type: ignore[no-untyped-call]  # fmt: skip


def flash_attn_varlen_kvpacked_func(
    q: Tensor, kv: Tensor, cu_seqlens_q: Tensor, cu_seqlens_k: Tensor, max_seqlen_q: int, max_seqlen_k: int,
    dropout_p: float = 0.0, softmax_scale: float | None = None, causal: bool = False, window_size: Window = (-1, -1),
    softcap: float = 0.0, alibi_slopes: Tensor | None = None, deterministic: bool = False,
    return_attn_probs: bool = False,
) -> Any:  # fmt: skip
    """As `flash_attn_varlen_func`, with keys and values in [rows of all, 2, heads, head dim]."""
    return _Attention.apply(
        q, kv, None, cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k, dropout_p, softmax_scale, causal,
        window_size, softcap, alibi_slopes, deterministic, return_attn_probs, None, torch.is_grad_enabled(),
    )  # type: ignore[no-untyped-call]  # fmt: skip


def flash_attn_varlen_qkvpacked_func(
    qkv: Tensor, cu_seqlens: Tensor, max_seqlen: int, dropout_p: float = 0.0, softmax_scale: float | None = None,
    causal: bool = False, window_size: Window = (-1, -1), softcap: float = 0.0, alibi_slopes: Tensor | None = None,
    deterministic: bool = False, return_attn_probs: bool = False,
) -> Any:  # fmt: skip
    """As `flash_attn_varlen_func`, with all three in [rows of all, 3, heads, head dim]."""
    return _Attention.apply(
        qkv, None, None, cu_seqlens, cu_seqlens, max_seqlen, max_seqlen, dropout_p, softmax_scale, causal,
        window_size, softcap, alibi_slopes, deterministic, return_attn_probs, None, torch.is_grad_enabled(),
    )  # type: ignore[no-untyped-call]  # fmt: skip


flash_attn_with_kvcache = fwd_kvcache


# Source, flash-attn 2.8.4: flash_attn/ops/triton/cross_entropy.py, flash_attn/losses/cross_entropy.py.
class _CrossEntropy(torch.autograd.Function):
    @staticmethod
    def forward(
        context: Any, logits: Tensor, labels: Tensor, lse: Tensor | None, smoothing: float, scale: float, inplace: bool
    ) -> tuple[Tensor, Tensor]:
        logits = dense(logits)
        rows = logits.size(0)
        with record_operator("flash_attn::cross_entropy_fwd"):
            losses = floats(logits, rows)
            known = lse is not None and scale == 1.0 and smoothing == 0.0
            kept = lse.contiguous() if known and lse is not None else floats(logits, rows)
            squares = floats(logits, rows)
        context.save_for_backward(logits, kept, labels)
        context.mark_non_differentiable(squares)
        context.inplace = inplace
        return losses, squares

    @staticmethod
    def backward(context: Any, _losses: Tensor, _squares: Tensor) -> tuple[Tensor | None, ...]:
        logits = context.saved_tensors[0]
        with record_operator("flash_attn::cross_entropy_bwd"):
            grad = logits if context.inplace else torch.empty_like(logits)
        return grad, None, None, None, None, None


def cross_entropy_loss(
    logits: Tensor, labels: Tensor, precomputed_lse: Tensor | None = None, label_smoothing: float = 0.0,
    logit_scale: float = 1.0, lse_square_scale: float = 0.0, ignore_index: int = -100, inplace_backward: bool = False,
    process_group: Any = None,
) -> Any:  # fmt: skip
    """Losses and squares of the log-sum-exp, each [rows] in float32. Raises TraceError for a divided vocabulary."""
    del lse_square_scale, ignore_index
    if process_group is not None and torch.distributed.get_world_size(process_group) > 1:
        refuse(
            "cross_entropy_loss of flash-attn", "a vocabulary over several ranks is not modelled", "process_group=None"
        )
    return _CrossEntropy.apply(logits, labels, precomputed_lse, label_smoothing, logit_scale, inplace_backward)  # type: ignore[no-untyped-call]


class CrossEntropyLoss(nn.Module):
    """The loss over classes as a module."""

    def __init__(
        self, ignore_index: int = -100, reduction: str = "mean", label_smoothing: float = 0.0, logit_scale: float = 1.0,
        lse_square_scale: float = 0.0, inplace_backward: bool = False, process_group: Any = None,
        return_z_loss: bool = False,
    ) -> None:  # fmt: skip
        super().__init__()
        if reduction not in ("mean", "none", "sum"):
            raise NotImplementedError("Only support reduction = 'mean' or 'none' or 'sum'")
        self.ignore_index, self.reduction, self.return_z_loss = ignore_index, reduction, return_z_loss
        self.settings = {
            "label_smoothing": label_smoothing, "logit_scale": logit_scale, "lse_square_scale": lse_square_scale,
            "inplace_backward": inplace_backward, "process_group": process_group,
        }  # fmt: skip

    def forward(self, input: Tensor, target: Tensor, precomputed_lse: Tensor | None = None) -> Any:
        loss, squares = cross_entropy_loss(input, target, precomputed_lse, **self.settings)
        reduced = self._reduce(loss, target)
        return (reduced, self._reduce(squares, target)) if self.return_z_loss else reduced

    def _reduce(self, values: Tensor, labels: Tensor) -> Tensor:
        if self.reduction == "mean":
            return values.sum() / (labels != self.ignore_index).sum()
        return values.sum() if self.reduction == "sum" else values


# Source, flash-attn 2.8.4: flash_attn/bert_padding.py. How many tokens are no padding is a value: it is read, and
# answered as any other.
class _IndexFirstAxis(torch.autograd.Function):
    """Rows by gather, whose index is repeated for every column without memory."""

    @staticmethod
    def forward(context: Any, given: Tensor, indices: Tensor) -> Tensor:
        context.save_for_backward(indices)
        context.rows = given.size(0)
        flat = given.flatten(1)
        taken = torch.gather(flat, 0, indices.unsqueeze(1).expand(-1, flat.size(1)))
        return taken.reshape(-1, *given.shape[1:])

    @staticmethod
    def backward(context: Any, grad: Tensor) -> tuple[Tensor, None]:
        (indices,) = context.saved_tensors
        flat = grad.flatten(1)
        spread = torch.zeros(context.rows, flat.size(1), dtype=grad.dtype, device=grad.device)
        spread.scatter_(0, indices.unsqueeze(1).expand(-1, flat.size(1)), flat)
        return spread.reshape(context.rows, *grad.shape[1:]), None


class _IndexPutFirstAxis(torch.autograd.Function):
    @staticmethod
    def forward(context: Any, values: Tensor, indices: Tensor, rows: int) -> Tensor:
        context.save_for_backward(indices)
        spread = torch.zeros(rows, *values.shape[1:], dtype=values.dtype, device=values.device)
        spread[indices] = values
        return spread

    @staticmethod
    def backward(context: Any, grad: Tensor) -> tuple[Tensor, None, None]:
        (indices,) = context.saved_tensors
        return grad[indices], None, None


index_first_axis = _IndexFirstAxis.apply
index_put_first_axis = _IndexPutFirstAxis.apply


def unpad_input(
    hidden_states: Tensor, attention_mask: Tensor, unused_mask: Tensor | None = None
) -> tuple[Tensor, Tensor, Tensor, int, Tensor]:
    """Rows that the mask [batch, rows] keeps, their numbers, where sequences begin, the longest one, rows used."""
    kept = attention_mask if unused_mask is None else attention_mask + unused_mask
    lengths = kept.sum(dim=-1, dtype=torch.int32)
    used = attention_mask.sum(dim=-1, dtype=torch.int32)
    indices = torch.nonzero(kept.flatten(), as_tuple=False).flatten()
    longest = int(lengths.max().item())
    begins = pad(torch.cumsum(lengths, dim=0, dtype=torch.int32), (1, 0))
    rows = index_first_axis(hidden_states.flatten(0, 1), indices)  # type: ignore[no-untyped-call]
    return rows, indices, begins, longest, used


def pad_input(hidden_states: Tensor, indices: Tensor, batch: int, seqlen: int) -> Tensor:
    """The rows at their places in [batch, seqlen]; the others are zero."""
    spread: Tensor = index_put_first_axis(hidden_states, indices, batch * seqlen)  # type: ignore[no-untyped-call]
    return spread.view(batch, seqlen, *spread.shape[1:])


# Source, flash-attn 2.8.4: flash_attn/layers/rotary.py, flash_attn/ops/triton/rotary.py.
def apply_rotary(
    x: Tensor, cos: Tensor, sin: Tensor, seqlen_offsets: int | Tensor = 0, cu_seqlens: Tensor | None = None,
    max_seqlen: int | None = None, interleaved: bool = False, inplace: bool = False, conjugate: bool = False,
) -> Tensor:  # fmt: skip
    """A tensor like `x`, or `x` itself; what the embedding leaves as it is, is copied."""
    del seqlen_offsets, cu_seqlens, max_seqlen, interleaved, conjugate
    with record_operator("flash_attn::apply_rotary"):
        kept = cos.contiguous(), sin.contiguous()
        out = x if inplace else torch.empty_like(x)
    turned = 2 * cos.size(-1)
    if turned < x.size(-1) and not inplace:
        out[..., turned:].copy_(x[..., turned:])
    del kept
    return out


class _ApplyRotaryEmb(torch.autograd.Function):
    @staticmethod
    def forward(
        context: Any, x: Tensor, cos: Tensor, sin: Tensor, inplace: bool, offsets: Any, cu_seqlens: Tensor | None
    ) -> Tensor:
        kept = offsets if isinstance(offsets, Tensor) else None
        context.save_for_backward(cos, sin, cu_seqlens, kept)
        context.inplace = inplace
        return apply_rotary(x, cos, sin, inplace=inplace)

    @staticmethod
    def backward(context: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        cos, sin, *_ = context.saved_tensors
        return apply_rotary(grad, cos, sin, inplace=context.inplace), None, None, None, None, None


def apply_rotary_emb(
    x: Tensor, cos: Tensor, sin: Tensor, interleaved: bool = False, inplace: bool = False,
    seqlen_offsets: int | Tensor = 0, cu_seqlens: Tensor | None = None, max_seqlen: int | None = None,
) -> Any:  # fmt: skip
    """Rotates the first dims of `x` [batch, rows, heads, head dim] by `cos` and `sin` [rows, dims / 2]."""
    del interleaved, max_seqlen
    return _ApplyRotaryEmb.apply(x, cos, sin, inplace, seqlen_offsets, cu_seqlens)  # type: ignore[no-untyped-call]


apply_rotary_emb_func = apply_rotary_emb
