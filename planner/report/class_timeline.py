"""The memory of a rank class over time, by category and with its largest holders, as plain values for charts."""

from __future__ import annotations

import re
from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from heapq import nlargest
from itertools import accumulate, pairwise
from typing import Any

from planner.allocator.timeline import Timeline
from planner.events import Category, Event
from planner.report.attribution import HolderKey, holder_of, lives, phase_spans
from planner.report.statement import Plan, RankClassStatement
from planner.report.style import STACKED

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


_HOLDERS = 60


@dataclass(frozen=True, slots=True)
class ClassTimeline:
    """A rank class with what its statement was made from."""

    statement: RankClassStatement
    events: Sequence[Event]
    timeline: Timeline


def timelines_of(plan: Plan, events: Iterable[Sequence[Event]], timelines: Iterable[Timeline]) -> list[ClassTimeline]:
    """Of every rank class of a plan, from the events and replays that it was made from."""
    return [ClassTimeline(*parts) for parts in zip(plan.rank_classes, events, timelines, strict=True)]


def timeline_to_json(traced: ClassTimeline, points: int = 1200) -> dict[str, Any]:
    """Bytes by category, reserved bytes and the largest holders at each of at most `points` events `at`.

    `places`, and `left` and `right` of a phase, say where they lie on the width of a picture, from 0 to 1. Of `held`
    each moment is `[[holder, bytes, count], ...]`, the largest first; `who` are these holders.
    """
    statement, series = traced.statement, thin(traced.events, traced.timeline, points)
    moments = holders_at(traced.events, traced.timeline, series.at)
    spans = phase_spans(traced.events)
    totals = [sum(sizes) for sizes in zip(*series.allocated_bytes.values(), strict=True)] or [0] * len(series.at)
    ends = len(traced.timeline.allocated_bytes)  # fewer events than there are, where memory ran out
    places = Places(series.at, totals, [(min(each.first, ends), min(each.last, ends)) for each in spans])
    return {
        **_figures(traced),
        "at": series.at,
        "places": [places.of(event) for event in series.at],
        "allocated_bytes": {
            category.value: series.allocated_bytes[category]
            for category in STACKED
            if category in series.allocated_bytes
        },
        "reserved_bytes": series.reserved_bytes,
        "phases": [
            {
                "phase": each.phase.value,
                "iteration": each.iteration,
                "first": each.first,
                "last": each.last,
                "left": places.of(each.first),
                "right": places.of(each.last),
            }
            for each in spans
        ],
        **moments_to_json(moments),
        "holders": [
            {
                "bytes": each.bytes,
                "category": each.category.value,
                "module": each.module,
                "op": each.op,
                "shape": each.shape,
                "dtype": each.dtype,
                "count": each.count,
            }
            for each in statement.holders[:_HOLDERS]
        ],
    }


def _figures(traced: ClassTimeline) -> dict[str, Any]:
    statement, peak = traced.statement, traced.statement.peak
    return {
        "ranks": statement.ranks,
        "verdict": statement.verdict.value,
        "events": len(traced.timeline.allocated_bytes),
        "capacity_bytes": statement.capacity_bytes,
        "outside_bytes": statement.outside_allocator.total_bytes,
        "device_bytes": peak.device_bytes,
        "interval_bytes": list(peak.interval_bytes),
        "headroom_bytes": statement.headroom_bytes,
        "peak": {
            "event": traced.timeline.peak_allocated_index,
            "phase": peak.phase.value,
            "iteration": peak.iteration,
            "allocated_bytes": peak.allocated_bytes,
            "reserved_bytes": peak.reserved_bytes,
        },
    }


def moments_to_json(moments: Moments) -> dict[str, Any]:
    """`who` and `held`."""
    return {
        "who": [{**each._asdict(), "category": each.category.value} for each in moments.holders],
        "held": [[[each.holder, each.bytes, each.count] for each in at] for at in moments.held],
    }
