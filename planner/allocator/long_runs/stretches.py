"""Cuts traces into stretches by steps, compares what they do, and follows their blocks' sizes by length."""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from enum import IntEnum, StrEnum
from fractions import Fraction

from planner.events import Alloc, EmptyCache, Event, Free, FreeCompleted, Mark, Phase, Synchronize, Use


class Place(StrEnum):
    """Where in a step a stretch belongs: in an accumulation gradients are born in the first micro-batch, and reduced
    in the last."""

    FIRST = "first"
    MIDDLE = "middle"
    LAST = "last"


@dataclass(frozen=True, slots=True)
class Stretch:
    """Events between two moments. `inherited` are the blocks that others left for it, by their age, without those that
    stay for good; `left` are the blocks that it leaves so."""

    events: tuple[Event, ...]
    inherited: tuple[int, ...]
    left: tuple[int, ...]


def places_of(micro_batches: int) -> tuple[Place, ...]:
    """Of each micro-batch of a step with so many."""
    if micro_batches == 1:
        return (Place.LAST,)
    return (Place.FIRST, *[Place.MIDDLE] * (micro_batches - 2), Place.LAST)


def alive_at(events: Sequence[Event], cuts: Iterable[int]) -> dict[int, dict[int, None]]:
    """The blocks that are handed out before each of these events, by their age."""
    alive: dict[int, None] = {}
    at_cuts: dict[int, dict[int, None]] = {}
    before = 0
    for cut in cuts:
        for event in events[before:cut]:
            kind = type(event)
            if kind is Alloc:
                alive[event.block] = None  # type: ignore[union-attr]
            elif kind is Free:
                alive.pop(event.block, None)  # type: ignore[union-attr]
        at_cuts[cut], before = dict(alive), cut
    return at_cuts


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
    inherited: int
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
    names = {block: number for number, block in enumerate(stretch.inherited)}
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
    return Sized(Pattern(tuple(steps), len(stretch.inherited), left, tuple(phases)), sizes)


_PADDINGS = (1, 2, 4, 8, 16, 32, 64, 128, 256)
"""Kernels pad lengths to multiples of these (torch 2.13: memory-efficient attention to 32, flash attention to 128)."""


@dataclass(frozen=True, slots=True)
class SizeRule:
    """Bytes by length: `constant + linear * x + square * x * x`, x being the length padded to a multiple."""

    padding: int
    constant: Fraction
    linear: Fraction
    square: Fraction
    most: int | None = None
    """Where it ends to rise: kernels that split their work take no more parts than the GPU runs at a time."""

    def at(self, length: int) -> int:
        """Bytes at this length; a broken number of them, which no traced length has, is rounded up."""
        x = -(-length // self.padding) * self.padding
        size = math.ceil(self.constant + x * (self.linear + x * self.square))
        return size if self.most is None else min(size, self.most)


@dataclass(frozen=True, slots=True)
class Between:
    """Bytes on straight lines between the traced lengths."""

    lengths: Sequence[int]
    sizes: Sequence[int]

    def at(self, length: int) -> int:
        """Bytes at this length, of a shorter one than all that were traced those of the shortest, of a longer one those
        of the longest."""
        length = min(max(length, self.lengths[0]), self.lengths[-1])
        after = bisect_left(self.lengths, length)
        if self.lengths[after] == length:
            return self.sizes[after]
        return math.ceil(_on_line(self.lengths, self.sizes, after - 1, after, length))


def off_line(lengths: Sequence[int], sizes: Sequence[int]) -> list[Fraction]:
    """How far each size but the outermost is from the line between its neighbours."""
    return [abs(_on_line(lengths, sizes, at - 1, at + 1, lengths[at]) - sizes[at]) for at in range(1, len(lengths) - 1)]


def _on_line(lengths: Sequence[int], sizes: Sequence[int], first: int, last: int, length: int) -> Fraction:
    slope = Fraction(sizes[last] - sizes[first], lengths[last] - lengths[first])
    return sizes[first] + slope * (length - lengths[first])


def rule_of(lengths: Sequence[int], sizes: Sequence[int]) -> SizeRule | None:
    """The rule for these sizes at these lengths, which ascend; None where none is confirmed by a length that it was not
    made of."""
    if len(set(sizes)) == 1 and len(lengths) > 1:
        return SizeRule(1, Fraction(sizes[0]), Fraction(0), Fraction(0))
    for degree in (1, 2):
        for padding in _PADDINGS:
            points = {-(-length // padding) * padding: size for length, size in zip(lengths, sizes, strict=True)}
            if len(points) < degree + 2:
                break  # a coarser one has fewer
            rule = _through(list(points.items()), degree, padding)
            if all(rule.at(length) == size for length, size in zip(lengths, sizes, strict=True)):
                return rule
    return None


def saturated_rule_of(lengths: Sequence[int], sizes: Sequence[int]) -> SizeRule | None:
    """As `rule_of`, for sizes that rise until they stay the same."""
    rising = sum(size < sizes[-1] for size in sizes)
    if {*sizes[rising:]} != {sizes[-1]} or (rule := rule_of(lengths[:rising], sizes[:rising])) is None:
        return None
    saturated = replace(rule, most=sizes[-1])
    return saturated if saturated.at(lengths[rising]) == sizes[-1] else None


def _through(points: Sequence[tuple[int, int]], degree: int, padding: int) -> SizeRule:
    """The line through the outermost points, or the parabola through them and the one in the middle."""
    (x0, y0), (x1, y1), (x2, y2) = points[0], points[-1], points[len(points) // 2]
    slope = Fraction(y1 - y0, x1 - x0)
    if degree == 1:
        return SizeRule(padding, y0 - slope * x0, slope, Fraction(0))
    square = (Fraction(y2 - y0, x2 - x0) - slope) / (x2 - x1)
    linear = slope - square * (x0 + x1)
    return SizeRule(padding, y0 - x0 * (linear + square * x0), linear, square)
