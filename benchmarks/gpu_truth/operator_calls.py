"""Calls for the matrix of operators that no single function of torch is: each takes its tensors, then its arguments."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn


def _concat_two(first: Tensor, second: Tensor) -> Tensor:
    return torch.cat((first, second))


def _recurrent(kind: str) -> Callable[..., Tensor]:
    def run(given: Tensor, *, width: int, layers: int = 1, bidirectional: bool = False) -> Tensor:
        """Weights are made within the call; time comes first, as cuDNN has it."""
        module = getattr(nn, kind)(
            given.size(-1), width, num_layers=layers, bidirectional=bidirectional, device=given.device,
            dtype=given.dtype,
        )  # fmt: skip
        result: Tensor = module(given)[0]
        return result

    return run


def _grouped_product(rows: Tensor, weights: Tensor) -> Tensor:
    """As a mixture of experts multiplies: equal groups of rows, one matrix each."""
    groups = weights.size(0)
    ends = torch.arange(1, groups + 1, dtype=torch.int32, device=rows.device) * (rows.size(0) // groups)
    result: Tensor = torch._grouped_mm(rows, weights, ends.to(torch.int32))
    return result


CALLS: dict[str, Callable[..., Any]] = {
    "concat_two": _concat_two,
    "lstm": _recurrent("LSTM"),
    "gru": _recurrent("GRU"),
    "grouped_product": _grouped_product,
}
