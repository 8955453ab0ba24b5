"""Who holds memory at any moment, not only at the peak: the largest holders at each of some events.

Layers that do the same are one holder: the numbers in the paths of their modules are left open.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from heapq import nlargest

from planner.allocator.timeline import Timeline
from planner.events import Event
from planner.report.attribution import HolderKey
from planner.report.series import changes_of

_NUMBER = re.compile(r"(?<=\.)\d+(?=\.|$)")


@dataclass(frozen=True, slots=True)
class Held:
    """One holder at one moment: `bytes` are block bytes of all `count` blocks."""

    holder: int
    """Its place in the list of all holders."""
    bytes: int
    count: int


@dataclass(frozen=True, slots=True)
class Moments:
    """At each event of the series the holders with the most bytes, the largest first."""

    holders: tuple[HolderKey, ...]
    held: tuple[tuple[Held, ...], ...]


def holders_at(events: Sequence[Event], timeline: Timeline, at: Sequence[int]) -> Moments:
    """The largest holders after each of the events `at`, which ascend."""
    changes = changes_of(events, timeline)
    return largest_at(((index, _like_layers_together(key), change) for index, key, change in changes), at)


def largest_at(changes: Iterable[tuple[int, HolderKey, int]], at: Sequence[int], most: int = 6) -> Moments:
    """The `most` largest holders after each of the events `at`; a change is an event, a holder, and the bytes of a
    block that it gets or, below zero, gives up."""
    born: list[list[tuple[HolderKey, int]]] = [[] for _ in range(len(at) + 1)]
    for index, key, change in changes:
        born[bisect_left(at, index)].append((key, change))
    sizes: Counter[HolderKey] = Counter()
    counts: Counter[HolderKey] = Counter()
    places: dict[HolderKey, int] = {}
    held: list[tuple[Held, ...]] = []
    for until in born[:-1]:
        for key, change in until:
            sizes[key] += change
            counts[key] += 1 if change > 0 else -1
            if not counts[key]:
                del sizes[key], counts[key]
        largest = nlargest(most, sizes.items(), key=lambda item: item[1])
        held.append(tuple(Held(places.setdefault(key, len(places)), size, counts[key]) for key, size in largest))
    return Moments(tuple(places), tuple(held))


def _like_layers_together(key: HolderKey) -> HolderKey:
    return key._replace(module=_NUMBER.sub("*", key.module))
