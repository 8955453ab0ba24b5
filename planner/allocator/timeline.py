"""What a replay yields: the memory after every event, and where it ran out."""

from __future__ import annotations

from array import array
from collections.abc import Mapping
from dataclasses import dataclass

from planner.units import GIB, KIB, MIB


@dataclass(frozen=True, slots=True)
class OutOfMemory:
    """The allocation that failed, with the figures of torch.OutOfMemoryError."""

    event_index: int
    block: int
    requested_bytes: int
    allocated_bytes: int
    reserved_bytes: int
    capacity_bytes: int
    tried_bytes: int = 0
    """What was asked of the device: the size of the segment, "Tried to allocate"."""
    free_bytes: int = 0
    """What the device had left after the cache was released."""
    allowed_bytes: int | None = None
    """The limit set by `per_process_memory_fraction`."""

    def message(self) -> str:
        """The figures in the words of torch's own message (c10/cuda/CUDACachingAllocator.cpp)."""
        allowed = "" if self.allowed_bytes is None else f"{torch_size(self.allowed_bytes)} allowed; "
        unused = self.reserved_bytes - self.allocated_bytes
        return (
            f"CUDA out of memory. Tried to allocate {torch_size(self.tried_bytes)}. GPU 0 has a total capacity of "
            f"{torch_size(self.capacity_bytes)} of which {torch_size(self.free_bytes)} is free. {allowed}"
            f"Of the allocated memory {torch_size(self.allocated_bytes)} is allocated by PyTorch, "
            f"and {torch_size(unused)} is reserved by PyTorch but unallocated."
        )


@dataclass(frozen=True, slots=True)
class Timeline:
    """Bytes after each event, as `torch.cuda.memory_stats` would say; index i is the state after event i.

    After an out-of-memory the columns end with the event that failed.
    """

    requested_bytes: array[int]
    """Asked for, in blocks handed out or waiting for a stream."""
    allocated_bytes: array[int]
    """In blocks handed out, their whole size."""
    active_bytes: array[int]
    """Those, and blocks given up that wait for a stream."""
    reserved_bytes: array[int]
    """In segments; of expandable ones what is mapped."""
    block_bytes: Mapping[int, int]
    block_addresses: Mapping[int, int]
    cache_releases: int
    """How often cached segments had to be given back before an allocation could go on."""
    out_of_memory: OutOfMemory | None
    highest_reserved_bytes: int = 0
    """The most ever reserved, within events too."""

    @property
    def peak_allocated_bytes(self) -> int:
        return max(self.allocated_bytes, default=0)

    @property
    def peak_reserved_bytes(self) -> int:
        return max(self.highest_reserved_bytes, max(self.reserved_bytes, default=0))

    @property
    def peak_allocated_index(self) -> int:
        """The first event after which the allocated bytes are at their peak; -1 for no events."""
        return self.allocated_bytes.index(self.peak_allocated_bytes) if self.allocated_bytes else -1


def torch_size(count: int) -> str:
    """Bytes as torch prints them in its messages (format_size)."""
    if count <= KIB:
        return f"{count} bytes"
    if count <= MIB:
        return f"{count / KIB:.2f} KiB"
    if count <= GIB:
        return f"{count / MIB:.2f} MiB"
    return f"{count / GIB:.2f} GiB"
