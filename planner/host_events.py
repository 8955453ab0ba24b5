"""What a process surely holds in the host's memory, as events: the vocabulary between the step and
planner.allocator.host.

As with the device (planner.events), a block is named by an integer that is never used twice within one sequence, and
marks of phases stand between blocks. Bytes are requested bytes: planner.allocator.host rounds what is pinned.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from planner.events import Mark


class HostCategory(StrEnum):
    """What a block of the host is for."""

    PARAMETER = "parameter"
    GRADIENT = "gradient"
    OPTIMIZER_STATE = "optimizer_state"
    ACTIVATION = "activation"
    BATCH = "batch"
    """What data loaders have read ahead."""
    CHECKPOINT = "checkpoint"
    """What is read of files that are loaded, and what is gathered when a job saves."""
    PINNED_CACHE = "pinned_cache"
    """Pinned memory that was given up and that torch keeps."""
    OTHER = "other"


@dataclass(frozen=True, slots=True)
class HostAlloc:
    """The process begins to hold this."""

    block: int
    bytes: int
    category: HostCategory
    pinned: bool = False
    """By torch's CachingHostAllocator, which rounds it and keeps it when it is given up."""
    count: int = 1
    """So many of these bytes each, which come and go at once."""


@dataclass(frozen=True, slots=True)
class HostFree:
    """The process gives it up."""

    block: int


HostEvent = HostAlloc | HostFree | Mark
