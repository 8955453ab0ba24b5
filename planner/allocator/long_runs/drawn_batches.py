"""Composes the steps of a program over all batches of its data, in their order, from the few steps that were run.

A step depends on the extents of its batch, and on those of the next one where that is moved to the GPU at its end.
Which bytes follow which extents is found by comparing the steps that were run.
"""

from __future__ import annotations

import math
from bisect import bisect
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import cache
from itertools import combinations, combinations_with_replacement, cycle, pairwise

from planner.allocator.long_runs.replayed_run import Part, PartedRun
from planner.allocator.long_runs.stretches import (
    Between,
    Deed,
    Pattern,
    Place,
    Sized,
    SizeRule,
    Stretch,
    off_line,
    pattern_of,
    places_of,
    rule_of,
    saturated_rule_of,
)
from planner.events import Alloc, Event, Free, FreeCompleted, Mark, Origin, Phase, Synchronize, Use

Extents = tuple[int, ...]
"""Of a batch, those that are not the same in all batches."""

_FIRST = 2
"""Iterations that do what later ones do not: optimizer state is born, buckets are made anew."""
_FEWEST = 4
"""Sizes of steps that do the same: two points decide a line, and more tell it from chance."""
_MOST_AHEAD = 2
"""Batches that a program may take before those that it trains on."""
_MOST_EXTENTS = 6
_PADDINGS = (1, 8, 16)
"""Of a length that stands beside the unpadded one: masks of attention, and their gradients."""
_MOST_OFF = 0.05
"""Of the bytes of a step, where sizes follow no rule and are interpolated: with more it is not composed."""
_MOST_KEPT = 0.1
"""Blocks that are kept for several steps, all of them together, beside the largest of all blocks."""
_MOST_UNKNOWN = 0.1
"""Of batches, those near which steps did something that too few others did."""


class CannotComposeError(Exception):
    """The steps that were run do not tell what others do; why, as a clause."""


def compose_batches(
    events: Sequence[Event],
    given: Sequence[Extents],
    order: Sequence[Extents],
    most_steps: int = 0,
    *,
    micro_batches: int = 0,
) -> PartedRun:
    """The run over all batches of `order`, of which the program was `given` the first few, and then others; of no more
    than `most_steps`, if it is not 0.

    `micro_batches`: of an iteration of the whole run, if those that were run have fewer. Raises CannotComposeError.
    """
    if len(order[0]) > _MOST_EXTENTS:
        raise CannotComposeError(f"batches vary in {len(order[0])} ways")
    if not any(isinstance(event, Use) for event in events):  # nothing is waited for
        events = [event for event in events if not isinstance(event, Synchronize)]
    events = _leave_out_kept(events, *_find_starts(events, len(given)))
    events = _free_leftovers(events, *_find_starts(events, len(given)))
    starts, per_iteration = _find_starts(events, len(given))
    places = places_of(per_iteration)
    units = _leave_alike(list(_cut_units(events, starts, places)), places)
    first = next(unit for unit in units if unit.place is places[0])
    found = {
        ahead: {place: _Doing.of([unit for unit in units if unit.place is place], given[ahead:]) for place in {*places}}
        for ahead in range(min(_MOST_AHEAD, len(given) - len(starts)) + 1)
    }
    ahead = min(found, key=lambda ahead: max(doing.off for doing in found[ahead].values()))
    by_place = found[ahead]
    _, iteration = starts[first.number]
    whole = places_of(micro_batches or per_iteration)
    batches = order[(iteration - 1) * len(whole) + ahead if micro_batches else first.number + ahead :]
    for doing in by_place.values():
        doing.check(batches)
    seen = [given[unit.number + ahead] for unit in units]
    if any(
        extent > max(every) for extent, every in zip(map(max, *order, order[0]), zip(*seen, strict=True), strict=True)
    ):
        raise CannotComposeError("larger batches come than were run")
    parts = [
        (place, own, following if by_place[place].hangs_on_next else own)
        for place, (own, following) in zip(cycle(whole), pairwise((*batches, *batches[-1:])), strict=False)
    ]
    steps: list[Sequence[Part]] = [*zip(*(parts[place :: len(whole)] for place in range(len(whole))), strict=False)]
    return PartedRun(
        before=tuple(events[: first.start]),
        standing=first.inherited,
        steps=steps[: max(most_steps - iteration + 1, 0)] if most_steps else steps,
        stretch_at=lambda part: by_place[part[0]].at(part[1], part[2]),
        off=max(doing.off for doing in by_place.values()),
    )


