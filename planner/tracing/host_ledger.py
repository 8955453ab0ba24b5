"""Writes down what a traced step holds on the host, as the events of planner.host_events."""

from __future__ import annotations

import weakref
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from planner.events import Category, Mark, Phase
from planner.host_events import BatchTaken, HostAlloc, HostBlock, HostCategory, HostEvent, HostFree

SMALLEST_BYTES = 4096
"""A page. What is smaller (an optimizer's counters of steps) lies in what the C library has taken anyway."""

_CATEGORIES = {
    Category.PARAMETER: HostCategory.PARAMETER,
    Category.GRADIENT: HostCategory.GRADIENT,
    Category.BUCKET: HostCategory.GRADIENT,
    Category.OPTIMIZER_STATE: HostCategory.OPTIMIZER_STATE,
}


@dataclass
class _Kept:
    """A tensor's storage on the host, as long as it lives."""

    block: int
    held: HostBlock
    alive: weakref.ref[Any]


def host_category(category: Category) -> HostCategory:
    """What a tensor of a device's category is on the host."""
    return _CATEGORIES.get(category, HostCategory.OTHER)


class HostLedger:
    """Blocks of one rank, in the order in which they are taken and given up.

    Tensors are known by their storages, of which each is one block until it is freed. `pins_gradients`: gradients are
    in pinned memory, whatever they were traced in.
    """

    def __init__(self, *, pins_gradients: bool = False) -> None:
        self._pins_gradients = pins_gradients
        self.events: list[HostEvent] = []
        self._next = 0
        self._kept: dict[int, _Kept] = {}
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

    @contextmanager
    def hold(self, *blocks: HostBlock) -> Iterator[None]:
        """Inside, the process holds these besides all else."""
        begun = [self.begin(each) for each in blocks]
        try:
            yield
        finally:
            for each in reversed(begun):
                self.end(each)

    def assign(self, tensor: Tensor, category: Category, name: str = "") -> None:
        """The storage of this tensor, if it lies on the host, is held for this from here until it is freed."""
        storage = _host_storage(tensor)
        if storage is None:
            return
        told, known = host_category(category), self._kept.get(id(storage))
        if known is None:
            pinned = storage in self._pinned or _local(tensor).is_pinned()
            pinned = pinned or (self._pins_gradients and told is HostCategory.GRADIENT)
            self._begin(storage, HostBlock(bytes=storage.nbytes(), category=told, pinned=pinned, name=name))
        elif known.held.category is not told:
            self._change(storage, replace(known.held, category=told, name=name))

    def pin(self, tensor: Tensor) -> None:
        """The storage of this tensor is in pinned memory from here on: first taken there, then given up here."""
        storage = _host_storage(tensor)
        if storage is None or storage in self._pinned:
            return
        self._pinned.add(storage)
        if (known := self._kept.get(id(storage))) is not None:
            self._change(storage, replace(known.held, pinned=True))

    def take_batch(self, tensors: Iterable[Tensor]) -> None:
        self.events.append(BatchTaken(tuple(each.nbytes for each in tensors)))

    def _begin(self, storage: torch.UntypedStorage, held: HostBlock) -> None:
        key = id(storage)

        def freed(_: object) -> None:
            self.end(self._kept.pop(key).block)

        self._kept[key] = _Kept(self.begin(held), held, weakref.ref(storage, freed))

    def _change(self, storage: torch.UntypedStorage, held: HostBlock) -> None:
        known = self._kept[id(storage)]
        after = self.begin(held)
        self.end(known.block)
        known.block, known.held = after, held


def _host_storage(tensor: Tensor) -> torch.UntypedStorage | None:
    """Whose Python object lives as long as the memory: torch 2.1 and later keep it (c10/core/impl/PyObjectSlot.h)."""
    local = _local(tensor)
    if local.device.type != "cpu":
        return None
    storage = local.untyped_storage()
    return storage if storage.nbytes() >= SMALLEST_BYTES else None


def _local(tensor: Tensor) -> Tensor:
    found: Tensor = getattr(tensor, "_local_tensor", tensor)
    return found
