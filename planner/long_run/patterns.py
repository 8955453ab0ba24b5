"""What a stretch of events does, apart from how large its blocks are and how they are called."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum

from planner.events import Alloc, EmptyCache, Free, FreeCompleted, Mark, Origin, Phase, Synchronize, Use
from planner.long_run.stretches import Stretch


class Deed(IntEnum):
    """What an allocator is asked for."""

    ALLOC = 0
    FREE = 1
    USE = 2
    COMPLETE = 3
    SYNCHRONIZE = 4
    EMPTY = 5


Step = tuple[Deed, int, int, int]
"""A deed, its block, its stream, its private pool. Blocks from 0 on are those that the stretch finds and then those
that it makes, in order; below 0, -1 - n is the block n that stays for good."""


@dataclass(frozen=True, slots=True)
class Pattern:
    """Two stretches of one pattern differ in the sizes of their blocks alone."""

    steps: tuple[Step, ...]
    found: int
    """How many blocks it finds."""
    left: tuple[int, ...]
    """The blocks that it leaves, as in a step."""
    phases: tuple[tuple[int, Phase], ...]
    """Phases, and the steps before which they begin."""


@dataclass(frozen=True, slots=True)
class Sized:
    """A pattern with the requested bytes of every block that it makes, in order."""

    pattern: Pattern
    sizes: Sequence[int]

    def phase_at(self, step: int) -> Phase:
        """The phase of a step; a stretch begins with a mark."""
        return next(phase for first, phase in reversed(self.pattern.phases) if first <= step)


def pattern_of(stretch: Stretch) -> Sized:
    """What the stretch does."""
    names = {block: number for number, block in enumerate(stretch.found)}
    steps: list[Step] = []
    sizes: list[int] = []
    phases: list[tuple[int, Phase]] = []

    def name(block: int) -> int:
        return names.get(block, -1 - block)

    for event in stretch.events:
        match event:
            case Alloc():
                names[event.block] = len(names)
                steps.append((Deed.ALLOC, names[event.block], event.stream, event.pool))
                sizes.append(event.requested_bytes)
            case Free():
                steps.append((Deed.FREE, name(event.block), 0, 0))
            case Use():
                steps.append((Deed.USE, name(event.block), event.stream, 0))
            case FreeCompleted():
                steps.append((Deed.COMPLETE, name(event.block), 0, 0))
            case Synchronize():
                steps.append((Deed.SYNCHRONIZE, 0, 0, 0))
            case EmptyCache():
                steps.append((Deed.EMPTY, 0, 0, 0))
            case Mark():
                phases.append((len(steps), event.phase))
            case _:
                pass  # a role changes nothing for the allocator
    left = tuple(name(block) for block in stretch.left)
    return Sized(Pattern(tuple(steps), len(stretch.found), left, tuple(phases)), sizes)


def kinds_left(stretch: Stretch) -> list[tuple[str, str]]:
    """Operator and dtype of each block that it leaves, where it was made in it; else nothing is known of it."""
    made = {event.block: event.origin or Origin() for event in stretch.events if isinstance(event, Alloc)}
    return [(made[each].op, made[each].dtype) if each in made else ("", "") for each in stretch.left]
