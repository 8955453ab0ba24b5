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