@dataclass(frozen=True, slots=True)
class _Unit:
    """What was done with one batch: from its forward to the next. `start` is the index of its first event."""

    number: int
    place: Place
    start: int
    inherited: tuple[int, ...]
    sized: Sized

    @property
    def ends(self) -> tuple[int, int]:
        """How many blocks it finds, and how many it leaves."""
        return self.sized.pattern.inherited, len(self.sized.pattern.left)


def _find_starts(events: Sequence[Event], given: int) -> tuple[list[tuple[int, int]], int]:
    """Where what is done with each batch begins, with the iteration; and how many batches an iteration has."""
    forwards = [
        (index, event.iteration)
        for index, event in enumerate(events)
        if isinstance(event, Mark) and event.phase is Phase.FORWARD
    ]
    iterations = [*{iteration: (index, iteration) for index, iteration in reversed(forwards)}.values()][::-1]
    for starts in (forwards, iterations):
        *counts, _ = [*Counter(iteration for _, iteration in starts).values(), 0][:-1] or [0]
        if len(starts) <= given <= len(starts) + 1 + _MOST_AHEAD and len(set(counts)) == 1:
            return starts, counts[0]
    raise CannotComposeError("its batches are not used one by one")


def _leave_out_kept(events: Sequence[Event], starts: Sequence[tuple[int, int]], per_iteration: int) -> Sequence[Event]:
    """The events without small blocks that one step makes and a much later one frees, and others of their kind: losses
    that are logged now and then."""
    cuts = [index for index, _ in starts]
    born = {event.block: (index, event) for index, event in enumerate(events) if isinstance(event, Alloc)}
    kept = [
        born[event.block][1]
        for index, event in enumerate(events)
        if isinstance(event, Free)
        and cuts[0] <= born[event.block][0] < index < cuts[-1]
        and bisect(cuts, index) - bisect(cuts, born[event.block][0]) > per_iteration
    ]
    largest = max(event.requested_bytes for _, event in born.values())
    if sum(event.requested_bytes for event in kept) > _MOST_KEPT * largest:
        return events
    kinds = {(event.origin, event.requested_bytes) for event in kept}
    left_out = {
        block
        for block, (index, event) in born.items()
        if index >= cuts[0] and (event.origin, event.requested_bytes) in kinds
    }
    return [event for event in events if getattr(event, "block", -1) not in left_out] if kinds else events


def _free_leftovers(events: Sequence[Event], starts: Sequence[tuple[int, int]], per_iteration: int) -> Sequence[Event]:
    """The events, with what the first iterations leave and no next one frees given up at their end: a bucket that DDP
    has made anew waits until NCCL's watchdog looks, whenever that is."""
    cuts = [index for index, iteration in starts if iteration > _FIRST]
    if len(cuts) <= per_iteration:
        return events
    first, second = cuts[0], cuts[per_iteration]
    early = {event.block for event in events[:first] if isinstance(event, Alloc)}
    late = {event.block for event in events[second:] if isinstance(event, Free) and event.block in early}
    leftovers = [event for event in events[first:] if getattr(event, "block", -1) in late]
    others = [event for event in events[first:] if getattr(event, "block", -1) not in late]
    return [*events[:first], *leftovers, *others] if late else events


def _cut_units(events: Sequence[Event], starts: Sequence[tuple[int, int]], places: Sequence[Place]) -> Iterator[_Unit]:
    """Those after the first iterations, but for the last one, which was seen in part."""
    first = next((number for number, (_, iteration) in enumerate(starts) if iteration > _FIRST), len(starts))
    cuts = [index for index, _ in starts[first:]]
    if len(cuts) <= _FEWEST:
        raise CannotComposeError(f"{max(len(cuts) - 1, 0)} steps were run that are like all others")
    touched: dict[int, int] = {}
    freed: dict[int, int] = {}
    kinds: dict[int, tuple[str, str, str]] = {}
    for index, event in enumerate(events):
        if isinstance(event, Alloc):
            origin = event.origin or Origin()
            kinds[event.block] = (origin.module, origin.op, origin.dtype)
        elif isinstance(event, Free):
            touched[event.block] = freed[event.block] = index
        elif isinstance(event, Use | FreeCompleted):
            touched[event.block] = index
    standing: dict[int, None] = {}
    found: list[tuple[int, ...]] = []
    """At each cut what is touched after it, but for what stays for good; gradients may be older or younger than what
    else accumulates."""
    for before, cut in pairwise((0, *cuts)):
        standing |= {event.block: None for event in events[before:cut] if isinstance(event, Alloc)}
        standing = {block: None for block in standing if touched.get(block, -1) >= cut}
        if not found:
            standing = {block: None for block in standing if freed.get(block, cuts[-1]) < cuts[-1]}
        found.append(tuple(sorted(standing, key=kinds.__getitem__)))
    for at, (start, end) in enumerate(pairwise(cuts)):
        stretch = Stretch(tuple(events[start:end]), found[at], found[at + 1])
        number = first + at
        yield _Unit(number, places[number % len(places)], start, found[at], pattern_of(stretch))


