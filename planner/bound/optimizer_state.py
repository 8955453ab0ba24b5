"""What optimizers keep of each element of a parameter, from their first step on."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from planner.job.schema import Optimizer

_TENSORS = {
    "Adadelta": 2, "Adagrad": 1, "Adam": 2, "AdamW": 2, "Adamax": 2, "ASGD": 1, "NAdam": 2, "RAdam": 2, "RMSprop": 1,
    "Rprop": 2, "SGD": 0,
}  # fmt: skip
"""Tensors of the parameter's shape and dtype (torch 2.13, torch/optim/*.py, `_init_group`). Others keep less than the
parameter (Adafactor), or do not take every parameter (Muon, SparseAdam): nothing is known of them for sure."""
_LOW_BIT = {
    "bitsandbytes.Adam8bit": 2, "bitsandbytes.AdamW8bit": 2, "torchao.Adam8bit": 2, "torchao.AdamW8bit": 2,
    "torchao.AdamFp8": 2, "torchao.AdamWFp8": 2, "torchao.Adam4bit": 1, "torchao.AdamW4bit": 1,
}  # fmt: skip
"""Bytes of an element's codes, without scales and tables (planner/training/low_bit.py); a paged optimizer's lie in
memory that no allocator counts."""


def state_bytes(optimizer: Optimizer, element_bytes: int) -> int:
    """Bytes that are kept of an element, at least, if the parameter's take `element_bytes`."""
    if optimizer.name in _LOW_BIT:
        return _LOW_BIT[optimizer.name]
    tensors = _TENSORS.get(optimizer.name)
    return 0 if tensors is None else (tensors + _more(optimizer.name, optimizer.arguments)) * element_bytes


def _more(name: str, arguments: Mapping[str, Any]) -> int:
    """Tensors that arguments ask for; a value that is no number or flag asks for nothing here."""
    if name in ("Adam", "AdamW"):
        return arguments.get("amsgrad") is True
    if name == "SGD":
        return _is_positive(arguments.get("momentum"))
    if name == "RMSprop":
        return _is_positive(arguments.get("momentum")) + (arguments.get("centered") is True)
    return 0


def _is_positive(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and value > 0
