"""The one event vocabulary between the paper GPU, recorded snapshots and the allocator.

Events are what a caching allocator is told, in the order in which it is told. A block is named by an
integer that is never used twice within one sequence of events. Nobody parses a string back: what
is known about a block travels as an :class:`Origin` or as a :class:`Role`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
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


@dataclass(frozen=True, slots=True)
class Repeat:
    """The events from `first` to before `after` happen `times` more times after `after`, where nobody wrote them.

    Such a stretch gives up every block that is born in it, and no other: it can happen any number of times.
    """

    first: int
    after: int
    times: int


def rename_blocks(event: Event, names: Mapping[int, int], iterations: int = 0) -> Event:
    """The event with other blocks, so many iterations later; a block without a new name keeps its own."""
    # Most of the time of writing repetition out goes here: exact types are the fastest question.
    kind = type(event)
    if kind is Alloc:
        return Alloc(names[event.block], event.requested_bytes, event.stream, event.origin)  # type: ignore[union-attr]
    if kind is Free:
        return Free(names.get(event.block, event.block))  # type: ignore[union-attr]
    if isinstance(event, Role):
        return Role(names.get(event.block, event.block), event.category, event.name)
    if isinstance(event, Use):
        return Use(names.get(event.block, event.block), event.stream)
    if isinstance(event, FreeCompleted):
        return FreeCompleted(names.get(event.block, event.block))
    if isinstance(event, Mark):
        return Mark(event.phase, event.iteration + iterations)
    return event


def first_unused_block(events: Sequence[Event]) -> int:
    """A number from which on no block of these has its name."""
    return max((event.block for event in events if isinstance(event, Alloc)), default=-1) + 1


def copy_stretch(stretch: Sequence[Event], unused: int, iterations: int = 0) -> tuple[list[Event], int]:
    """The stretch once more, with blocks named from `unused` on; and what is unused then."""
    born = [event.block for event in stretch if isinstance(event, Alloc)]
    names = dict(zip(born, range(unused, unused + len(born)), strict=True))
    return [rename_blocks(event, names, iterations) for event in stretch], unused + len(born)


def write_out_repeats(events: Sequence[Event], repeats: Sequence[Repeat]) -> Iterator[Event]:
    """Everything that happens, one event after the other. `repeats` come in order and do not overlap."""
    unused, written = first_unused_block(events), 0
    for repeat in repeats:
        yield from events[written : repeat.after]
        for _ in range(repeat.times):
            copied, unused = copy_stretch(events[repeat.first : repeat.after], unused)
            yield from copied
        written = repeat.after
    yield from events[written:]
