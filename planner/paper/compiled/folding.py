"""Folds constants of a compiled graph on the host: on a paper GPU they have no values to fold."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_map


class _OnHost(TorchDispatchMode):
    """Inside, what would be made on a GPU is made on the host."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return func(*tree_map(_host_for_gpu, args), **tree_map(_host_for_gpu, kwargs or {}))


def _host_for_gpu(argument: Any) -> Any:
    is_gpu = isinstance(argument, torch.device) and argument.type == "cuda"
    return torch.device("cpu") if is_gpu else argument


def on_host(real: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
    """`UniformValueConstantFolder._deduce_value` (torch 2.13, torch/_inductor/fx_passes/joint_graph.py) on the host."""

    def deduce(self: Any, node: Any) -> Any:
        with _OnHost():  # type: ignore[no-untyped-call]
            return real(self, node)

    return deduce
