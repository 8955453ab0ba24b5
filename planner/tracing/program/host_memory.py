"""What a program holds on the host, as events, and where its tensors there come from."""

from __future__ import annotations

import functools
import os
import threading
import weakref
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache, partial
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
from planner.tracing.host_ledger import SMALLEST_BYTES, host_category

_UNHEARD = "the CPU's allocator is another than torch's own: tensors on the host are not counted"


@dataclass(frozen=True, slots=True)
class _Moment:
    """One of the program's moments, by its index."""

    index: int


@dataclass(slots=True)
class _Life:
    """Of a block, the phases (as they are counted) in which it is born and given up; -1: not yet."""

    born: int
    ended: int = -1


class HostMemory:
    """Follows one program's memory on the host; a `planner.paper.recorder.HostListener`.

    What a block is for is often known late (a model's parameters when it is moved): it counts from the block's birth,
    and what was said first stands.
    """

    def __init__(self) -> None:
        self._blocks = HostBlocks()
        self._told: dict[int, HostCategory] = {}
        self._placed: defaultdict[int, list[HostEvent | _Moment]] = defaultdict(list)
        """By the number of records before it."""
        self._others = 0
        self.assumed: list[str] = []

    def start(self) -> None:
        """From here on."""
        if not self._blocks.start(SMALLEST_BYTES):
            self.assumed.append(_UNHEARD)

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
            self._told.setdefault(block, category)

    def pass_moment(self, index: int) -> None:
        """The program has come to this moment of its log."""
        self._place(_Moment(index))

    def hold_while(self, owner: object, held: HostBlock) -> None:
        """The process holds this as long as `owner` lives."""
        number = self._next_number()
        self._place(HostAlloc(number, held))
        self._when_gone(owner, lambda: HostFree(number))

    def hold_mapped(self, storage: torch.UntypedStorage, name: str) -> None:
        """This storage is a file that is mapped."""
        held = HostBlock(bytes=storage.nbytes(), category=HostCategory.CHECKPOINT, backing=Backing.FILE, name=name)
        self.hold_while(storage, held)

    def hold_read(self, storage: torch.UntypedStorage) -> None:
        """This storage is a part of a file that is mapped here, and that the program reads."""
        if storage.device.type == "cpu" and storage.nbytes() >= SMALLEST_BYTES:
            self.hold_while(storage, HostBlock(bytes=storage.nbytes(), category=HostCategory.CHECKPOINT))

    def start_loader(self, iterator: object, about: Callable[..., LoaderStarted]) -> None:
        """A data loader has workers from here on, as long as its iterator lives; `about` wants its number."""
        number = self._next_number()
        self._place(about(loader=number))
        self._when_gone(iterator, lambda: LoaderEnded(number))

    def events(self, phases: Iterable[tuple[int, Phase, int]], until: int | None) -> tuple[HostEvent, ...]:
        """Everything up to the moment of this index. `phases`: at which moments they begin, and their iterations."""
        marks = {index: Mark(phase, iteration) for index, phase, iteration in phases}
        told = list(self._in_order(marks, until))
        lives, passed = _lives_of(told)
        return tuple(condense([self._event_of(each, lives, passed) for each in told]))

    def _in_order(self, marks: dict[int, Mark], until: int | None) -> Iterator[HostRecord | HostEvent]:
        records = self._blocks.records(self._blocks.now())
        begun: set[int] = set()
        for position in range(len(records) + 1):
            for placed in self._placed.get(position, ()):
                if not isinstance(placed, _Moment):
                    yield placed
                    continue
                if placed.index == until:
                    return
                if placed.index in marks:
                    yield marks[placed.index]
            if position == len(records):
                return
            record = records[position]
            if record.taken:
                begun.add(record.block)
            if record.taken or record.block in begun:
                yield record

    def _event_of(self, told: HostRecord | HostEvent, lives: dict[int, _Life], phases: list[Phase]) -> HostEvent:
        if not isinstance(told, HostRecord):
            return told
        number = 2 * told.block
        if not told.taken:
            return HostFree(number)
        life = lives[told.block]
        ended = None if life.ended < 0 else phases[life.ended]
        category = self._told.get(told.block) or _category_of(phases[life.born], ended, life)
        return HostAlloc(number, _block(told.bytes, category, bool(told.pinned)))

    def _next_number(self) -> int:
        """Those of torch's blocks are even."""
        self._others += 1
        return 2 * self._others - 1

    def _when_gone(self, owner: object, event: Callable[[], HostEvent]) -> None:
        weakref.finalize(owner, lambda: self._place(event())).atexit = False

    def _place(self, event: HostEvent | _Moment) -> None:
        self._placed[self._blocks.now()].append(event)


@cache
def _block(size: int, category: HostCategory, pinned: bool) -> HostBlock:
    """Many are alike."""
    return HostBlock(bytes=size, category=category, pinned=pinned)


