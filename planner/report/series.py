"""Memory over time by category, thinned to what a screen can show without losing a peak."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise

from planner.allocator.timeline import Timeline
from planner.events import Category, Event
from planner.report.attribution import HolderKey, holder_of
from planner.report.lives import lives

_PHASE, _PHASES_SHARE, _HIGHEST = 0.04, 0.5, 0.25
"""Of a picture's width: what a phase has at least, all of them together at most from that; of that, what its highest
moment has."""


@dataclass(frozen=True, slots=True)
class Series:
    """At each of the events `at`: allocated bytes by category, and reserved bytes."""

    at: tuple[int, ...]
    allocated_bytes: dict[Category, tuple[int, ...]]
    """Only categories that ever hold anything."""
    reserved_bytes: tuple[int, ...]


def thin(events: Sequence[Event], timeline: Timeline, points: int = 1200) -> Series:
    """At most `points` moments: of each stretch of equal length the one in which most is allocated.

    The sum of the categories at a moment is the allocated bytes there, to the byte.
    """
    at = moments_of(timeline.allocated_bytes, points)
    totals = {category: [0] * (len(at) + 1) for category in Category}
    for index, key, change in changes_of(events, timeline):
        totals[key.category][bisect_left(at, index)] += change
    kept = {category: tuple(accumulate(changes[:-1])) for category, changes in totals.items()}
    return Series(
        at=tuple(at),
        allocated_bytes={category: sizes for category, sizes in kept.items() if any(sizes)},
        reserved_bytes=tuple(timeline.reserved_bytes[moment] for moment in at),
    )


def moments_of(allocated: Sequence[int], points: int) -> list[int]:
    """At most `points` events: of each stretch of equal length the first in which most is allocated."""
    count = len(allocated)
    if count <= points:
        return list(range(count))
    edges = [count * each // points for each in range(points + 1)]
    return [_highest(allocated, first, last) for first, last in pairwise(edges)]


def _highest(allocated: Sequence[int], first: int, last: int) -> int:
    """Where between two moments the most is allocated, the first time."""
    part = allocated[first:last]
    return first + part.index(max(part))


class Places:
    """Where events lie on the width of a picture, from 0 to 1: a phase of few events, and the stretch for which the
    highest moment of a phase is drawn, are wider than their share of the events, or nobody would see them."""

    def __init__(self, at: Sequence[int], allocated: Sequence[int], spans: Sequence[tuple[int, int]]) -> None:
        """`allocated` are the bytes at the moments `at`; a span is a phase's first event and the one after its last."""
        highest = [_drawn_highest(at, allocated, *span) for span in spans]
        self._events = sorted({0, *(end for span in (*spans, *highest) for end in span)})
        count = max(self._events[-1], 1)
        widths = [(after - first) / count for first, after in pairwise(self._events)]
        least = min(_PHASE, _PHASES_SHARE / max(len(spans), 1))
        for span, drawn in zip(spans, highest, strict=True):
            self._widen(widths, span, least)
            self._widen(widths, drawn, least * _HIGHEST)
        whole = sum(widths) or 1.0
        self._places = [0.0, *(each / whole for each in accumulate(widths))]

    def _widen(self, widths: list[float], span: tuple[int, int], least: float) -> None:
        first, after = (bisect_left(self._events, end) for end in span)
        width = sum(widths[first:after])
        if 0 < width < least:
            widths[first:after] = [each * least / width for each in widths[first:after]]

    def of(self, event: int) -> float:
        """The place of an event, or of the end behind the last."""
        event = min(event, self._events[-1])
        upper = min(max(bisect_left(self._events, event), 1), len(self._events) - 1)
        if upper < 1:
            return 0.0
        first, after = self._events[upper - 1], self._events[upper]
        left, right = self._places[upper - 1], self._places[upper]
        return round(left + (right - left) * (event - first) / (after - first), 6)


def _drawn_highest(at: Sequence[int], allocated: Sequence[int], first: int, after: int) -> tuple[int, int]:
    """The events over which the highest moment of a phase is drawn: until the next moment."""
    low, high = bisect_left(at, first), bisect_left(at, after)
    if low == high:
        return first, first
    index = max(range(low, high), key=lambda each: allocated[each])
    return at[index], min(at[index + 1] if index + 1 < len(at) else after, after)


def changes_of(events: Sequence[Event], timeline: Timeline) -> Iterator[tuple[int, HolderKey, int]]:
    """What changes the bytes of a holder, and at which event: births, deaths and new roles, block by block."""
    block_bytes = timeline.block_bytes
    for life in lives(events).values():
        size = block_bytes.get(life.block)
        if not size:
            continue  # never handed out: the replay ran out of memory before
        key = holder_of(life, life.role_at(life.birth))
        yield life.birth, key, size
        for moment, role in life.roles:
            if moment > life.birth and (now := holder_of(life, role)) != key:
                yield moment, key, -size
                yield moment, now, size
                key = now
        yield life.death, key, -size
