"""The memory of a rank class over time, by category and with its largest holders, as plain values for charts."""

from __future__ import annotations

import re
from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from heapq import nlargest
from itertools import accumulate, pairwise
from typing import Any

from planner.allocator.timeline import Timeline
from planner.events import Event
from planner.records import to_plain
from planner.report.attribution import HolderKey, holder_of, lives, phase_spans
from planner.report.statement import Plan, RankClassStatement
from planner.report.style import STACKED
from planner.runtime.garbage_collection import pause_collection

_NUMBER = re.compile(r"(?<=\.)\d+(?=\.|$)")
"""Of a layer, in the name of a module."""
_HOLDERS = 60
_PHASE, _PHASES_SHARE, _HIGHEST = 0.04, 0.5, 0.25
"""Of a picture's width: what a phase has at least, all of them together at most from that; of that, what its highest
moment has."""


def moments_of(allocated: Sequence[int], points: int) -> list[int]:
    """At most `points` events: of each stretch of equal length the first in which most is allocated."""
    count = len(allocated)
    if count <= points:
        return list(range(count))
    edges = [count * point // points for point in range(points + 1)]
    parts = [(first, allocated[first:last]) for first, last in pairwise(edges)]
    return [first + part.index(max(part)) for first, part in parts]


class Places:
    """Where events lie on the width of a picture, from 0 to 1: a phase of few events, and the stretch for which the
    highest moment of a phase is drawn, are wider than their share of the events, or nobody would see them."""

    def __init__(self, at: Sequence[int], allocated: Sequence[int], spans: Sequence[tuple[int, int]]) -> None:
        """`allocated` are the bytes at the moments `at`; a span is a phase's first event and the one after its last."""
        highest = []  # over which events the highest moment of each phase is drawn: until the next moment
        for first, after in spans:
            low, high = bisect_left(at, first), bisect_left(at, after)
            index = max(range(low, high), key=allocated.__getitem__, default=-1)
            end = at[index + 1] if index + 1 < len(at) else after
            highest.append((at[index], min(end, after)) if low < high else (first, first))
        self._events = sorted({0, *(end for span in (*spans, *highest) for end in span)})
        count = max(self._events[-1], 1)
        widths = [(after - first) / count for first, after in pairwise(self._events)]
        least = min(_PHASE, _PHASES_SHARE / max(len(spans), 1))
        for span, drawn in zip(spans, highest, strict=True):
            self._widen(widths, span, least)
            self._widen(widths, drawn, least * _HIGHEST)
        whole = sum(widths) or 1.0
        self._places = [0.0, *(width / whole for width in accumulate(widths))]

    def _widen(self, widths: list[float], span: tuple[int, int], least: float) -> None:
        first, after = (bisect_left(self._events, end) for end in span)
        width = sum(widths[first:after])
        if 0 < width < least:
            widths[first:after] = [part * least / width for part in widths[first:after]]

    def of(self, event: int) -> float:
        """The place of an event, or of the end behind the last."""
        event = min(event, self._events[-1])
        upper = min(max(bisect_left(self._events, event), 1), len(self._events) - 1)
        if upper < 1:
            return 0.0
        first, after = self._events[upper - 1], self._events[upper]
        left, right = self._places[upper - 1], self._places[upper]
        return round(left + (right - left) * (event - first) / (after - first), 6)


Change = tuple[int, HolderKey, int]
"""When, whose, and the bytes of a block that a holder gets or, below zero, frees."""


def changes_of(events: Sequence[Event], timeline: Timeline, at: Sequence[int]) -> Iterator[Change]:
    """What changes the bytes of a holder by each of the events `at`, which ascend, numbered by its place there: births,
    deaths and new roles of the blocks that are alive at one of them."""
    block_bytes, ends = timeline.block_bytes, len(at)
    for life in lives(events).values():
        born, died = bisect_left(at, life.birth), bisect_left(at, life.death)
        if born == died or not (size := block_bytes.get(life.block)):
            continue  # without bytes: never handed out, as the replay ran out of memory before
        key = holder_of(life, life.role_at(life.birth))
        yield born, key, size
        for moment, role in life.roles:
            place = bisect_left(at, moment)
            if moment > life.birth and place < ends and (now := holder_of(life, role)) != key:
                yield place, key, -size
                yield place, now, size
                key = now
        if died < ends:
            yield died, key, -size


def largest_holders(changes: Iterable[Change], moments: int, most: int = 6) -> dict[str, Any]:
    """`held`: at each moment the holders with the most bytes, the largest first, as `[[holder, bytes, count], ...]`;
    `who` they are."""
    by_moment: list[list[tuple[HolderKey, int]]] = [[] for _ in range(moments)]
    for place, key, change in changes:
        by_moment[place].append((key, change))
    sizes: Counter[HolderKey] = Counter()
    counts: Counter[HolderKey] = Counter()
    places: dict[HolderKey, int] = {}
    held: list[list[list[int]]] = []
    for until in by_moment:
        for key, change in until:
            sizes[key] += change
            counts[key] += 1 if change > 0 else -1
            if not counts[key]:
                del sizes[key], counts[key]
        largest = nlargest(most, sizes.items(), key=lambda item: item[1])
        held.append([[places.setdefault(key, len(places)), size, counts[key]] for key, size in largest])
    return {"who": [{**holder._asdict(), "category": holder.category.value} for holder in places], "held": held}


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

    `places`, and `left` and `right` of a phase, say where they lie on the width of a picture, from 0 to 1; `who` and
    `held` are those of :func:`largest_holders`, layers that do the same as one. The categories add up to the allocated
    bytes of each moment, to the byte.
    """
    statement, timeline, peak = traced.statement, traced.timeline, traced.statement.peak
    spans, at = phase_spans(traced.events), moments_of(timeline.allocated_bytes, points)
    layers = cache(lambda module: _NUMBER.sub("*", module))  # there are few modules, and many changes
    with pause_collection():
        changes = list(changes_of(traced.events, timeline, at))
        alike = ((place, key._replace(module=layers(key.module)), change) for place, key, change in changes)
        holders = largest_holders(alike, len(at))
        added = {category: [0] * len(at) for category in STACKED}
        for place, key, change in changes:
            added[key.category][place] += change
    allocated = {category: list(accumulate(sizes)) for category, sizes in added.items()}
    allocated = {category: sizes for category, sizes in allocated.items() if any(sizes)}
    totals = [sum(sizes) for sizes in zip(*allocated.values(), strict=True)] or [0] * len(at)
    ends = len(timeline.allocated_bytes)  # fewer events than there are, where memory ran out
    places = Places(at, totals, [(min(span.first, ends), min(span.last, ends)) for span in spans])
    return {
        "ranks": statement.ranks,
        "verdict": statement.verdict.value,
        "events": ends,
        "capacity_bytes": statement.capacity_bytes,
        "outside_bytes": statement.outside_allocator.total_bytes,
        "device_bytes": peak.device_bytes,
        "interval_bytes": list(peak.interval_bytes),
        "headroom_bytes": statement.headroom_bytes,
        "peak": {
            "event": timeline.peak_allocated_index,
            "phase": peak.phase.value,
            "iteration": peak.iteration,
            "allocated_bytes": peak.allocated_bytes,
            "reserved_bytes": peak.reserved_bytes,
        },
        "at": at,
        "places": [places.of(event) for event in at],
        "allocated_bytes": {category.value: sizes for category, sizes in allocated.items()},
        "reserved_bytes": [timeline.reserved_bytes[moment] for moment in at],
        "phases": [{**to_plain(span), "left": places.of(span.first), "right": places.of(span.last)} for span in spans],
        **holders,
        "holders": [to_plain(holder) for holder in statement.holders[:_HOLDERS]],
    }
