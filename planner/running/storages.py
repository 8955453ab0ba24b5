"""Storages and checkpoints of tensors that have no bytes: made, copied, saved and loaded as torch does it.

A checkpoint is torch's own file, in which what lies on the device is a hole: it takes no room on a disk, and it loads.
"""

from __future__ import annotations

import os
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch

from planner import upstream
from planner.paper import library
from planner.running.assumptions import About, Assumptions
from planner.running.unwritten_host import is_storage_unwritten

_ZEROS = 1 << 20
"""Written at a time."""
_SAVED = "what lies on the device is saved as nothing: a checkpoint has its structure and its size, but no values"


@contextmanager
def on_paper(assumptions: Assumptions) -> Iterator[None]:
    """Inside, storages of a CUDA device are made and copied, and written as holes."""
    kept = _HostCopies(assumptions)
    replaced: dict[str, Any] = {"torch:UntypedStorage.__new__": _make}
    wrapped = {
        "torch:UntypedStorage.cpu": kept.wrap_copy,
        "torch.serialization:_save": kept.wrap_save,
        "torch.serialization:_open_zipfile_writer_buffer.__init__": _seeking,
    }
    with upstream.patch_targets("program storages", replaced=replaced, wrapped=wrapped):
        yield


def _make(cls: Any, *arguments: Any, device: Any = None, **named: Any) -> Any:
    """`UntypedStorage(bytes, device="cuda")`, which a build without CUDA refuses; on the host it would pass by the
    allocator that is heard of (torch/csrc/Storage.cpp: `GetDefaultCPUAllocator`)."""
    where = torch.device("cpu" if device is None else device)
    first = arguments[0] if arguments else named.get("size", 0)
    if where.type != "cuda":
        if where.type == "cpu" and isinstance(first, int) and cls is torch.UntypedStorage:
            made = torch.empty(first, dtype=torch.uint8, device=where)
            if type(made) is torch.Tensor:  # not one of a mode in which tensors have no memory
                return made.untyped_storage()
        given = {**named, **({} if device is None else {"device": device})}
        return torch._C.StorageBase.__new__(cls, *arguments, **given)
    count = first if isinstance(first, int) else len(first)
    return torch.empty(count, dtype=torch.uint8, device=where).untyped_storage()


class _HostCopies:
    """Storages of the host that stand for device storages on their way into a file."""

    def __init__(self, assumptions: Assumptions) -> None:
        self._assumptions = assumptions
        self._copies: weakref.WeakValueDictionary[int, torch.UntypedStorage] = weakref.WeakValueDictionary()

    def wrap_copy(self, real: Callable[..., Any]) -> Callable[..., Any]:
        def cpu(storage: torch.UntypedStorage) -> torch.UntypedStorage:
            if storage.device.type != "cuda":
                copied: torch.UntypedStorage = real(storage)
                return copied
            self._assumptions.add(About.HOST, _SAVED)
            made = torch.UntypedStorage(storage.nbytes())
            library.load().paper_write_zeros(made._cdata)
            self._copies[id(made)] = made
            return made

        return cpu

    def wrap_save(self, real: Callable[..., Any]) -> Callable[..., Any]:
        def save(content: Any, archive: Any, *arguments: Any, **named: Any) -> Any:
            return real(content, _Archive(archive, self._stands_for_device), *arguments, **named)

        return save

    def _stands_for_device(self, storage: Any) -> bool:
        """Or for nothing at all: it reads as zeros, as a hole does."""
        if self._copies.get(id(storage)) is storage:
            return True
        return isinstance(storage, torch.UntypedStorage) and is_storage_unwritten(storage)


class _Archive:
    """torch's archive writer, which leaves out the bytes of some storages as `torch.serialization.skip_data` does."""

    def __init__(self, real: Any, leaves_out: Callable[[Any], bool]) -> None:
        self._real, self._leaves_out = real, leaves_out

    def __getattr__(self, name: str) -> Any:
        return getattr(self._real, name)

    def write_record(self, name: str, content: Any, count: int) -> None:
        if self._leaves_out(content):
            self._real.write_record_metadata(name, count)
        else:
            self._real.write_record(name, content, count)


def _seeking(real: Callable[..., Any]) -> Callable[..., Any]:
    """An archive writer for streams whose holes are seeked over, also where the stream itself cannot be."""

    def init(writer: Any, buffer: Any) -> None:
        can_seek = getattr(buffer, "seekable", lambda: True)()
        real(writer, buffer if can_seek or not hasattr(buffer, "write") else _Stream(buffer))

    return init


class _Stream:
    """A stream that is written to only, such as each tensor's in a file of torch.distributed.checkpoint."""

    def __init__(self, real: Any) -> None:
        self._real, self._below = real, getattr(real, "raw", None)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._real, name)

    def seek(self, count: int, _whence: int) -> None:
        """Over a hole: that of the file below, or else one that is written."""
        if self._below is not None and self._below.seekable():
            self._below.seek(count, os.SEEK_CUR)
            return
        while count:
            part = min(count, _ZEROS)
            self._real.write(bytes(part))
            count -= part
