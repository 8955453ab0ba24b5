"""What a program holds on the host, as events, and where its tensors there come from."""

from __future__ import annotations

import functools
import mmap
import os
import threading
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import cache, partial
from pathlib import Path
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn
from torch.utils.data import IterableDataset

from planner import upstream
from planner.allocator.host.replay import condense
from planner.events import Category, Mark, Phase
from planner.host_events import (
    Backing,
    HostAlloc,
    HostBlock,
    HostCategory,
    HostEvent,
    HostFree,
    LoaderEnded,
    LoaderStarted,
)
from planner.paper.host_memory import HostBlocks, HostRecord
from planner.tracing.host_ledger import SMALLEST_BYTES, host_category, when_gone

_MAP_NORESERVE = 0x4000
"""Of Linux; Python's `mmap` does not name it."""


class HostMemory:
    """Follows one program's memory on the host; a `planner.paper.recorder.HostListener`.

    What a block is for is often known late (a model's parameters when it is moved): it counts from the block's birth,
    and what was said first stands.
    """

    def __init__(self) -> None:
        self._blocks = HostBlocks()
        self._purposes: dict[int, HostCategory] = {}
        self._placed: defaultdict[int, list[HostEvent | int]] = defaultdict(list)
        """By the number of records before it; a number is the index of one of the program's moments."""
        self._others = 0
        self.assumed: list[str] = []

    def start(self) -> None:
        if not self._blocks.start(SMALLEST_BYTES):
            self.assumed.append("the CPU's allocator is another than torch's own: tensors on the host are not counted")

    def stop(self) -> None:
        self._blocks.stop()

    def mark(self, phase: Phase, iteration: int) -> None:
        """Phases of a program follow from its moments."""

    def assign(self, tensor: Tensor, category: Category, _name: str = "") -> None:
        """This tensor, if it lies on the host, belongs to `category`."""
        self.tell(tensor, host_category(category))

    def tell(self, tensor: Tensor, category: HostCategory) -> None:
        """As `assign`, in the host's words."""
        block = self._blocks.block_of(tensor)
        if block is not None:
            self._purposes.setdefault(block, category)

    def pass_moment(self, index: int) -> None:
        self._place(index)

    def hold_while(self, owner: object, held: HostBlock) -> None:
        """The process holds this as long as `owner` lives."""
        number = self._next_number()
        self._place(HostAlloc(number, held))
        when_gone(owner, self._place, HostFree(number))

    def start_loader(self, iterator: object, about: Callable[..., LoaderStarted]) -> None:
        """A data loader has workers from here on, as long as its iterator lives; `about` wants its number."""
        number = self._next_number()
        self._place(about(loader=number))
        when_gone(iterator, self._place, LoaderEnded(number))

    def events(self, phases: Iterable[tuple[int, Phase, int]], until: int | None) -> tuple[HostEvent, ...]:
        """Everything up to the moment of this index. `phases`: at which moments they begin, and their iterations."""
        marks = {index: Mark(phase, iteration) for index, phase, iteration in phases}
        sequence = list(self._in_order(marks, until))
        passed, born, ended = [Phase.LOAD], dict[int, int](), dict[int, int]()
        for entry in sequence:
            if isinstance(entry, Mark):
                passed.append(entry.phase)
            elif isinstance(entry, HostRecord):
                (born if entry.taken else ended)[entry.block] = len(passed) - 1

        def category_of(block: int) -> HostCategory:
            if (purpose := self._purposes.get(block)) is not None:
                return purpose
            began, end = born[block], ended.get(block)
            if passed[began] is Phase.CHECKPOINT_SAVE:
                return HostCategory.CHECKPOINT
            if began == end:
                return HostCategory.TEMPORARY
            if passed[began] is Phase.FORWARD and end is not None and passed[end] is Phase.BACKWARD:
                return HostCategory.ACTIVATION
            return HostCategory.OTHER

        def make_event(entry: HostRecord | HostEvent) -> HostEvent:
            if not isinstance(entry, HostRecord):
                return entry
            number = 2 * entry.block
            if not entry.taken:
                return HostFree(number)
            return HostAlloc(number, _block(entry.bytes, category_of(entry.block), bool(entry.pinned)))

        return tuple(condense([make_event(entry) for entry in sequence]))

    def _in_order(self, marks: dict[int, Mark], until: int | None) -> Iterator[HostRecord | HostEvent]:
        records = self._blocks.records(self._blocks.now())
        begun: set[int] = set()
        for position in range(len(records) + 1):
            for placed in self._placed.get(position, ()):
                if not isinstance(placed, int):
                    yield placed
                elif placed == until:
                    return
                elif placed in marks:
                    yield marks[placed]
            if position == len(records):
                return
            record = records[position]
            if record.taken:
                begun.add(record.block)
            if record.taken or record.block in begun:
                yield record

    def _next_number(self) -> int:
        """Those of torch's blocks are even."""
        self._others += 1
        return 2 * self._others - 1

    def _place(self, event: HostEvent | int) -> None:
        self._placed[self._blocks.now()].append(event)


@cache
def _block(size: int, category: HostCategory, pinned: bool) -> HostBlock:
    return HostBlock(bytes=size, category=category, pinned=pinned)


def find_tensors(value: Any, within: tuple[int, ...] = ()) -> Iterator[Tensor]:
    """The tensors in a batch or a checkpoint, through sequences and whatever has keys and values.

    `within`: the containers around it, which may hold themselves.
    """
    if isinstance(value, Tensor):
        yield value
    elif id(value) not in within:
        parts = value.values() if isinstance(value, Mapping) else value if isinstance(value, list | tuple) else ()
        for part in parts:
            yield from find_tensors(part, (*within, id(value)))


