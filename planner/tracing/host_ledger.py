"""Writes down what a traced step holds on the host, as the events of planner.host_events."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from planner.events import Category, Mark, Phase
from planner.host_events import BatchTaken, HostAlloc, HostBlock, HostCategory, HostEvent, HostFree
from planner.paper.native_records import local_part

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


def when_gone(owner: Any, call: Callable[..., object], *arguments: object) -> None:
    """Call it once `owner` is freed, but not at the end of the process."""
    weakref.finalize(owner, call, *arguments).atexit = False


class HostLedger:
    """Blocks of one rank, in the order in which they are taken and freed.

    Tensors are known by their storages, of which each is one block until it is freed. `pins_gradients`: gradients are
    in pinned memory, whatever they were traced in.
    """

    def __init__(self, *, pins_gradients: bool = False) -> None:
        self._pins_gradients = pins_gradients
        self.events: list[HostEvent] = []
        self._next = 0
        self._held: dict[int, HostAlloc] = {}
        """By the ids of storages that are alive."""
        self._pinned: weakref.WeakSet[Any] = weakref.WeakSet()

    def mark(self, phase: Phase, iteration: int) -> None:
        self.events.append(Mark(phase, iteration))

    def begin(self, held: HostBlock) -> int:
        """The number of a block that is held from here on."""
        self._next += 1
        self.events.append(HostAlloc(self._next, held))
        return self._next

    def end(self, block: int) -> None:
        self.events.append(HostFree(block))

    def hold_while(self, owner: object, held: HostBlock) -> None:
        """The process holds this as long as `owner` lives."""
        when_gone(owner, self.end, self.begin(held))

    @contextmanager
    def hold(self, *blocks: HostBlock) -> Iterator[None]:
        """Inside, the process holds these besides all else."""
        numbers = [self.begin(block) for block in blocks]
        try:
            yield
        finally:
            for number in reversed(numbers):
                self.end(number)

    def assign(self, tensor: Tensor, category: Category, name: str = "") -> None:
        """The storage of this tensor, if it lies on the host, is held for this from here until it is freed."""
        storage = _host_storage(tensor)
        if storage is None:
            return
        purpose, known = host_category(category), self._held.get(id(storage))
        if known is None:
            pinned = storage in self._pinned or local_part(tensor).is_pinned()
            pinned = pinned or (self._pins_gradients and purpose is HostCategory.GRADIENT)
            self._take(storage, HostBlock(bytes=storage.nbytes(), category=purpose, pinned=pinned, name=name))
            when_gone(storage, self._give_up, id(storage))
        elif known.held.category is not purpose:
            self._change(storage, category=purpose, name=name)

    def pin(self, tensor: Tensor) -> None:
        """The storage of this tensor is in pinned memory from here on: first taken there, then freed here."""
        storage = _host_storage(tensor)
        if storage is None or storage in self._pinned:
            return
        self._pinned.add(storage)
        if id(storage) in self._held:
            self._change(storage, pinned=True)

    def take_batch(self, tensors: Iterable[Tensor]) -> None:
        self.events.append(BatchTaken(tuple(tensor.nbytes for tensor in tensors)))

    def _take(self, storage: torch.UntypedStorage, held: HostBlock) -> None:
        self._held[id(storage)] = HostAlloc(self.begin(held), held)

    def _give_up(self, key: int) -> None:
        self.end(self._held.pop(key).block)

    def _change(self, storage: torch.UntypedStorage, **changes: Any) -> None:
        known = self._held[id(storage)]
        self._take(storage, replace(known.held, **changes))
        self.end(known.block)


def _host_storage(tensor: Tensor) -> torch.UntypedStorage | None:
    """Whose Python object lives as long as the memory: torch 2.1 and later keep it (c10/core/impl/PyObjectSlot.h)."""
    local = local_part(tensor)
    if local.device.type != "cpu":
        return None
    storage = local.untyped_storage()
    return storage if storage.nbytes() >= SMALLEST_BYTES else None


class NewStorages(TorchDispatchMode):
    """Inside, `notes` hears of every storage of a device (`cpu`, `meta`) that an operator makes, or puts behind a
    tensor, once as long as it lives. Of an operator on a DTensor the result is seen, and not what runs on its parts."""

    def __init__(self, device: str, notes: Callable[[torch.UntypedStorage], None]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._device, self._notes = device, notes
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
        tensors = (local_part(value) for value in tree_leaves(values) if isinstance(value, Tensor))
        mine = (
            tensor
            for tensor in tensors
            if type(tensor) in (Tensor, torch.nn.Parameter) and tensor.device.type == self._device
        )
        return [tensor.untyped_storage() for tensor in mine]
