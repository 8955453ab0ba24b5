"""Clears DTensor's caches of a world that is gone.

DTensor keeps which placements an operator leads to, with the mesh and with the local shapes, and finds them again by a
mesh that is equal (torch 2.13, distributed/tensor/_sharding_prop.py, _redistribute.py, autograd/python_variable.cpp).
The next world of the process may have an equal mesh with groups of other names, or be another rank of it.
"""

from __future__ import annotations

import sys
from typing import Any

import torch


def forget() -> None:
    """DTensor starts anew, in this thread and in the one in which autograd runs for a GPU."""
    tensors: Any = sys.modules.get("torch.distributed.tensor")
    if tensors is None:
        return
    from torch.distributed.tensor import _redistribute, _sharding_prop

    propagator = tensors.DTensor._op_dispatcher.sharding_propagator
    # It keeps one cache to each thread: a new one forgets them all.
    propagator.propagate_op_sharding = _sharding_prop.LocalLRUCache(propagator.propagate_op_sharding_non_cached)
    clear = getattr(getattr(_redistribute, "_gen_transform_infos", None), "cache_clear", None)
    if clear is not None:
        clear()
    getattr(_redistribute, "_planner_cache", {}).clear()
    clear_in_c = getattr(torch._C, "_clear_DTensor_sharding_propagator_cache", None)  # since torch 2.10
    if clear_in_c is None:
        return
    clear_in_c()
    if torch.cuda.is_available():
        _BackwardCall.apply(torch.zeros((), device="cuda", requires_grad=True)).backward()  # type: ignore[no-untyped-call]


class _BackwardCall(torch.autograd.Function):
    """Its backward runs in the thread of the device."""

    @staticmethod
    def forward(_context: Any, given: torch.Tensor) -> torch.Tensor:
        return given.clone()

    @staticmethod
    def backward(_context: Any, gradient: torch.Tensor) -> torch.Tensor:
        torch._C._clear_DTensor_sharding_propagator_cache()
        return gradient
