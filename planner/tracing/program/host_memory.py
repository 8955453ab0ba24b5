"""What a program holds on the host, as events: torch's blocks, checkpoints that it reads, batches read ahead."""

from __future__ import annotations

import functools
import mmap
import os
import threading
import weakref
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves
from torch.utils.data import IterableDataset

from planner import upstream
from planner.allocator.host.replay import condense
from planner.events import Category, Mark, Phase
from planner.host_events import HostAlloc, HostCategory, HostEvent, HostFree
from planner.paper.host_memory import HostBlocks, HostRecord

_MAP_NORESERVE = 0x4000
"""Of Linux; Python's `mmap` does not name it."""


SMALLEST_BYTES = 4096
"""A page. What is smaller (an optimizer's counters of steps) lies in what the C library has taken anyway."""

_CATEGORIES = {
    Category.PARAMETER: HostCategory.PARAMETER,
    Category.GRADIENT: HostCategory.GRADIENT,
    Category.BUCKET: HostCategory.GRADIENT,
    Category.OPTIMIZER_STATE: HostCategory.OPTIMIZER_STATE,
}


class HostMemory:
    """Follows one program's memory on the host; a `planner.paper.recorder.HostListener`.

    What a block is for is often known late: it counts from the block's birth, and what was said first stands.
    """

    def __init__(self) -> None:
        self._next = -1
        self._blocks = HostBlocks()
        self._purposes: dict[int, HostCategory] = {}
        self._placed: defaultdict[int, list[HostEvent | int]] = defaultdict(list)
        """By the number of records before it; a number is the index of one of the program's moments."""
        self.assumed: list[str] = []
        self._loading = threading.local()
        self._loaders: WeakKeyDictionary[Any, Any] = WeakKeyDictionary()
        """With workers, by their iterators that have given no batch yet."""

    def assign(self, tensor: Tensor, category: Category, _name: str = "") -> None:
        """This tensor, if it lies on the host, belongs to `category`."""
        self.name_block(tensor, _CATEGORIES.get(category, HostCategory.OTHER))

    def name_block(self, tensor: Tensor, category: HostCategory) -> None:
        """As `assign`, in the words of the host."""
        for block in self._blocks.blocks_of(tensor):
            self._purposes.setdefault(block, category)

    def write(self, event: HostEvent | int) -> None:
        self._placed[self._blocks.now()].append(event)

    def pass_moment(self, index: int) -> None:
        """The program's moment of this index is now."""
        self.write(index)

    def events(self, phases: Iterable[tuple[int, Phase, int]], until: int | None) -> tuple[HostEvent, ...]:
        """Everything up to the moment of this index. `phases`: at which moments they begin, and their iterations."""
        marks = {index: Mark(phase, iteration) for index, phase, iteration in phases}
        return tuple(condense(list(self._in_order(marks, until))))

    def _in_order(self, marks: dict[int, Mark], until: int | None) -> Iterator[HostEvent]:
        records = self._blocks.records(self._blocks.now())
        begun: set[int] = set()
        purpose = HostCategory.OTHER
        for position in range(len(records) + 1):
            for placed in self._placed.get(position, ()):
                if not isinstance(placed, int):
                    yield placed
                elif placed == until:
                    return
                elif placed in marks:
                    yield marks[placed]
                    is_of_checkpoint = marks[placed].phase in (Phase.CHECKPOINT_LOAD, Phase.CHECKPOINT_SAVE)
                    purpose = HostCategory.CHECKPOINT if is_of_checkpoint else HostCategory.OTHER
            if position < len(records):
                yield from self._event(records[position], begun, purpose)

    def _event(self, record: HostRecord, begun: set[int], otherwise: HostCategory) -> Iterator[HostEvent]:
        """Torch's blocks have even numbers."""
        if record.taken:
            begun.add(record.block)
            category = self._purposes.get(record.block, otherwise)
            yield HostAlloc(2 * record.block, record.bytes, category, bool(record.pinned))
        elif record.block in begun:
            yield HostFree(2 * record.block)

    @contextmanager
    def watch(self) -> Iterator[None]:
        """Inside, the program's host is followed."""
        wrapped: dict[str, upstream.Wrapper] = {
            "torch.utils.data.dataloader:_BaseDataLoaderIter.__next__": self._knowing_batches,
            "torch:UntypedStorage.from_file": _mapping_any_size,
            "torch.serialization:_get_restore_location": self._knowing_parts,
            "torch.autograd.graph:save_on_cpu.__init__": self._knowing_activations,
        }
        if not self._blocks.start(SMALLEST_BYTES):
            self.assumed.append("the CPU's allocator is another than torch's own: tensors on the host are not counted")
        try:
            with upstream.patch_targets("program host memory", wrapped=wrapped):
                yield
        finally:
            self._blocks.stop()

    def _hold_while(
        self, owner: object, size: int, category: HostCategory, *, pinned: bool = False, count: int = 1
    ) -> None:
        """The process holds this as long as `owner` lives, but not beyond the end of the process; its number is odd."""
        self._next += 2
        self.write(HostAlloc(self._next, size, category, pinned, count))
        weakref.finalize(owner, self.write, HostFree(self._next)).atexit = False

    @contextmanager
    def as_if_read(self) -> Iterator[None]:
        """Inside, files are mapped that the program reads: each part that is asked for is as large as it is."""
        self._loading.now = True
        try:
            yield
        finally:
            self._loading.now = False

    def start_workers(self, iterator: Any, loader: Any) -> None:
        """The workers of this loader read ahead from the first batch of its iterator on, which loads in this
        process."""
        self._loaders[iterator] = loader

    def _knowing_batches(self, real: Any) -> Any:
        @functools.wraps(real)
        def following(iterator: Any) -> Any:
            batch = real(iterator)
            if (loader := self._loaders.pop(iterator, None)) is not None:
                # The batch in hand is the program's own: it is told as any block.
                pinned, ahead = bool(loader.pin_memory), _batches_ahead(loader)
                for part in tree_leaves(list(batch.values()) if isinstance(batch, Mapping) else batch):
                    if isinstance(part, Tensor) and part.device.type == "cpu":
                        self._hold_while(iterator, part.nbytes, HostCategory.BATCH, pinned=pinned, count=ahead)
            return batch

        return following

    def _knowing_activations(self, real: Any) -> Any:
        def init(saving: Any, *arguments: Any, **named: Any) -> None:
            real(saving, *arguments, **named)
            pack = saving.pack_hook

            def pack_and_assign(tensor: Tensor) -> Any:
                packed = pack(tensor)
                for part in tree_leaves(packed):
                    if isinstance(part, Tensor):
                        self.name_block(part, HostCategory.ACTIVATION)
                return packed

            saving.pack_hook = pack_and_assign

        return init

    def _knowing_parts(self, real: Any) -> Any:
        """Of a file that is mapped here, and that the program reads."""

        @functools.wraps(real)
        def restoring(map_location: Any) -> Any:
            restore = real(map_location)
            if not getattr(self._loading, "now", False):
                return restore

            def restored(storage: Any, location: Any) -> Any:
                is_on_host = isinstance(storage, torch.UntypedStorage) and storage.device.type == "cpu"
                if is_on_host and storage.nbytes() >= SMALLEST_BYTES:
                    self._hold_while(storage, storage.nbytes(), HostCategory.CHECKPOINT)
                return restore(storage, location)

            return restored

        return restoring


