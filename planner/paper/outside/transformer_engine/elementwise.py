"""Activations, rotary embeddings, softmaxes, dropout: results of the shape that is asked for, and nothing beside.

Source, TransformerEngine 2.11: pytorch/csrc/extensions/{activation,bias,apply_rope,softmax,dropout,transpose}.cpp.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from planner.paper.outside.operators import refuse, told
from planner.paper.outside.transformer_engine.refusals import ALLOWED, refuse_quantized

Tensor = torch.Tensor
Maybe = Tensor | None

PLAIN = ("gelu", "qgelu", "relu", "srelu", "silu")
GATED = ("geglu", "qgeglu", "reglu", "sreglu", "swiglu", "clamped_swiglu")
"""Activations that halve the last dim."""


def activation(name: str, parts: int) -> Callable[..., Tensor]:
    """The forward of an activation, whose last dim is that of its input divided by `parts`."""

    @told(f"transformer_engine::{name}")
    def forward(input: Tensor, quantizer: Any, **_settings: float) -> Tensor:
        refuse_quantized(input, quantizer)
        given = input.contiguous()
        return torch.empty((*given.shape[:-1], given.size(-1) // parts), dtype=given.dtype, device="cuda")

    return forward


def gradient(name: str) -> Callable[..., Tensor]:
    """The backward of an activation: the gradient of its input."""

    @told(f"transformer_engine::{name}")
    def backward(grad: Tensor, fwd_input: Tensor, quantizer: Any, **_settings: float) -> Tensor:
        refuse_quantized(grad, fwd_input, quantizer)
        grad, given = grad.contiguous(), fwd_input.contiguous()
        return torch.empty(given.shape, dtype=given.dtype, device="cuda")

    return backward


def gradient_with_bias(name: str) -> Callable[..., list[Tensor]]:
    """The backward of an activation after a bias: gradients of the bias and of the activation's input."""
    of_input = gradient(name.removeprefix("dbias_"))

    @told(f"transformer_engine::{name}")
    def backward(grad: Tensor, fwd_input: Tensor, quantizer: Any) -> list[Tensor]:
        refuse_quantized(grad, fwd_input, quantizer)
        made = of_input(grad, fwd_input, None)
        return [made.sum(tuple(range(made.dim() - 1))), made]

    return backward


@told("transformer_engine::bgrad_quantize")
def bgrad_quantize(input: Tensor, quantizer: Any) -> list[Tensor]:
    """The gradient of a bias, and its input as it is where nothing is quantized."""
    refuse_quantized(input, quantizer)
    return [input.sum(tuple(range(input.dim() - 1))), input]


def _rotated(given: Tensor, frequencies: Tensor, places: Maybe, lengths: Maybe) -> Tensor:
    if frequencies.dim() != 4 or frequencies.dtype != torch.float32:
        raise RuntimeError("Dtype of the freqs tensor must be float, of four dims")
    if places is not None or lengths is not None:
        refuse("fused_rope of TransformerEngine", "places of its own and packed sequences are not modelled", ALLOWED)
    return torch.empty(given.shape, dtype=given.dtype, device="cuda")


@told("transformer_engine::fused_rope_forward")
def fused_rope_forward(
    given: Tensor, frequencies: Tensor, places: Maybe, _form: Any, _interleaved: bool, lengths: Maybe, *_ranks: int
) -> Tensor:
    """The rotated tensor, dense."""
    return _rotated(given, frequencies, places, lengths)


@told("transformer_engine::fused_rope_backward")
def fused_rope_backward(
    grad: Tensor, frequencies: Tensor, places: Maybe, _form: Any, _interleaved: bool, lengths: Maybe, *_ranks: int
) -> Tensor:
    """The gradient of its input, dense."""
    return _rotated(grad, frequencies, places, lengths)


@told("transformer_engine::fused_qkv_rope_forward")
def fused_qkv_rope_forward(
    given: Tensor, _of_query: Tensor, _of_key: Tensor, _places: Maybe, splits: Sequence[int], *_settings: Any
) -> tuple[Tensor, Tensor, Tensor]:
    """Query and key rotated, and value, of one tensor [.., .., groups, dims of the three]."""
    queries, key, value = splits

    def made(heads: int, dims: int) -> Tensor:
        return torch.empty((*given.shape[:2], heads, dims), dtype=given.dtype, device="cuda")

    heads = given.size(2)
    return made(heads * queries // key, key), made(heads, key), made(heads, value)


@told("transformer_engine::fused_qkv_rope_backward")
def fused_qkv_rope_backward(
    of_query: Tensor, of_key: Tensor, of_value: Tensor, _frequencies: Tensor, _others: Tensor, splits: Sequence[int],
    *_settings: Any,
) -> Tensor:  # fmt: skip
    """The gradient of the one tensor."""
    dims = sum(splits)
    heads = (of_query.size(2) + of_key.size(2) + of_value.size(2)) * of_query.size(3) // dims
    return torch.empty((*of_query.shape[:2], heads, dims), dtype=of_query.dtype, device="cuda")


@told("transformer_engine::softmax_fwd")
def softmax_forward(given: Tensor, *_rest: Any) -> Tensor:
    """Probabilities of the shape of the scores."""
    return torch.empty(given.shape, dtype=given.dtype, device="cuda")


@told("transformer_engine::softmax_bwd")
def softmax_backward(grad: Tensor, kept: Tensor, *_rest: Any) -> Tensor:
    """In place of the gradient, which is made dense before."""
    grad, kept = grad.contiguous(), kept.contiguous()
    return grad


@told("transformer_engine::dropout_fwd")
def dropout_fwd(input: Tensor, dropout_probability: float, out: Maybe = None) -> list[Tensor]:  # noqa: ARG001
    """Result, and a mask of one bit an element."""
    if out is None:
        out = torch.empty(input.shape, dtype=input.dtype, device="cuda")
    mask = torch.empty(input.numel() // 8, dtype=torch.uint8, device="cuda")
    seed = torch.empty(2, dtype=torch.int64, device="cuda")
    del seed
    return [out, mask]


@told("transformer_engine::dropout_bwd")
def dropout_bwd(
    grad_output: Tensor, mask: Tensor, dropout_probability: float, grad_input: Maybe = None  # noqa: ARG001
) -> Tensor:  # fmt: skip
    """The gradient of its input."""
    return torch.empty_like(grad_output) if grad_input is None else grad_input


@told("transformer_engine::swap_first_dims")
def swap_first_dims(tensor: Tensor, *, out: Maybe = None) -> Tensor:
    """A copy with the first two dims exchanged."""
    given = tensor.contiguous()
    if out is not None:
        return out
    return torch.empty((given.size(1), given.size(0), *given.shape[2:]), dtype=given.dtype, device="cuda")
