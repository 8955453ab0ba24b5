"""flash-attn 2's rotary embedding in Triton (`flash_attn.layers.rotary.apply_rotary_emb`).

Source, flash-attn 2.8.4: flash_attn/layers/rotary.py, flash_attn/ops/triton/rotary.py.
"""

from __future__ import annotations

from typing import Any

import torch

from planner.paper.outside.operators import told_as

Tensor = torch.Tensor


def apply_rotary(
    x: Tensor, cos: Tensor, sin: Tensor, seqlen_offsets: int | Tensor = 0, cu_seqlens: Tensor | None = None,
    max_seqlen: int | None = None, interleaved: bool = False, inplace: bool = False, conjugate: bool = False,
) -> Tensor:  # fmt: skip
    """A tensor like `x`, or `x` itself; what the embedding leaves as it is, is copied."""
    del seqlen_offsets, cu_seqlens, max_seqlen, interleaved, conjugate
    with told_as("flash_attn::apply_rotary"):
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
