"""What an optimizer's step takes for parameters that rest on the host: run on tensors without memory.

The optimizer's own code runs on meta tensors of the same shapes; what it keeps is its state, what comes and goes are
its temporaries.
"""

from __future__ import annotations

import copy
import weakref
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.optim.optimizer import Optimizer
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves


@dataclass(frozen=True, slots=True)
class Stepped:
    """Bytes of each tensor that stays, and of what is there besides at the highest point of the first step."""

    state: tuple[int, ...]
    temporary_bytes: int


def step_on_meta(optimizer: Optimizer, parameters: Sequence[Tensor]) -> Stepped:
    """What the optimizer's first step takes for these of its parameters, each of which has a gradient.

    Raises whatever an optimizer raises that does not run on meta tensors.
    """
    mine = {id(each): _on_meta(each) for each in parameters}
    shadow = copy.copy(optimizer)
    shadow.state = defaultdict(dict)
    shadow.param_groups = [
        {**_without_kernels(group), "params": [mine[id(each)] for each in group["params"] if id(each) in mine]}
        for group in optimizer.param_groups
    ]
    fused = any(group.get("fused") for group in optimizer.param_groups)
    with torch.no_grad(), _Counting() as counting:
        shadow.step()
    state = tuple(
        value.nbytes
        for kept in shadow.state.values()
        for value in kept.values()
        if isinstance(value, Tensor) and value.device.type == "meta"
    )
    # A fused kernel updates in place.
    return Stepped(state, 0 if fused else max(0, counting.most_bytes - sum(state)))


def _on_meta(parameter: Tensor) -> Tensor:
    local = getattr(parameter, "_local_tensor", parameter)
    found = torch.nn.Parameter(torch.empty_like(local, device="meta"), requires_grad=local.is_floating_point())
    found.grad = torch.empty_like(found)
    return found


def _without_kernels(group: dict[str, Any]) -> dict[str, Any]:
    """Kernels of devices are refused on meta, which keeps the same state without them."""
    return {**group, **{key: False for key in ("fused", "capturable") if group.get(key)}}


class _Counting(TorchDispatchMode):
    """Counts the bytes of storages on meta that are alive."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.most_bytes = 0
        self._bytes = 0
        self._alive: dict[int, weakref.ref[Any]] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        known = {id(each.untyped_storage()) for each in tree_leaves((args, kwargs)) if isinstance(each, Tensor)}
        found = func(*args, **(kwargs or {}))
        for each in tree_leaves(found):
            if isinstance(each, Tensor) and each.device.type == "meta":
                self._count(each.untyped_storage(), known)
        return found

    def _count(self, storage: Any, known: set[int]) -> None:
        key, size = id(storage), storage.nbytes()
        if key in self._alive or key in known:
            return

        def freed(_: object) -> None:
            del self._alive[key]
            self._bytes -= size

        self._alive[key] = weakref.ref(storage, freed)
        self._bytes += size
        self.most_bytes = max(self.most_bytes, self._bytes)
