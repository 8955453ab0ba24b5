"""Watches where a program's tensors on the host come from: moved models, batches, checkpoints, mapped files."""

from __future__ import annotations

import functools
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import nn
from torch.utils.data import IterableDataset

from planner import upstream
from planner.host_events import HostCategory, LoaderStarted
from planner.running.host_memory import HostMemory, tensors_in


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
