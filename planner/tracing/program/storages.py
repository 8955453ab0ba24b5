"""Tensors and checkpoints without bytes: made, initialised, copied, saved and loaded as torch does it."""

from __future__ import annotations

import ctypes
import functools
import json
import mmap
import os
import warnings
import weakref
import zipfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensor

from planner import upstream
from planner.paper import library
from planner.tracing.program.assumptions import About, Assumptions
from planner.upstream import torch_releases

LARGE_BYTES = 8 << 20
"""From this size on what is taken is new from the operating system, once `take_large_anew` was called."""
_MMAP_THRESHOLD = -3
"""M_MMAP_THRESHOLD (glibc, malloc.h): by default it grows to 32 MiB with what is given back."""


@cache
def _libc() -> ctypes.CDLL:
    return ctypes.CDLL(None, use_errno=True)


def take_large_anew() -> None:
    """From here on memory of `LARGE_BYTES` or more is new whenever it is taken. Where the C library knows no such
    setting nothing is changed."""
    if hasattr(_libc(), "mallopt"):
        _libc().mallopt(_MMAP_THRESHOLD, LARGE_BYTES)


def is_unwritten(address: int, size: int) -> bool:
    """Whether these bytes are zeros because nobody has written there; False for small ones, and for those of a file."""
    if size < LARGE_BYTES or not hasattr(_libc(), "mincore"):
        return False
    page = mmap.PAGESIZE
    first, after = -(-address // page) * page, (address + size) // page * page
    pages = ctypes.create_string_buffer((after - first) // page)
    if _libc().mincore(ctypes.c_void_p(first), ctypes.c_size_t(after - first), pages) != 0 or any(pages.raw):
        return False
    edges = ctypes.string_at(address, first - address) + ctypes.string_at(after, address + size - after)
    return not any(edges) and _is_anonymous(first)


def _is_anonymous(address: int) -> bool:
    for line in Path("/proc/self/maps").read_text().splitlines():
        span, _, _, _, inode, *_ = line.split()
        first, after = (int(each, 16) for each in span.split("-"))
        if first <= address < after:
            return inode == "0"
    return False


_RANDOM = ("normal_", "uniform_")
_SAID = f"initial random numbers of host tensors from {LARGE_BYTES >> 20} MiB on are left out: those read as zeros"


@contextmanager
def left_unwritten(assumptions: Assumptions) -> Iterator[None]:
    """Inside, large host tensors are initialised without being written."""
    take_large_anew()
    library = torch.library.Library("aten", "IMPL")
    host = _Host(assumptions)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*[Oo]verriding a previously registered kernel.*")
        for name in _RANDOM:
            library.impl(name, _uncompiled(host.random(name)), _KEY, with_keyset=True)
        library.impl("copy_", _uncompiled(host.copy()), _KEY, with_keyset=True)
        library.impl("zeros", _uncompiled(_zeros), "CPU")
    wrapped: dict[str, upstream.Wrapper] = dict.fromkeys(_INITIALISERS, host.initialiser)
    try:
        with upstream.patch_targets("program initialises", wrapped=wrapped):
            yield
    finally:
        library._destroy()


def _uncompiled(kernel: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """Dynamo looks at every Python that runs inside a compiled call."""
    disabled: Callable[..., Tensor] = torch.compiler.disable(kernel)
    return disabled


_KEY = "CPU" if torch_releases.since(2, 9) else "BackendSelect"
"""Where these operators are entered. Before torch 2.9 a kernel that another one replaces cannot be called any more:
there they are entered one key above, for every device."""


def _real(name: str) -> Callable[..., Tensor]:
    """Torch's own kernel, to be called with the keys that its replacement was given."""
    if torch_releases.since(2, 9):
        found: Callable[..., Tensor] = torch.library.get_kernel(f"aten::{name}", "CPU").call_boxed
        return found
    operator, above = getattr(torch.ops.aten, name), torch._C.DispatchKey.BackendSelect

    def call(keys: Any, *arguments: Any, **named: Any) -> Tensor:
        result: Tensor = operator.default.redispatch(keys.remove(above), *arguments, **named)
        return result

    return call


_INITIALISERS = ("torch.nn.init:_no_grad_trunc_normal_", "torch.nn.init:orthogonal_")
"""Those that compute with their random numbers."""


class _Host:
    def __init__(self, assumptions: Assumptions) -> None:
        self._assumptions = assumptions

    def leaves_out(self, tensor: Tensor) -> bool:
        """Whether it keeps what it has."""
        if not _has_memory(tensor) or not tensor.is_floating_point():
            return False
        if tensor.untyped_storage().nbytes() < LARGE_BYTES:
            return False
        self._assumptions.add(About.HOST, _SAID)
        return True

    def random(self, name: str) -> Callable[..., Tensor]:
        """The kernel of an operator that fills a tensor with random numbers."""
        real = _real(name)

        def fill(keys: Any, tensor: Tensor, *arguments: Any, **named: Any) -> Tensor:
            if self.leaves_out(tensor):
                return tensor
            filled: Tensor = real(keys, tensor, *arguments, **named)
            return filled

        return fill

    def copy(self) -> Callable[..., Tensor]:
        """The kernel of a copy within the host."""
        real = _real("copy_")

        def copy(keys: Any, tensor: Tensor, source: Any, non_blocking: bool = False) -> Tensor:
            if not isinstance(source, Tensor):  # a number that is assigned comes as one
                source = torch.scalar_tensor(source, dtype=tensor.dtype)
            if _is_unwritten(source) and _is_unwritten(tensor):
                return tensor
            copied: Tensor = real(keys, tensor, source, non_blocking)
            return copied

        return copy

    def initialiser(self, real: Callable[..., Tensor]) -> Callable[..., Tensor]:
        def initialise(tensor: Tensor, *arguments: Any, **named: Any) -> Tensor:
            if self.leaves_out(tensor):
                return tensor
            return real(tensor, *arguments, **named)

        return initialise


def _has_memory(tensor: Tensor) -> bool:
    """On the host. What a compiler traces, which comes here too before torch 2.9, has none, and symbols for sizes."""
    is_traced = isinstance(tensor, FakeTensor) or torch._is_functional_tensor(tensor)
    return tensor.device.type == "cpu" and not is_traced


def _is_unwritten(tensor: Tensor) -> bool:
    return _has_memory(tensor) and tensor.nbytes >= LARGE_BYTES and is_storage_unwritten(tensor.untyped_storage())


def is_storage_unwritten(storage: torch.UntypedStorage) -> bool:
    """Whether a storage of the host is large and was never written: it is all zeros."""
    return storage.device.type == "cpu" and is_unwritten(storage.data_ptr(), storage.nbytes())


def _zeros(size: Sequence[int], **options: Any) -> Tensor:
    made = torch.empty(size, **options)
    return made if made.untyped_storage().nbytes() >= LARGE_BYTES else made.zero_()


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


_ALIGNMENT = 8
"""Of the data in a safetensors file (its format: 8 bytes with the length of a header in JSON, the header, the data)."""


@contextmanager
def with_holes(
    saves: Callable[[], None], as_if_read: Callable[[], AbstractContextManager[None]] = nullcontext
) -> Iterator[None]:
    """Inside, safetensors files have holes, and torch's own are mapped when they are loaded. `saves` is told of each
    safetensors file; `as_if_read` stands around each loading that the program did not ask to be mapped."""

    def write(_real: Any) -> Any:
        def serialize_file(tensors: Mapping[str, Any], filename: Any, metadata: Any = None) -> None:
            saves()
            _write_safetensors(tensors, filename, metadata)

        return serialize_file

    wrapped: dict[str, upstream.Wrapper] = {
        "safetensors.torch:serialize_file": write,
        "torch:load": functools.partial(_mapping, as_if_read),
    }
    with upstream.patch_targets("program checkpoints", wrapped=wrapped):
        yield


def _write_safetensors(tensors: Mapping[str, Any], filename: Any, metadata: Any) -> None:
    """As safetensors 0.8: larger elements first, then by name."""
    names = sorted(tensors, key=lambda name: (-_element_bytes(tensors[name]), name))
    header: dict[str, Any] = {"__metadata__": dict(metadata)} if metadata else {}
    at = 0
    for name in names:
        each = tensors[name]
        header[name] = {"dtype": each.dtype, "shape": list(each.shape), "data_offsets": [at, at + each.data_len]}
        at += each.data_len
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % _ALIGNMENT)
    with open(filename, "wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        for name in names:
            _write_data(file, tensors[name].data_ptr, tensors[name].data_len)
        file.truncate()


def _element_bytes(tensor: Any) -> int:
    count = 1
    for each in tensor.shape:
        count *= each
    return tensor.data_len // count if count else 0


def _write_data(file: Any, address: int, size: int) -> None:
    if is_unwritten(address, size):
        file.seek(size, os.SEEK_CUR)
    elif size:
        file.write((ctypes.c_char * size).from_address(address))


def _mapping(as_if_read: Callable[[], AbstractContextManager[None]], real: Callable[..., Any]) -> Callable[..., Any]:
    """Loading that reads of a large file what is asked for."""

    def load(file: Any, *arguments: Any, **options: Any) -> Any:
        if options.get("mmap") is None and _can_be_mapped(file):
            with as_if_read():
                return real(file, *arguments, **{**options, "mmap": True})
        return real(file, *arguments, **options)

    return load


def _can_be_mapped(file: Any) -> bool:
    if not isinstance(file, str | os.PathLike):
        return False
    path = os.fspath(file)
    return os.path.isfile(path) and os.path.getsize(path) >= LARGE_BYTES and zipfile.is_zipfile(path)
