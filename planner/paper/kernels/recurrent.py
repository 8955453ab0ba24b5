"""Recurrent networks as cuDNN runs them: one buffer of weights, one reserve for the backward.

Source, torch 2.13: aten/src/ATen/native/cudnn/RNN.cpp. How large cuDNN's reserve is, nobody says: what its backward
cannot do without is counted, and the trace names it as unknown.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any

import torch
from torch import Tensor

from planner.paper import library
from planner.paper.kernels import workspaces
from planner.paper.kernels.table import cuda, scratch

_KEPT = {"RNN_RELU": 1, "RNN_TANH": 1, "LSTM": 5, "GRU": 4}
"""Values per hidden unit and step that a backward needs, by mode: the gates, and the cell's state."""


@cache
def _modes() -> dict[int, str]:
    """Names by how cuDNN numbers them."""
    return {library.load().paper_rnn_mode(name.encode()): name for name in _KEPT}


@cuda("_cudnn_rnn_flatten_weight")
def flatten_weight(weights: Sequence[Tensor], *_: Any) -> Tensor:
    """All weights move into one buffer; the parameters become views of it."""
    buffer = weights[0].new_empty(sum(w.numel() for w in weights))
    offset = 0
    for weight in weights:
        weight.set_(buffer.untyped_storage(), offset, weight.shape, weight.stride())
        offset += weight.numel()
    return buffer


@cuda("_cudnn_rnn")
def rnn(
    x: Tensor, weights: Sequence[Tensor], _stride: int, buffer: Tensor | None, hx: Tensor, cx: Tensor | None,
    mode: int, hidden: int, projection: int, layers: int, batch_first: bool, _dropout: float, train: bool,
    bidirectional: bool, batch_sizes: Sequence[int], _state: Tensor | None,
) -> tuple[Tensor | None, ...]:  # fmt: skip
    if batch_first and not batch_sizes:
        x = x.transpose(0, 1)
    kept = x.contiguous(), hx.contiguous(), cx.contiguous() if cx is not None else None
    directions = 2 if bidirectional else 1
    if buffer is None:
        buffer = weights[0].new_empty(sum(w.numel() for w in weights))
    out = x.new_empty(*x.shape[:-1], (projection or hidden) * directions)
    hy = torch.empty_like(kept[1])
    cy = torch.empty_like(kept[2]) if kept[2] is not None else x.new_empty(0)
    options = _options(mode, hidden, projection, layers, bidirectional, train, packed=bool(batch_sizes))
    workspace = workspaces.take("cudnn", "cuDNN recurrent network, forward", [x, hx], options)
    steps = x.numel() // x.size(-1)
    needed = steps * hidden * directions * layers * _KEPT[_modes()[mode]] * x.element_size()
    kept_bytes = workspaces.bytes_kept("cuDNN recurrent network, reserve", [x, hx], options, needed) if train else 0
    reserve = scratch(kept_bytes)
    del workspace
    if batch_first and not batch_sizes:
        out = out.transpose(0, 1)
    return out, hy, cy, reserve, buffer


def _options(
    mode: int, hidden: int, projection: int, layers: int, bidirectional: bool, train: bool, *, packed: bool
) -> str:
    return (
        f"mode={_modes()[mode]} hidden={hidden} projection={projection} layers={layers} bidirectional={bidirectional}"
        f" train={train} packed={packed}"
    )


@cuda("_cudnn_rnn_backward")
def rnn_backward(
    x: Tensor, weights: Sequence[Tensor], _stride: int, buffer: Tensor, hx: Tensor, cx: Tensor | None, out: Tensor,
    grad: Tensor | None, grad_hy: Tensor | None, grad_cy: Tensor | None, mode: int, hidden: int, projection: int,
    layers: int, batch_first: bool, _dropout: float, train: bool, bidirectional: bool, batch_sizes: Sequence[int],
    _state: Tensor | None, _reserve: Tensor, wanted: Sequence[bool],
) -> tuple[Any, ...]:  # fmt: skip
    grad = torch.empty_like(out) if grad is None else grad
    zeros = [torch.empty_like(t) for t, g in ((hx, grad_hy), (cx, grad_cy)) if t is not None and g is None]
    if batch_first and not batch_sizes:
        x, grad, out = (t.transpose(0, 1) for t in (x, grad, out))
    kept = x.contiguous(), grad.contiguous(), out.contiguous()
    of_x = torch.empty_like(kept[0])
    of_hx = torch.empty_like(hx)
    of_cx = torch.empty_like(cx) if cx is not None and _modes()[mode] == "LSTM" else None
    options = _options(mode, hidden, projection, layers, bidirectional, train, packed=bool(batch_sizes))
    workspace = workspaces.take("cudnn", "cuDNN recurrent network, backward", [x, hx], options)
    of_weights = []
    if wanted[3]:
        gradients, offset = torch.empty_like(buffer), 0
        for weight in weights:
            of_weights.append(gradients.narrow(0, offset, weight.numel()).view(weight.shape))
            offset += weight.numel()
    del zeros, kept, workspace
    if batch_first and not batch_sizes:
        of_x = of_x.transpose(0, 1)
    return of_x, of_hx, of_cx, of_weights


@cuda("_cudnn_init_dropout_state")
def dropout_state(_dropout: float, _train: bool, _seed: int, **_: Any) -> Tensor:
    workspaces.note_unknown_workspace("cuDNN dropout state")
    return scratch(0)
