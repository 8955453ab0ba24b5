"""Writes down the tensors that a step makes on the host, by what torch's operators return."""

from __future__ import annotations

import weakref
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor
from torch.nn import Parameter
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from planner.host_events import HostBlock
from planner.tracing.host_ledger import SMALLEST_BYTES, HostLedger


class HostTensors(TorchDispatchMode):
    """Inside, every storage of the host that an operator makes, or puts behind a tensor, is held while it lives.

    Each becomes a block like `held`, of its own size.
    """

    def __init__(self, ledger: HostLedger, held: HostBlock) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._ledger, self._held = ledger, held
        self._known: weakref.WeakSet[Any] = weakref.WeakSet()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        given = {id(each) for each in _storages((args, kwargs))}
        found = func(*args, **(kwargs or {}))
        for each in _storages(found):
            if id(each) not in given and each not in self._known and each.nbytes() >= SMALLEST_BYTES:
                self._hold(each)
        return found

    def _hold(self, storage: torch.UntypedStorage) -> None:
        block = self._ledger.begin(replace(self._held, bytes=storage.nbytes()))
        self._known.add(storage)
        weakref.finalize(storage, self._ledger.end, block).atexit = False


def _storages(values: Any) -> list[torch.UntypedStorage]:
    """Those of the host. Of an operator on a DTensor the result is seen, and not what runs on its parts."""
    parts = (getattr(each, "_local_tensor", each) for each in tree_leaves(values))
    found = (each for each in parts if type(each) in (Tensor, Parameter) and each.device.type == "cpu")
    return [each.untyped_storage() for each in found]