def _leave_alike(units: Sequence[_Unit], places: Sequence[Place]) -> list[_Unit]:
    """Those that find and leave as many blocks as most others at their place: what is done now and then is left out."""
    most: dict[Place, tuple[int, int]] = {}
    for (place, ends), _ in Counter((unit.place, unit.ends) for unit in units).most_common():
        most.setdefault(place, ends)
    for place, following in pairwise((*places, places[0])):
        if most[place][1] != most[following][0]:
            raise CannotComposeError("steps leave other blocks than they find")
    return [unit for unit in units if most[unit.place] == unit.ends]


@dataclass(frozen=True, slots=True)
class _Alike:
    """Units that do the same with blocks of other sizes, which follow the extents of their batches and the next."""

    pattern: Pattern
    rules: Sequence[tuple[int, SizeRule | Between]]
    """Each with the product of extents (`_products`) that it is of."""
    rule_of_blocks: Sequence[int]
    batches: frozenset[Extents]
    off: float
    """By how much the bytes of a unit may be off, relative."""

    @classmethod
    def of(cls, units: Sequence[_Unit], batches: Sequence[Extents]) -> _Alike:
        """By what these units took; `batches` are those of all units."""
        products = [_products(*batches[unit.number : unit.number + 2]) for unit in units]
        columns = list(zip(*(unit.sized.sizes for unit in units), strict=True))
        numbers = {column: number for number, column in enumerate(dict.fromkeys(columns))}
        own = frozenset(batches[unit.number] for unit in units)
        found = [_find_rule(products, column, only_known=len(own) < _FEWEST) for column in numbers]
        of_blocks = [numbers[column] for column in columns]
        largest = max(sum(unit.sized.sizes) for unit in units)
        return cls(
            units[0].sized.pattern,
            [rule for rule, _ in found],
            of_blocks,
            own,
            float(sum(found[number][1] for number in of_blocks) / max(largest, 1)),
        )

    @property
    def hangs_on_next(self) -> bool:
        """Whether sizes follow the next batch too, which is put on the GPU before the step ends."""
        own = len(_products_of(next(iter(self.batches))))
        return any(product >= own for product, _ in self.rules)

    @property
    def is_ruled(self) -> bool:
        """Whether rules were found at enough sizes, to hold at others."""
        return len(self.batches) >= _FEWEST

    def at(self, own: Extents, following: Extents) -> Sized:
        products = _products(own, following)
        sizes = [max(rule.at(products[product]), 0) for product, rule in self.rules]
        return Sized(self.pattern, [sizes[number] for number in self.rule_of_blocks])