class HostWatcher:
    """Tells a `HostMemory` what it could not know by itself."""

    def __init__(self, memory: HostMemory) -> None:
        self._memory = memory
        self._moving = threading.local()
        self._reads = threading.local()
        self._workers: WeakKeyDictionary[Any, partial[LoaderStarted]] = WeakKeyDictionary()
        """Of iterators that have given no batch yet."""

    @contextmanager
    def watch(self) -> Iterator[None]:
        """Inside, the program's host is followed."""
        wrapped: dict[str, upstream.Wrapper] = {
            "torch.nn:Module._apply": self._knowing_parameters,
            "torch.utils.data.dataloader:_BaseDataLoaderIter.__next__": self._knowing_batches,
            "torch:UntypedStorage.from_file": self._knowing_files,
            "torch.serialization:_get_restore_location": self._knowing_parts,
            "torch:save": self._knowing_saved,
            "torch:load": self._knowing_loaded,
        }
        self._memory.start()
        try:
            with upstream.patch_targets("program host memory", wrapped=wrapped):
                yield
        finally:
            self._memory.stop()

    @contextmanager
    def as_if_read(self) -> Iterator[None]:
        """Inside, files are mapped that the program reads: each part that is asked for is as large as it is."""
        self._reads.now = True
        try:
            yield
        finally:
            self._reads.now = False

    def start_workers(self, iterator: Any, loader: Any) -> None:
        """The workers of this loader begin with the first batch of its iterator, which loads in this process."""
        # Workers are new interpreters as Python makes them by default, unless the loader says otherwise.
        context = loader.multiprocessing_context or torch.multiprocessing
        self._workers[iterator] = partial(
            LoaderStarted,
            workers=loader.num_workers,
            ahead=_batches_ahead(loader),
            pin_memory=bool(loader.pin_memory),
            spawned=str(context.get_start_method()) != "fork",
        )

    def _knowing_parameters(self, real: Any) -> Any:
        """Of a module that is moved or cast, whole: the modules in it are asked one after the other."""

        def tell(module: nn.Module) -> None:
            for tensor in (*module.parameters(), *module.buffers()):
                self._memory.tell(tensor, HostCategory.PARAMETER)
                if tensor.grad is not None:
                    self._memory.tell(tensor.grad, HostCategory.GRADIENT)

        @functools.wraps(real)
        def apply(module: nn.Module, *arguments: Any, **named: Any) -> Any:
            if getattr(self._moving, "now", False):
                return real(module, *arguments, **named)
            self._moving.now = True
            try:
                tell(module)
                result = real(module, *arguments, **named)
                tell(module)
            finally:
                self._moving.now = False
            return result

        return apply

    def _knowing_batches(self, real: Any) -> Any:
        @functools.wraps(real)
        def following(iterator: Any) -> Any:
            batch = real(iterator)
            tensors = [tensor for tensor in find_tensors(batch) if tensor.device.type == "cpu"]
            for tensor in tensors:
                self._memory.tell(tensor, HostCategory.BATCH)
            if (workers := self._workers.pop(iterator, None)) is not None:
                sizes = tuple(tensor.nbytes for tensor in tensors)
                self._memory.start_loader(iterator, partial(workers, tensors=sizes))
            return batch

        return following

    def _knowing_files(self, real: Any) -> Any:
        def from_file(filename: Any, *arguments: Any, **named: Any) -> Any:
            try:
                storage = real(filename, *arguments, **named)
            except RuntimeError:
                storage = _mapped_without_reserve(filename, *arguments, **named)
            if not getattr(self._reads, "now", False):
                size, name = storage.nbytes(), os.path.abspath(os.fspath(filename))
                mapped = HostBlock(bytes=size, category=HostCategory.CHECKPOINT, backing=Backing.FILE, name=name)
                self._memory.hold_while(storage, mapped)
            return storage

        return staticmethod(from_file)

    def _knowing_parts(self, real: Any) -> Any:
        """Of a file that is mapped here, and that the program reads."""

        @functools.wraps(real)
        def restoring(map_location: Any) -> Any:
            restore = real(map_location)
            if not getattr(self._reads, "now", False):
                return restore

            def restored(storage: Any, location: Any) -> Any:
                is_on_host = isinstance(storage, torch.UntypedStorage) and storage.device.type == "cpu"
                if is_on_host and storage.nbytes() >= SMALLEST_BYTES:
                    read = HostBlock(bytes=storage.nbytes(), category=HostCategory.CHECKPOINT)
                    self._memory.hold_while(storage, read)
                return restore(storage, location)

            return restored

        return restoring

    def _knowing_saved(self, real: Any) -> Any:
        @functools.wraps(real)
        def save(obj: Any, *arguments: Any, **named: Any) -> Any:
            self._tell_checkpoint(obj)
            return real(obj, *arguments, **named)

        return save

    def _knowing_loaded(self, real: Any) -> Any:
        @functools.wraps(real)
        def load(*arguments: Any, **named: Any) -> Any:
            content = real(*arguments, **named)
            self._tell_checkpoint(content)
            return content

        return load

    def _tell_checkpoint(self, content: Any) -> None:
        for tensor in find_tensors(content):
            self._memory.tell(tensor, HostCategory.CHECKPOINT)


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
