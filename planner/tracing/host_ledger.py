"""Writes down what a traced step or a program holds on the host, as the events of planner.host_events."""

from __future__ import annotations

import weakref
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from planner.events import Category
from planner.host_events import HostAlloc, HostCategory, HostEvent, HostFree
from planner.paper.native_records import inner_tensors

SMALLEST_BYTES = 4096
"""A page. What is smaller (an optimizer's counters of steps) lies in what the C library has taken anyway."""

_CATEGORIES = {
    Category.PARAMETER: HostCategory.PARAMETER,
    Category.GRADIENT: HostCategory.GRADIENT,
    Category.BUCKET: HostCategory.GRADIENT,
    Category.OPTIMIZER_STATE: HostCategory.OPTIMIZER_STATE,
}


def host_category(category: Category) -> HostCategory:
    """What a tensor of a device's category is on the host."""
    return _CATEGORIES.get(category, HostCategory.OTHER)


class HostWriter(ABC):
    """Blocks of one rank, in the order in which they are taken and freed; their numbers are odd."""

    def __init__(self) -> None:
        self._next = -1

    @abstractmethod
    def write(self, event: HostEvent) -> None:
        """This happened after all that was written before."""

    def begin(self, size: int, category: HostCategory, *, pinned: bool = False, count: int = 1) -> int:
        """The number of a block that is held from here on."""
        self._next += 2
        self.write(HostAlloc(self._next, size, category, pinned, count))
        return self._next

    def end(self, block: int) -> None:
        self.write(HostFree(block))

    def hold_while(
        self, owner: object, size: int, category: HostCategory, *, pinned: bool = False, count: int = 1
    ) -> None:
        """The process holds this as long as `owner` lives, but not beyond the end of the process."""
        block = self.begin(size, category, pinned=pinned, count=count)
        weakref.finalize(owner, self.end, block).atexit = False

    @contextmanager
    def hold(self, category: HostCategory, *sizes: int) -> Iterator[None]:
        """Inside, the process holds blocks of these bytes besides all else."""
        blocks = [self.begin(size, category) for size in sizes]
        try:
            yield
        finally:
            for block in reversed(blocks):
                self.end(block)


class NewStorages(TorchDispatchMode):
    """Inside, `notes` hears of every storage of the host that an operator makes, or puts behind a tensor, once as long
    as it lives. Of an operator on a DTensor the result is seen, and not what runs on its parts."""

    def __init__(self, notes: Callable[[torch.UntypedStorage], None]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._notes = notes
        self._known: weakref.WeakSet[Any] = weakref.WeakSet()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        given = {id(storage) for storage in self._storages((args, kwargs))}
        result = func(*args, **(kwargs or {}))
        for storage in self._storages(result):
            if id(storage) not in given and storage not in self._known:
                self._known.add(storage)
                self._notes(storage)
        return result

    def _storages(self, values: Any) -> list[torch.UntypedStorage]:
        tensors = (part for value in tree_leaves(values) if isinstance(value, Tensor) for part in inner_tensors(value))
        return [
            tensor.untyped_storage()
            for tensor in tensors
            if type(tensor) in (Tensor, torch.nn.Parameter) and tensor.device.type == "cpu"
        ]