class _Doing:
    """What is done at a place with a batch of any extents: as with the nearest that was seen."""

    def __init__(self, alike: Sequence[_Alike], off: float) -> None:
        self._alike = alike
        self.off = max((off, *(each.off for each in alike if each.is_ruled)))
        self.hangs_on_next = any(each.hangs_on_next for each in alike)
        self._nearest: dict[Extents, _Alike] = {}

    @classmethod
    def of(cls, units: Sequence[_Unit], batches: Sequence[Extents]) -> _Doing:
        """Of units that do something else, but too few for rules, those are left out that take nearly as much as the
        rules say of others, beside what the largest takes. Without rules each speaks for its own batches alone."""
        patterns: defaultdict[Pattern, list[_Unit]] = defaultdict(list)
        for unit in units:
            patterns[unit.sized.pattern].append(unit)
        groups = [(_Alike.of(each, batches), each) for each in patterns.values()]
        ruled = [alike for alike, _ in groups if alike.is_ruled]
        if not ruled:
            return cls([alike for alike, _ in groups], 0.0)
        kept, most_off = [*ruled], 0.0
        highest = max(_measure_peak(unit.sized) for unit in units)
        doing = cls(ruled, 0.0)
        for alike, few in groups:
            if alike.is_ruled:
                continue
            off = 0.0
            for unit in few:
                composed = doing.at(*batches[unit.number : unit.number + 2])
                off = max(off, abs(_measure_peak(composed) - _measure_peak(unit.sized)) / highest)
            if off > _MOST_OFF:
                kept.append(alike)
            else:
                most_off = max(most_off, off)
        return cls(kept, most_off)

    def check(self, order: Sequence[Extents]) -> None:
        """Raises CannotComposeError for batches of which it is not known what is done with them."""
        if self.off > _MOST_OFF:
            raise CannotComposeError("sizes of blocks do not follow from those of batches")
        unknown = sum(not (near := self._find(own)).is_ruled and own not in near.batches for own in order)
        if unknown and not any(alike.is_ruled for alike in self._alike):
            raise CannotComposeError("steps of other sizes do other things")
        if unknown > _MOST_UNKNOWN * len(order):
            raise CannotComposeError(f"at {unknown:,} of {len(order):,} sizes steps may do something else")

    def at(self, own: Extents, following: Extents) -> Sized:
        return self._find(own).at(own, following)

    def _find(self, own: Extents) -> _Alike:
        if own not in self._nearest:
            near = (
                (max(abs(math.log((extent + 1) / (seen + 1))) for extent, seen in zip(own, batch, strict=True)), number)
                for number, alike in enumerate(self._alike)
                for batch in alike.batches
            )
            self._nearest[own] = self._alike[min(near)[1]]
        return self._nearest[own]


def _measure_peak(unit: Sized) -> int:
    """The most bytes of its own blocks at a time."""
    sizes, first = unit.sizes, unit.pattern.inherited
    held = peak = 1
    made = iter(sizes)
    for deed, block, _, _ in unit.pattern.steps:
        if deed is Deed.ALLOC:
            held += next(made)
            peak = max(peak, held)
        elif deed is Deed.FREE and block >= first:
            held -= sizes[block - first]
    return peak


def _products(own: Extents, following: Extents | None = None) -> list[int]:
    """Of the extents of one batch with each other, one of them padded, and the same of the next; squares of one extent
    are left to rules."""
    return [product for batch in (own, following or own) for product in _products_of(batch)]


@cache
def _products_of(batch: Extents) -> list[int]:
    ways = range(len(batch))
    padded = [[-(-extent // padding) * padding for extent in batch] for padding in _PADDINGS]
    pairs = [
        first[one] * second[other]
        for first, second in ((padded[0], each) for each in padded)
        for one in ways
        for other in ways
        if one != other or first is not second
    ]
    both = [each[one] * each[other] for each in padded[1:] for one, other in combinations(ways, 2)]
    three = [combination for combination in combinations_with_replacement(ways, 3) if len({*combination}) > 1]
    triples = [math.prod(batch[way] for way in each) for each in three] if len(batch) <= 3 else []
    return [*batch, *pairs, *both, *triples]


def _find_rule(
    products: Sequence[Sequence[int]], sizes: Sequence[int], *, only_known: bool
) -> tuple[tuple[int, SizeRule | Between], Fraction]:
    """The first product of which these sizes follow by a rule, or else the one between which they are interpolated
    best, or that tells these very sizes best (`only_known`); and how many bytes that may be off."""
    known: list[tuple[int, list[int], list[int], int]] = []
    for product, values in enumerate(zip(*products, strict=True)):
        by_value = dict(sorted(zip(values, sizes, strict=True)))
        wrong = max(by_value[value] - size for value, size in zip(values, sizes, strict=True))
        known.append((product, [*by_value], [*by_value.values()], wrong))
    for find in (rule_of, saturated_rule_of):
        for product, at, largest, wrong in known:
            if not wrong and (rule := find(at, largest)) is not None:
                return (product, rule), Fraction(0)
    off, product = min(
        (max([Fraction(wrong), *([] if only_known else off_line(at, largest))]), product)
        for product, at, largest, wrong in known
    )
    _, at, largest, _ = known[product]
    return (product, Between(at, largest)), off
