"""The one event vocabulary between the paper GPU, recorded snapshots and the allocator.

Events are what a caching allocator is told, in the order in which it is told. A block is named by an
integer that is never used twice within one sequence of events. Nobody parses a string back: what
is known about a block travels as an :class:`Origin` or as a :class:`Role`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

from planner.step_work import Launch


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
    CHECKPOINT_SAVE = "checkpoint_save"
    EVAL = "eval"
    GENERATE = "generate"
    WEIGHT_SYNC = "weight_sync"
    ROLLOUT = "rollout"
    REFERENCE_FORWARD = "reference_forward"
    REWARD_FORWARD = "reward_forward"


BETWEEN_ITERATIONS = (
    Phase.LOAD, Phase.CHECKPOINT_LOAD, Phase.CHECKPOINT_SAVE, Phase.EVAL, Phase.GENERATE,
)  # fmt: skip
"""They belong to the iteration that is over; the others to the one that follows."""

TIMING = "inductor.timing"
"""The operator of blocks that only a run whose Inductor has an empty cache takes."""


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
    pool: int = 0
    """The private pool of a CUDA graph; 0: the pool of all."""


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
class Keep:
    """The collective whose end is the event `collective` keeps the block, which cannot be given up before it is let go
    of (NCCL's groups since torch 2.8)."""

    block: int
    collective: int


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


Event = Alloc | Free | Use | FreeCompleted | Synchronize | EmptyCache | Role | Mark | Keep | Launch
"""Launches and `Keep` stand only in traces in which it matters when the GPU passes something: planner.timing knows the
times of a GPU and makes events of these that an allocator is told."""


@dataclass(frozen=True, slots=True)
class Repeat:
    """The events from `first` to before `after` happen `times` more times after `after`, where nobody wrote them.

    Such a stretch leaves as much as it finds: it frees every block allocated in it, except its heirs. Of those,
    (found, left), `left` is at its end what `found` was at its beginning, and the next repetition gives it up where
    the first gave up `found`. What is written after a repetition names by `left` what the last repetition left.
    """

    first: int
    after: int
    times: int
    iterations: int = 0
    """How many iterations one repetition is."""
    heirs: tuple[tuple[int, int], ...] = ()

    def pass_on(self, names: Mapping[int, int], born: Mapping[int, int]) -> dict[int, int]:
        """How the next repetition calls what it finds: `names` is how this one did, `born` its own blocks."""
        return {found: born.get(left, names.get(left, left)) for found, left in self.heirs}

    def left_names(self, names: Mapping[int, int], born: Mapping[int, int]) -> dict[int, int]:
        """How what is written afterwards is called, if this repetition was the last."""
        return {left: born.get(left, names.get(left, left)) for _, left in self.heirs}


def rename_blocks(event: Event, names: Mapping[int, int], iterations: int = 0) -> Event:
    """The event with other blocks, so many iterations later; a block without a new name keeps its own."""
    # Most of the time of writing repetition out goes here: exact types are the fastest question.
    kind = type(event)
    if kind is Launch:
        return event
    if kind is Alloc:
        return Alloc(names[event.block], event.requested_bytes, event.stream, event.origin, event.pool)  # type: ignore[union-attr]
    if kind is Free:
        return Free(names.get(event.block, event.block))  # type: ignore[union-attr]
    if kind is Keep:
        return Keep(names.get(event.block, event.block), event.collective)  # type: ignore[union-attr]
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


def copy_stretch(
    stretch: Sequence[Event], unused: int, iterations: int = 0, names: Mapping[int, int] | None = None
) -> tuple[list[Event], dict[int, int]]:
    """The stretch once more, with blocks named from `unused` on, others as `names` says; and the names of its own."""
    born = [event.block for event in stretch if isinstance(event, Alloc)]
    own = dict(zip(born, range(unused, unused + len(born)), strict=True))
    every = {**names, **own} if names else own
    return [rename_blocks(event, every, iterations) for event in stretch], own


def write_out_repeats(events: Sequence[Event], repeats: Sequence[Repeat]) -> Iterator[Event]:
    """Everything that happens, one event after the other. `repeats` come in order and do not overlap."""
    unused, written = first_unused_block(events), 0
    now: dict[int, int] = {}
    for repeat in repeats:
        yield from rename_all(events[written : repeat.after], now)
        stretch = events[repeat.first : repeat.after]
        names: Mapping[int, int] = now
        own: Mapping[int, int] = {}
        for time in range(1, repeat.times + 1):
            names = {**now, **repeat.pass_on(names, own)}
            copied, own = copy_stretch(stretch, unused, time * repeat.iterations, names)
            unused += len(own)
            yield from copied
        now = {**now, **repeat.left_names(names, own)}
        written = repeat.after
    yield from rename_all(events[written:], now)


def rename_all(events: Sequence[Event], names: Mapping[int, int]) -> Iterable[Event]:
    """The events with other blocks; those without a new name keep their own."""
    if not names:
        return events
    return (event if isinstance(event, Alloc) else rename_blocks(event, names) for event in events)
