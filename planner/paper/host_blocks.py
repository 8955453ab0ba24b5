"""Blocks of the host's memory that a program takes through torch, as the native library writes them down."""

from __future__ import annotations

import ctypes
import struct
from itertools import starmap
from typing import NamedTuple

import torch

from planner.paper import library


class HostRecord(NamedTuple):
    """A block was taken (1), or given up (0): then it has no bytes, and `pinned` says nothing."""

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
        count: int = self._native.paper_host_count()
        return count

    def block_of(self, tensor: torch.Tensor) -> int | None:
        """The block behind a tensor of the host; None for one that was not written down, or that wraps others."""
        local = getattr(tensor, "_local_tensor", tensor)
        if type(local) not in (torch.Tensor, torch.nn.Parameter):
            return None
        if local.device.type != "cpu" or local.layout is not torch.strided:
            return None
        block: int = self._native.paper_host_block_at(local.untyped_storage().data_ptr())
        return block if block >= 0 else None

    def records(self, until: int) -> list[HostRecord]:
        """Everything since `start`, up to a moment."""
        record = struct.Struct(self._native.paper_host_record_format().decode())
        count = min(until, self.now())
        if not count:
            return []
        content = ctypes.string_at(self._native.paper_host_records(), count * record.size)
        return list(starmap(HostRecord, record.iter_unpack(content)))