def _mapping_any_size(real: Any) -> Any:
    """Files larger than the memory of this machine too."""

    def from_file(filename: Any, *arguments: Any, **named: Any) -> Any:
        try:
            return real(filename, *arguments, **named)
        except RuntimeError:
            return _mapped_without_reserve(filename, *arguments, **named)

    return staticmethod(from_file)


def _mapped_without_reserve(
    filename: str | os.PathLike[str], shared: bool = False, nbytes: int = 0
) -> torch.UntypedStorage:
    """Of a file larger than the memory of this machine, which Linux maps privately only if it reserves nothing."""
    keeps = mmap.MAP_SHARED if shared else mmap.MAP_PRIVATE | _MAP_NORESERVE
    with Path(filename).open("r+b" if shared else "rb") as file:
        content = mmap.mmap(file.fileno(), nbytes, keeps, mmap.PROT_READ | mmap.PROT_WRITE)
    return torch.frombuffer(content, dtype=torch.uint8).untyped_storage()


def _batches_ahead(loader: Any) -> int:
    """As many as are asked for (torch 2.13, utils/data/dataloader.py, `_MultiProcessingDataLoaderIter._reset`), of
    those that there are besides the first."""
    asked: int = loader.num_workers * loader.prefetch_factor
    if isinstance(loader.dataset, IterableDataset):
        return asked
    try:
        return max(min(asked, len(loader.batch_sampler or loader.sampler) - 1), 0)
    except (TypeError, NotImplementedError):  # a sampler without a length
        return asked
