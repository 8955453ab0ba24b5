"""Cuts traces into stretches by steps, compares what they do, and follows their blocks' sizes by length."""

from __future__ import annotations

import math
from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import IntEnum, StrEnum
from fractions import Fraction

from planner.events import Alloc, EmptyCache, Event, Free, FreeCompleted, Mark, Origin, Phase, Synchronize, Use
from planner.job.sampled_runs import Steps


class Place(StrEnum):
    """Where in a step a stretch belongs: in an accumulation gradients are born in the first micro-batch, and reduced
    in the last."""

    FIRST = "first"
    MIDDLE = "middle"
    LAST = "last"
    STEP = "step"
    """The optimizer's, to the end of the iteration."""


_PLACES = {1: (Place.LAST,), 2: (Place.FIRST, Place.LAST), 3: (Place.FIRST, Place.MIDDLE, Place.LAST)}
"""By the number of micro-batches that are traced of a step."""


@dataclass(frozen=True, slots=True)
class Stretch:
    """Events between two moments. `inherited` are the blocks that others left for it, by their age, without those that
    stay for good; `left` are the blocks that it leaves so."""

    events: tuple[Event, ...]
    inherited: tuple[int, ...]
    left: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class TracedRun:
    """The parts of a trace: what happened `before` the steps that are alike, one stretch for each place and length,
    what happened `after` the last step, and which blocks stood in between where steps began."""

    before: tuple[Event, ...]
    stretches: Mapping[Place, Mapping[int, Stretch]]
    standing: tuple[int, ...]
    after: Stretch


def places_of(micro_batches: int) -> tuple[Place, ...]:
    """Of each micro-batch of a step with so many, and of its end."""
    if micro_batches <= 2:
        return (*_PLACES[micro_batches], Place.STEP)
    return (Place.FIRST, *[Place.MIDDLE] * (micro_batches - 2), Place.LAST, Place.STEP)


def cut_run(events: Sequence[Event], steps: Steps, first_steps: int) -> TracedRun:
    """The parts of a trace of these steps, of which the first do what later ones do not; the last is only there to give
    up what the one before it left. Raises ValueError for a trace of other steps."""
    # By iteration, where its micro-batches and its optimizer's step begin.
    starts: dict[int, list[int]] = {}
    for index, event in enumerate(events):
        if isinstance(event, Mark) and event.phase in (Phase.FORWARD, Phase.OPTIMIZER_STEP):
            starts.setdefault(event.iteration, []).append(index)
    if any(len(starts.get(number, ())) != len(step) + 1 for number, step in enumerate(steps, 1)):
        raise ValueError("the trace has other steps than its job")
    begins, last = starts[first_steps + 1][0], starts[len(steps)][0]
    over = next(
        (index for index in range(starts[len(steps)][-1] + 1, len(events)) if isinstance(events[index], Mark)), None
    )
    end = len(events) if over is None else over
    cuts = sorted({start for number in range(first_steps + 1, len(steps) + 1) for start in starts[number]} | {end})
    alive = alive_at(events, cuts)
    staying = alive[begins].keys() & alive[last].keys()

    def stretch(first: int, after: int) -> Stretch:
        inherited = tuple(block for block in alive[first] if block not in staying)
        left = tuple(block for block in alive.get(after, {}) if block not in staying)
        return Stretch(tuple(events[first:after]), inherited, left)

    stretches: dict[Place, dict[int, Stretch]] = {place: {} for place in places_of(len(steps[0]))}
    for number in range(first_steps + 1, len(steps)):
        following = (*starts[number][1:], starts[number + 1][0])
        for place, first, after in zip(places_of(len(steps[0])), starts[number], following, strict=True):
            stretches[place][steps[number - 1][0]] = stretch(first, after)
    standing = tuple(block for block in alive[begins] if block not in staying)
    return TracedRun(tuple(events[:begins]), stretches, standing, stretch(end, len(events)))


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


def kinds_left(stretch: Stretch) -> list[tuple[str, str]]:
    """Operator and dtype of each block that it leaves, where it was made in it; else nothing is known of it."""
    made = {event.block: event.origin or Origin() for event in stretch.events if isinstance(event, Alloc)}
    return [(made[block].op, made[block].dtype) if block in made else ("", "") for block in stretch.left]


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

    @property
    def is_constant(self) -> bool:
        """The same at every length."""
        return not (self.linear or self.square)

    def at(self, length: int) -> int:
        """Bytes at this length; a broken number of them, which no traced length has, is rounded up."""
        x = -(-length // self.padding) * self.padding
        size = math.ceil(self.constant + x * (self.linear + x * self.square))
        return size if self.most is None else min(size, self.most)


@dataclass(frozen=True, slots=True)
class Between:
    """Bytes on straight lines between the traced lengths, or, where those do not lie on such lines, the bytes of the
    next longer one."""

    lengths: Sequence[int]
    sizes: Sequence[int]
    straight: bool

    def at(self, length: int) -> int:
        """Bytes at this length, of a shorter one than all that were traced those of the shortest, of a longer one those
        of the longest."""
        length = min(max(length, self.lengths[0]), self.lengths[-1])
        after = bisect_left(self.lengths, length)
        if not self.straight or self.lengths[after] == length:
            return self.sizes[after]
        return math.ceil(_on_line(self.lengths, self.sizes, after - 1, after, length))


_NEARLY = Fraction(1, 1000)
"""How far a size may be from the line between its neighbours: kernels that work in pieces round their number up."""
_FEWEST_STRAIGHT = 4


def between(lengths: Sequence[int], sizes: Sequence[int]) -> Between:
    """Sizes that no rule tells. They are taken to be straight between if every traced one but the outermost is nearly
    on the line between its neighbours."""
    off = off_line(lengths, sizes)
    straight = len(lengths) >= _FEWEST_STRAIGHT and all(
        difference <= _NEARLY * size for difference, size in zip(off, sizes[1:-1], strict=True)
    )
    return Between(lengths, sizes, straight)


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


@dataclass(slots=True)
class ByLength:
    """A stretch at any length: as it was traced, with sizes that follow from the traced ones, or else as the next
    longer traced one.

    Sizes follow from `ruled_from` tokens on, where all traced lengths do the same with blocks of other sizes.
    """

    traced: Mapping[int, Sized]
    ruled_from: int = 0
    inexact: Counter[str] = field(default_factory=Counter)
    """Of the sizes that no rule tells how many are `straight` between the traced ones, and how many are those of the
    `next` longer one."""
    _rules: Sequence[SizeRule | Between] = ()
    _made: dict[int, Sized] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._made = dict(self.traced)
        lengths = sorted(self.traced)
        longest = self.traced[lengths[-1]].pattern
        other = next((length for length in reversed(lengths) if self.traced[length].pattern != longest), 0)
        alike = [length for length in lengths if length > other]
        self.ruled_from = alike[0]
        columns = zip(*(self.traced[length].sizes for length in alike), strict=True)
        self._rules = [rule_of(alike, column) or between(alike, column) for column in columns]
        self.inexact = Counter(
            "straight" if rule.straight else "next" for rule in self._rules if isinstance(rule, Between)
        )

    def at(self, length: int) -> Sized:
        """The stretch at this length, no longer than the longest that was traced."""
        stretch = self._made.get(length)
        if stretch is None and length < self.ruled_from:
            stretch = self.traced[min(known for known in self.traced if known >= length)]
        elif stretch is None:
            stretch = Sized(self.traced[max(self.traced)].pattern, [rule.at(length) for rule in self._rules])
        self._made[length] = stretch
        return stretch
