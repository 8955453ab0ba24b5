"""Memory of the host on paper: blocks as the native library tells them, and large tensors that are never written."""

from __future__ import annotations

import ctypes
import struct
from collections.abc import Callable, Sequence
from itertools import starmap
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from planner.paper import library
from planner.paper.native_records import inner_tensors


class HostRecord(NamedTuple):
    """A block was taken (1) or freed (0): then it has no bytes, and `pinned` says nothing."""

    taken: int
    pinned: int
    block: int
    bytes: int


class HostBlocks:
    """Every storage that torch makes on the CPU or in pinned memory, in the order in which it is taken and freed.

    An allocator around the CPU's own hears of each, written or not. Memory of numpy, of files that are mapped and of
    other libraries is not torch's. Positions (`now`) are counts of records.
    """

    def __init__(self) -> None:
        self._native = library.load()

    def start(self, smallest_bytes: int) -> bool:
        """From here on blocks of this size or more are written down; False where the CPU's allocator is another one
        than torch's own, whose blocks cannot be followed."""
        return bool(self._native.paper_host_start(smallest_bytes))

    def stop(self) -> None:
        self._native.paper_host_stop()

    def now(self) -> int:
        """How much has happened since `start`."""
        return int(self._native.paper_host_count())

    def blocks_of(self, tensor: torch.Tensor) -> list[int]:
        """The blocks behind a tensor of the host that were written down; none for one that wraps others unseen."""
        parts = (part for part in inner_tensors(tensor) if type(part) in (torch.Tensor, torch.nn.Parameter))
        on_host = (part for part in parts if part.device.type == "cpu" and part.layout is torch.strided)
        blocks = (self._native.paper_host_block_at(part.untyped_storage().data_ptr()) for part in on_host)
        return [int(block) for block in blocks if block >= 0]

    def records(self, until: int) -> list[HostRecord]:
        """Everything since `start`, up to a moment."""
        record = struct.Struct(self._native.paper_host_record_format().decode())
        count = min(until, self.now())
        if not count:
            return []
        content = ctypes.string_at(self._native.paper_host_records(), count * record.size)
        return list(starmap(HostRecord, record.iter_unpack(content)))


_LARGE_BYTES = 64 << 20
"""Below that a program gets what it asked for."""


class UntouchedHost(TorchFunctionMode):
    """Inside, large tensors of the host are not filled, copied or computed with."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        named = kwargs or {}
        instead = _INSTEAD.get(func)
        if instead is not None and _is_large(args[0]):
            return instead(func, *args, **named)
        if func is torch.full and named.get("fill_value") == 0:
            return torch.zeros(*args, **{name: value for name, value in named.items() if name != "fill_value"})
        return func(*args, **named)


def _is_large(tensor: Any) -> bool:
    """Or a part of a large one, or several that are large together."""
    if isinstance(tensor, list | tuple):
        on_host = all(isinstance(part, Tensor) and part.device.type == "cpu" for part in tensor)
        return on_host and sum(part.nbytes for part in tensor) > _LARGE_BYTES
    if not isinstance(tensor, Tensor) or tensor.device.type != "cpu":
        return False
    return tensor.untyped_storage().nbytes() > _LARGE_BYTES


def _move_tensor(func: Any, tensor: Tensor, *args: Any, **options: Any) -> Any:
    """To a device as ever; within the host, to memory of the dtype that was asked for."""
    to = torch.empty(0, dtype=tensor.dtype).to(*args, **options)
    if to.device.type != "cpu":
        return func(tensor, *args, **options)
    return tensor if to.dtype == tensor.dtype else torch.empty(tensor.shape, dtype=to.dtype)


def _join_tensors(_func: Any, tensors: Sequence[Tensor]) -> Tensor:
    return torch.empty(sum(tensor.numel() for tensor in tensors), dtype=tensors[0].dtype)


_INSTEAD: dict[Any, Callable[..., Any]] = {
    Tensor.clone: lambda _func, tensor, *_args, **_options: torch.empty_like(tensor),
    Tensor.to: _move_tensor,
    torch._C._nn.flatten_dense_tensors: _join_tensors,
    **dict.fromkeys(
        (Tensor.copy_, Tensor.div_, Tensor.fill_, Tensor.mul_, Tensor.zero_),
        lambda _func, tensor, *_args, **_options: tensor,
    ),
    **dict.fromkeys(
        (torch.isinf, torch.isnan), lambda _func, _tensor, *_args, **_options: torch.zeros(1, dtype=torch.bool)
    ),
}
