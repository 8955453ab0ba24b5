"""Leaves out work of the host on large tensors that nobody has written: what would come of it is unwritten too."""

from __future__ import annotations

import functools
import weakref
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode, is_traceable_wrapper_subclass
from torch.utils._pytree import tree_leaves, tree_map_only

from planner.paper.native_records import local_part
from planner.tracing.program.storages import LARGE_BYTES, UnwrittenMemory

_PINNING = (torch.ops.aten._pin_memory.default, torch.ops.aten.is_pinned.default)
"""Of memory of the host alone; what is copied then is left out as any copy is."""


class UnwrittenHost(TorchDispatchMode):
    """Inside, an operator whose large tensors are all of the host and unwritten is not computed: what it would write to
    stays as it is, what it would make is memory of its size. Copies from the paper GPU are such tensors, and what an
    optimizer keeps of them."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._memory = UnwrittenMemory()
        self._known: weakref.WeakSet[Any] = weakref.WeakSet()
        """Storages that were found unwritten, and are written to by nothing that runs inside."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        named = kwargs or {}
        tensors = [value for value in tree_leaves((args, named)) if isinstance(value, Tensor)]
        if any(is_traceable_wrapper_subclass(tensor) for tensor in tensors):
            return NotImplemented  # its parts come here by themselves
        large = [tensor for tensor in tensors if is_large_on_host(tensor)]
        device = named.get("device")
        stays = not any(tensor.is_cuda for tensor in tensors) and torch.device(device or "cpu").type == "cpu"
        if not large or not stays or func in _PINNING or not all(map(self._is_unwritten, large)):
            return func(*args, **named)
        written = [each.alias_info is not None and each.alias_info.is_write for each in func._schema.arguments]
        if any(written):
            return args[written.index(True)] if func._schema.returns else None
        if any(each.alias_info is not None for each in func._schema.returns):  # a view
            return func(*args, **named)
        if device is not None:
            named = {**named, "device": "meta"}
        made = func(*tree_map_only(Tensor, _without_memory, args), **tree_map_only(Tensor, _without_memory, named))
        return tree_map_only(Tensor, _make, made)

    def _is_unwritten(self, tensor: Tensor) -> bool:
        storage = tensor.untyped_storage()
        if storage not in self._known:
            if not self._memory.holds(storage):
                return False
            self._known.add(storage)
        return True


def is_large_on_host(tensor: Tensor) -> bool:
    """Whether its part on this rank is."""
    part = local_part(tensor)
    return part.device.type == "cpu" and part.layout is torch.strided and part.nbytes >= LARGE_BYTES


def beside(tensors: Iterable[Tensor]) -> AbstractContextManager[Any]:
    """What stands around work with these tensors: nothing where none of them is large and on the host."""
    return UnwrittenHost() if any(map(is_large_on_host, tensors)) else nullcontext()


def clipping(real: Callable[..., Any]) -> Callable[..., Any]:
    """A function that is given gradients first, or parameters, or their module."""

    @functools.wraps(real)
    def clip(owner: Any, *arguments: Any, **named: Any) -> Any:
        if torch.compiler.is_compiling():
            return real(owner, *arguments, **named)
        if isinstance(owner, nn.Module):
            tensors = list(owner.parameters())
        else:
            tensors = owner = [owner] if isinstance(owner, Tensor) else list(owner)
        with beside(tensors):
            return real(owner, *arguments, **named)

    return clip


def _without_memory(tensor: Tensor) -> Tensor:
    return tensor.to("meta")


def _make(like: Tensor) -> Tensor:
    made = torch.empty_strided(like.shape, like.stride(), dtype=like.dtype, device="cpu")
    return made if made.nbytes >= LARGE_BYTES else made.zero_()
