"""What of the extension is refused: quantized tensors, and functions and classes that are not modelled."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from planner.paper.outside.operators import refuse

ALLOWED = "training in bfloat16, float16 or float32 of dense layers, with --bf16 or --fp16 and no --fp8-format"


def refuse_quantized(*values: Any) -> None:
    """Raises TraceError if one of the values is a quantizer or a quantized tensor: neither is None or torch's own."""
    for value in values:
        if value is not None and type(value) not in (torch.Tensor, torch.nn.Parameter):
            refuse("TransformerEngine", f"{type(value).__name__} (fp8, nvfp4, mxfp8) is not modelled", ALLOWED)


def refused_function(name: str) -> Callable[..., Any]:
    """A function of this name that raises TraceError when it is called."""

    def call(*_arguments: Any, **_named: Any) -> Any:
        refuse(f"{name} of TransformerEngine", "its allocations are not modelled", ALLOWED)

    call.__name__ = name
    return call


def refused_class(name: str) -> type:
    """A class of this name, for annotations and `isinstance`, of which nobody makes an object: TraceError."""

    def make(_self: Any, *_arguments: Any, **_named: Any) -> None:
        refuse(f"{name} of TransformerEngine", "communication that overlaps with products is not modelled", ALLOWED)

    return type(name, (), {"__init__": make})
