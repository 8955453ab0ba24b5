"""Memory over time by category, thinned to what a screen can show without losing a peak."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from planner.allocator.timeline import Timeline
from planner.events import Category, Event
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
    at = _moments(timeline.allocated_bytes, points)
    totals = dict.fromkeys(Category, 0)
    kept: dict[Category, list[int]] = {category: [] for category in Category}
    changes, done = _changes(events, timeline), 0
    for moment in at:
        while done < len(changes) and changes[done][0] <= moment:
            _, category, change = changes[done]
            totals[category] += change
            done += 1
        for category, total in totals.items():
            kept[category].append(total)
    return Series(
        at=tuple(at),
        allocated_bytes={category: tuple(sizes) for category, sizes in kept.items() if any(sizes)},
        reserved_bytes=tuple(timeline.reserved_bytes[moment] for moment in at),
    )


def _moments(allocated: Sequence[int], points: int) -> list[int]:
    count = len(allocated)
    if count <= points:
        return list(range(count))
    edges = [count * each // points for each in range(points + 1)]
    return [max(range(first, last), key=allocated.__getitem__) for first, last in pairwise(edges)]


def _changes(events: Sequence[Event], timeline: Timeline) -> list[tuple[int, Category, int]]:
    """What changes a category's total, by event: births, deaths and new roles."""
    changes: list[tuple[int, Category, int]] = []
    for life in lives(events).values():
        size = timeline.block_bytes.get(life.block)
        if not size:
            continue  # never handed out: the replay ran out of memory before
        category = life.category_at(life.birth)
        changes.append((life.birth, category, size))
        for moment, role in life.roles:
            if moment > life.birth and role.category is not category:
                changes += [(moment, category, -size), (moment, role.category, size)]
                category = role.category
        changes.append((life.death, category, -size))
    changes.sort(key=lambda each: each[0])
    return changes