def _lives_of(told: Iterable[HostRecord | HostEvent]) -> tuple[dict[int, _Life], list[Phase]]:
    """Of each of torch's blocks its life, and the phases that its numbers stand for."""
    phases, lives = [Phase.LOAD], dict[int, _Life]()
    for each in told:
        if isinstance(each, Mark):
            phases.append(each.phase)
        elif isinstance(each, HostRecord) and each.taken:
            lives[each.block] = _Life(len(phases) - 1)
        elif isinstance(each, HostRecord):
            lives[each.block].ended = len(phases) - 1
    return lives, phases


def _category_of(born: Phase, ended: Phase | None, life: _Life) -> HostCategory:
    """Of a block of which nobody has said what it is for."""
    if born is Phase.CHECKPOINT_SAVE:
        return HostCategory.CHECKPOINT
    if life.born == life.ended:
        return HostCategory.TEMPORARY
    if born is Phase.FORWARD and ended is Phase.BACKWARD:
        return HostCategory.ACTIVATION
    return HostCategory.OTHER


def tensors_in(value: Any, within: tuple[int, ...] = ()) -> Iterator[Tensor]:
    """The tensors in a batch or a checkpoint, through sequences and whatever has keys and values.

    `within`: the containers around it, which may hold themselves.
    """
    if isinstance(value, Tensor):
        yield value
        return
    if id(value) in within:
        return
    parts: Iterable[Any] = ()
    if isinstance(value, list | tuple):
        parts = value
    elif isinstance(value, Mapping):
        parts = value.values()
    for each in parts:
        yield from tensors_in(each, (*within, id(value)))


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
        self._workers[iterator] = partial(
            LoaderStarted,
            workers=loader.num_workers,
            ahead=_batches_ahead(loader),
            pin_memory=bool(loader.pin_memory),
            spawned=_spawns(loader),
        )

    def _knowing_parameters(self, real: Any) -> Any:
        """Of a module that is moved or cast, whole: the modules in it are asked one after the other."""

        @functools.wraps(real)
        def apply(module: nn.Module, *arguments: Any, **named: Any) -> Any:
            if getattr(self._moving, "now", False):
                return real(module, *arguments, **named)
            self._moving.now = True
            try:
                self._tell_parameters(module)
                result = real(module, *arguments, **named)
                self._tell_parameters(module)
            finally:
                self._moving.now = False
            return result

        return apply

    def _tell_parameters(self, module: nn.Module) -> None:
        for each in (*module.parameters(), *module.buffers()):
            self._memory.tell(each, HostCategory.PARAMETER)
            if each.grad is not None:
                self._memory.tell(each.grad, HostCategory.GRADIENT)

    def _knowing_batches(self, real: Any) -> Any:
        @functools.wraps(real)
        def following(iterator: Any) -> Any:
            batch = real(iterator)
            tensors = [each for each in tensors_in(batch) if each.device.type == "cpu"]
            for each in tensors:
                self._memory.tell(each, HostCategory.BATCH)
            if (workers := self._workers.pop(iterator, None)) is not None:
                self._memory.start_loader(iterator, partial(workers, tensors=tuple(each.nbytes for each in tensors)))
            return batch

        return following

    def _knowing_files(self, real: Any) -> Any:
        def from_file(filename: Any, *arguments: Any, **named: Any) -> Any:
            storage = real(filename, *arguments, **named)
            if not getattr(self._reads, "now", False):
                self._memory.hold_mapped(storage, os.path.abspath(os.fspath(filename)))
            return storage

        return staticmethod(from_file)

    def _knowing_parts(self, real: Any) -> Any:
        @functools.wraps(real)
        def restoring(map_location: Any) -> Any:
            restore = real(map_location)
            if not getattr(self._reads, "now", False):
                return restore

            def restored(storage: Any, location: Any) -> Any:
                if isinstance(storage, torch.UntypedStorage):
                    self._memory.hold_read(storage)
                return restore(storage, location)

            return restored

        return restoring

    def _knowing_saved(self, real: Any) -> Any:
        @functools.wraps(real)
        def save(content: Any, *arguments: Any, **named: Any) -> Any:
            self._tell_checkpoint(content)
            return real(content, *arguments, **named)

        return save

    def _knowing_loaded(self, real: Any) -> Any:
        @functools.wraps(real)
        def load(*arguments: Any, **named: Any) -> Any:
            content = real(*arguments, **named)
            self._tell_checkpoint(content)
            return content

        return load

    def _tell_checkpoint(self, content: Any) -> None:
        for each in tensors_in(content):
            self._memory.tell(each, HostCategory.CHECKPOINT)


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


def _spawns(loader: Any) -> bool:
    """Whether its workers are new interpreters: as Python does by default, unless the loader says otherwise."""
    context = loader.multiprocessing_context or torch.multiprocessing
    return str(context.get_start_method()) != "fork"
