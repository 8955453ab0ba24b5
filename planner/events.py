"""The one event vocabulary between the paper GPU, recorded snapshots and the allocator.

Events are what a caching allocator is told, in the order in which it is told. A block is named by an
integer that is never used twice within one sequence of events. Nobody parses a string back: what
is known about a block travels as an :class:`Origin` or as a :class:`Role`.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Category(StrEnum):
    """What a block is for; a block can change its category during its life."""

    PARAMETER = "parameter"
    GRADIENT = "gradient"
    BUCKET = "bucket"
    OPTIMIZER_STATE = "optimizer_state"
    ACTIVATION = "activation"
    TEMPORARY = "temporary"
    WORKSPACE = "workspace"
    INPUT = "input"
    COMMUNICATION = "communication"
    OTHER = "other"


class Phase(StrEnum):
    """A stretch of a training job, as people speak of it."""

    LOAD = "load"
    FORWARD = "forward"
    BACKWARD = "backward"
    OPTIMIZER_STEP = "optimizer_step"
    CHECKPOINT_LOAD = "checkpoint_load"
    EVAL = "eval"


@dataclass(frozen=True, slots=True)
class Origin:
    """Where a block was born: operator (`aten.mm`), module path, shape and dtype of its tensor."""

    op: str = ""
    module: str = ""
    shape: tuple[int, ...] = ()
    dtype: str = ""


@dataclass(frozen=True, slots=True)
class Alloc:
    """The program asks for `requested_bytes` on a stream."""

    block: int
    requested_bytes: int
    stream: int = 0
    origin: Origin | None = None


@dataclass(frozen=True, slots=True)
class Free:
    """The program gives the block up; it is free at once unless a `Use` on another stream is open."""

    block: int


@dataclass(frozen=True, slots=True)
class Use:
    """The block is used on another stream than its own (`Tensor.record_stream`)."""

    block: int
    stream: int


@dataclass(frozen=True, slots=True)
class FreeCompleted:
    """The GPU has passed every use of a block that was given up before: now it is free."""

    block: int


@dataclass(frozen=True, slots=True)
class Synchronize:
    """The host waited for the device: every open use has passed."""


@dataclass(frozen=True, slots=True)
class EmptyCache:
    """`torch.cuda.empty_cache()`: segments without a used block go back to the device."""


@dataclass(frozen=True, slots=True)
class Role:
    """From here on the block belongs to `category`; `name` says which one (a parameter's name, say)."""

    block: int
    category: Category
    name: str = ""


@dataclass(frozen=True, slots=True)
class Mark:
    """A phase begins. Iterations count from 1; 0 is before the first."""

    phase: Phase
    iteration: int = 0


Event = Alloc | Free | Use | FreeCompleted | Synchronize | EmptyCache | Role | Mark
