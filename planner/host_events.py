"""What a process holds in the host's memory, as events: the vocabulary between the step and planner.allocator.host.

As with the device (planner.events), a block is named by an integer that is never used twice within one sequence, and
marks of phases stand between blocks. Bytes are requested bytes: what pinned memory is rounded to is
planner.allocator.host's.
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
    """Files that are loaded, and what is gathered and written when a job saves."""
    TEMPORARY = "temporary"
    DATASET = "dataset"
    WORKER = "worker"
    """Processes of data loaders, without their batches."""
    PROCESS = "process"
    """The rank's own process: Python, PyTorch, libraries, CUDA's side of the host."""
    PINNED_CACHE = "pinned_cache"
    """Pinned memory that was given up and that torch keeps."""
    SHARED = "shared"
    """What the ranks of a node hold together, whatever it is for."""
    OTHER = "other"


class Backing(StrEnum):
    """Where a block's pages come from, and so how a node counts them."""

    OWN = "own"
    """Pages of the process itself (anonymous, pinned, or shared with its own workers): every rank has its own."""
    NODE = "node"
    """Memory that all ranks of a node share: counted once on each node."""
    FILE = "file"
    """Pages of a file that is mapped (mmap): once on each node, and given back when memory is short."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HostBlock:
    """Memory that is asked for and given up at once; `count` of them are alike."""

    bytes: int
    category: HostCategory
    pinned: bool = False
    """By torch's CachingHostAllocator, which rounds it and keeps it when it is given up."""
    backing: Backing = Backing.OWN
    name: str = ""
    """Which one it is; of what is shared, ranks with equal names share."""
    count: int = 1


@dataclass(frozen=True, slots=True)
class HostAlloc:
    """The process begins to hold this."""

    block: int
    held: HostBlock


@dataclass(frozen=True, slots=True)
class HostFree:
    """The process gives it up."""

    block: int


@dataclass(frozen=True, slots=True)
class BatchTaken:
    """A micro-batch of tensors of these bytes was taken from the data loader: what is read ahead is so large each."""

    tensors: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class LoaderStarted:
    """A data loader with workers has given its first batch, of tensors of these bytes; `ahead` more are read meanwhile.

    The batch in hand is the program's own: it is told as any block. `spawned`: workers are new interpreters, not forks.
    """

    loader: int
    workers: int
    ahead: int
    pin_memory: bool
    spawned: bool
    tensors: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class LoaderEnded:
    """Its workers and what they have read are gone."""

    loader: int


HostEvent = HostAlloc | HostFree | BatchTaken | LoaderStarted | LoaderEnded | Mark
