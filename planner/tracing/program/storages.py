"""Tensors and checkpoints without bytes: made, initialised, copied, saved and loaded as torch does it."""

from __future__ import annotations

import ctypes
import json
import math
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
_MMAP_THRESHOLD, _MAPPED_BYTES = -3, 128 << 10
"""M_MMAP_THRESHOLD (glibc, malloc.h) and its first value: by default it grows to 32 MiB with what is freed. Less than
`LARGE_BYTES`, since known values (masks of megabytes) that are freed to the heap leave holes there, which small records
break up: the process would grow with every operator."""


@cache
def _libc() -> ctypes.CDLL:
    return ctypes.CDLL(None, use_errno=True)


def take_large_anew() -> None:
    """From here on memory of `LARGE_BYTES` or more is new whenever it is taken. Where the C library knows no such
    setting nothing is changed."""
    if hasattr(_libc(), "mallopt"):
        _libc().mallopt(_MMAP_THRESHOLD, _MAPPED_BYTES)


_MOST_PAGES = 4096
"""That are there and have zeros: a copy from the paper GPU into a part of a buffer writes those at its edges."""


class UnwrittenMemory:
    """Finds memory that nobody has written. Which spans are anonymous is looked up anew where one is not known."""

    def __init__(self) -> None:
        self._spans: list[tuple[int, int]] = []

    def holds(self, storage: torch.UntypedStorage) -> bool:
        """Whether a storage of the host is such memory; False for small ones, and for those of a file."""
        return storage.device.type == "cpu" and self.has(storage.data_ptr(), storage.nbytes())

    def has(self, address: int, size: int) -> bool:
        """Whether these bytes are zeros because nobody has written there."""
        if size < LARGE_BYTES or not hasattr(_libc(), "mincore"):
            return False
        page = mmap.PAGESIZE
        first, after = -(-address // page) * page, (address + size) // page * page
        pages = ctypes.create_string_buffer((after - first) // page)
        if _libc().mincore(ctypes.c_void_p(first), ctypes.c_size_t(after - first), pages) != 0:
            return False
        there = [index for index, is_there in enumerate(pages.raw) if is_there & 1] if any(pages.raw) else []
        if len(there) > _MOST_PAGES:
            return False
        parts = [(address, first), (after, address + size)]  # less than a page each
        parts += [(first + index * page, first + (index + 1) * page) for index in there]
        is_zero = all(ctypes.string_at(begin, end - begin) == bytes(end - begin) for begin, end in parts)
        return is_zero and self._is_anonymous(first)

    def _is_anonymous(self, address: int) -> bool:
        if not any(begin <= address < end for begin, end in self._spans):
            self._spans = list(_anonymous_spans())
        return any(begin <= address < end for begin, end in self._spans)


def _anonymous_spans() -> Iterator[tuple[int, int]]:
    for line in Path("/proc/self/maps").read_text().splitlines():
        span, _, _, _, inode, *_ = line.split()
        if inode == "0":
            begin, end = (int(bound, 16) for bound in span.split("-"))
            yield begin, end


_RANDOM = ("normal_", "uniform_")
_SAID = f"initial random numbers of host tensors from {LARGE_BYTES >> 20} MiB on are left out: those read as zeros"
_INITIALISERS = ("torch.nn.init:_no_grad_trunc_normal_", "torch.nn.init:orthogonal_")
"""Those that compute with their random numbers."""
_KEY = "CPU" if torch_releases.since(2, 9) else "BackendSelect"
"""Where these operators are entered. Before torch 2.9 a kernel that another one replaces cannot be called any more:
there they are entered one key above, for every device."""


@contextmanager
def left_unwritten(assumptions: Assumptions) -> Iterator[None]:
    """Inside, large host tensors are initialised without being written."""

    def leaves_out(tensor: Tensor) -> bool:
        if is_left_out := _is_left_out(tensor):
            assumptions.add(About.HOST, _SAID)
        return is_left_out

    def random_kernel(name: str) -> Callable[..., Tensor]:
        real = _real(name)

        def fill(keys: Any, tensor: Tensor, *arguments: Any, **named: Any) -> Tensor:
            return tensor if leaves_out(tensor) else real(keys, tensor, *arguments, **named)

        return fill

    def initialiser(real: Callable[..., Tensor]) -> Callable[..., Tensor]:
        def initialise(tensor: Tensor, *arguments: Any, **named: Any) -> Tensor:
            return tensor if leaves_out(tensor) else real(tensor, *arguments, **named)

        return initialise

    take_large_anew()
    # Dynamo looks at every Python that runs inside a compiled call.
    uncompiled: Callable[..., Any] = torch.compiler.disable
    operators = torch.library.Library("aten", "IMPL")
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*[Oo]verriding a previously registered kernel.*")
        for name in _RANDOM:
            operators.impl(name, uncompiled(random_kernel(name)), _KEY, with_keyset=True)
        operators.impl("copy_", uncompiled(_copy_kernel()), _KEY, with_keyset=True)
        operators.impl("zeros", uncompiled(_zeros), "CPU")
    try:
        with upstream.patch_targets("program initialises", wrapped=dict.fromkeys(_INITIALISERS, initialiser)):
            yield
    finally:
        operators._destroy()
        for operator in torch._ops.get_cached_ops():  # Dynamo would call a kernel that is gone
            operator._dispatch_cache.clear()


def _real(name: str) -> Callable[..., Tensor]:
    """Torch's own kernel, to be called with the keys that its replacement was given."""
    if torch_releases.since(2, 9):
        kernel: Callable[..., Tensor] = torch.library.get_kernel(f"aten::{name}", "CPU").call_boxed
        return kernel
    operator, above = getattr(torch.ops.aten, name), torch._C.DispatchKey.BackendSelect
    return lambda keys, *arguments, **named: operator.default.redispatch(keys.remove(above), *arguments, **named)


def _copy_kernel() -> Callable[..., Tensor]:
    real, computes_values = _real("copy_"), library.load().paper_computes_values

    def copy(keys: Any, tensor: Tensor, source: Any, non_blocking: bool = False) -> Tensor:
        if not isinstance(source, Tensor):  # a number that is assigned comes as one
            source = torch.scalar_tensor(source, dtype=tensor.dtype)
        if computes_values():
            return real(keys, tensor, source, non_blocking)
        if _is_tensor_unwritten(source) and _is_tensor_unwritten(tensor):
            return tensor
        return real(keys, tensor, source, non_blocking)

    return copy


def _has_memory(tensor: Tensor) -> bool:
    """On the host. What a compiler traces, which comes here too before torch 2.9, has none, and symbols for sizes."""
    is_traced = isinstance(tensor, FakeTensor) or torch._is_functional_tensor(tensor)
    return tensor.device.type == "cpu" and not is_traced


def _is_left_out(tensor: Tensor) -> bool:
    """Whether it keeps what it has where it would be initialised."""
    is_number = _has_memory(tensor) and tensor.is_floating_point()
    return is_number and tensor.untyped_storage().nbytes() >= LARGE_BYTES


def _is_tensor_unwritten(tensor: Tensor) -> bool:
    is_large = _has_memory(tensor) and tensor.nbytes >= LARGE_BYTES
    return is_large and UnwrittenMemory().holds(tensor.untyped_storage())


def _zeros(size: Sequence[int], **options: Any) -> Tensor:
    made = torch.empty(size, **options)
    return made if made.untyped_storage().nbytes() >= LARGE_BYTES else made.zero_()


_ZEROS = 1 << 20
"""Written at a time."""
_SAVED = "what lies on the device is saved as nothing: a checkpoint has its structure and its size, but no values"


@contextmanager
def on_paper(assumptions: Assumptions) -> Iterator[None]:
    """Inside, storages of a CUDA device are copied to the host, and written as holes."""
    # Storages of the host that stand for device storages on their way into a file.
    copies: weakref.WeakValueDictionary[int, torch.UntypedStorage] = weakref.WeakValueDictionary()

    def copying(real: Callable[..., Any]) -> Callable[..., Any]:
        def cpu(storage: torch.UntypedStorage) -> Any:
            if storage.device.type != "cuda":
                return real(storage)
            assumptions.add(About.HOST, _SAVED)
            copied = torch.UntypedStorage(storage.nbytes())
            library.load().paper_write_zeros(copied._cdata)
            copies[id(copied)] = copied
            return copied

        return cpu

    def saving(real: Callable[..., Any]) -> Callable[..., Any]:
        def is_hole(storage: Any) -> bool:
            if copies.get(id(storage)) is storage:
                return True
            return isinstance(storage, torch.UntypedStorage) and UnwrittenMemory().holds(storage)

        def save(content: Any, archive: Any, *arguments: Any, **named: Any) -> Any:
            return real(content, _Archive(archive, is_hole), *arguments, **named)

        return save

    def seeking(real: Callable[..., Any]) -> Callable[..., Any]:
        # An archive writer for streams whose holes are seeked over, also where the stream itself cannot be.
        def init(writer: Any, buffer: Any) -> None:
            can_seek = getattr(buffer, "seekable", lambda: True)()
            real(writer, buffer if can_seek or not hasattr(buffer, "write") else _Stream(buffer))

        return init

    wrapped = {
        "torch:UntypedStorage.cpu": copying,
        "torch.serialization:_save": saving,
        "torch.serialization:_open_zipfile_writer_buffer.__init__": seeking,
    }
    with upstream.patch_targets("program storages", replaced={"torch:UntypedStorage.__new__": _make}, wrapped=wrapped):
        yield


def _make(cls: Any, *arguments: Any, device: Any = None, **named: Any) -> Any:
    """Of the host: `UntypedStorage(bytes)` passes by the allocator that is heard of (torch/csrc/Storage.cpp,
    `GetDefaultCPUAllocator`)."""
    first = arguments[0] if arguments else named.get("size", 0)
    is_on_host = device is None or torch.device(device).type == "cpu"
    if is_on_host and isinstance(first, int) and cls is torch.UntypedStorage:
        made = torch.empty(first, dtype=torch.uint8, device="cpu")
        if type(made) is torch.Tensor:  # not one of a mode in which tensors have no memory
            return made.untyped_storage()
    given = named if device is None else {**named, "device": device}
    return torch._C.StorageBase.__new__(cls, *arguments, **given)


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
    """Inside, safetensors files have holes, and torch's own are mapped when they are loaded. `saves` is called for each
    safetensors file; `as_if_read` stands around each loading that the program did not ask to be mapped."""

    def write(_real: Any) -> Any:
        def serialize_file(tensors: Mapping[str, Any], filename: Any, metadata: Any = None) -> None:
            saves()
            _write_safetensors(tensors, filename, metadata)

        return serialize_file

    def load(real: Callable[..., Any]) -> Callable[..., Any]:
        def mapping(file: Any, *arguments: Any, **options: Any) -> Any:
            if options.get("mmap") is None and _can_be_mapped(file):
                with as_if_read():
                    return real(file, *arguments, **{**options, "mmap": True})
            return real(file, *arguments, **options)

        return mapping

    wrapped = {"safetensors.torch:serialize_file": write, "torch:load": load}
    with upstream.patch_targets("program checkpoints", wrapped=wrapped):
        yield


def _write_safetensors(tensors: Mapping[str, Any], filename: Any, metadata: Any) -> None:
    """As safetensors 0.8: larger elements first, then by name."""

    def element_bytes(tensor: Any) -> int:
        count = math.prod(tensor.shape)
        return tensor.data_len // count if count else 0

    names = sorted(tensors, key=lambda name: (-element_bytes(tensors[name]), name))
    header: dict[str, Any] = {"__metadata__": dict(metadata)} if metadata else {}
    start = 0
    for name in names:
        tensor, end = tensors[name], start + tensors[name].data_len
        header[name] = {"dtype": tensor.dtype, "shape": list(tensor.shape), "data_offsets": [start, end]}
        start = end
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % _ALIGNMENT)
    with open(filename, "wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        for name in names:
            address, size = tensors[name].data_ptr, tensors[name].data_len
            if UnwrittenMemory().has(address, size):
                file.seek(size, os.SEEK_CUR)
            elif size:
                file.write((ctypes.c_char * size).from_address(address))
        file.truncate()


def _can_be_mapped(file: Any) -> bool:
    if not isinstance(file, str | os.PathLike):
        return False
    path = os.fspath(file)
    return os.path.isfile(path) and os.path.getsize(path) >= LARGE_BYTES and zipfile.is_zipfile(path)
