"""The memory of a rank class over time as plain values, for whatever draws it: a timeline page, the page."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from planner.allocator.timeline import Timeline
from planner.events import Event
from planner.report.category_colors import STACKED
from planner.report.lives import phase_spans
from planner.report.moments import Moments, holders_at
from planner.report.series import Places, thin
from planner.report.statement import RankClassStatement

_HOLDERS = 60


@dataclass(frozen=True, slots=True)
class ClassTimeline:
    """A rank class with what its statement was made from."""

    statement: RankClassStatement
    events: Sequence[Event]
    timeline: Timeline


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
