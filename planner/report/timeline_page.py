"""Memory over time as one HTML page that needs nothing from anywhere: no network, no server, no library."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from importlib import resources
from typing import Any

from planner.allocator.timeline import Timeline
from planner.events import Event
from planner.report.category_colors import DARK, LIGHT, STACKED, css_variables
from planner.report.lives import phase_spans
from planner.report.series import thin
from planner.report.statement import Plan, RankClassStatement
from planner.report.style import Style
from planner.report.title import describe, name_of

_HOLDERS = 60


@dataclass(frozen=True, slots=True)
class ClassTimeline:
    """A rank class with what its statement was made from."""

    statement: RankClassStatement
    events: Sequence[Event]
    timeline: Timeline


def render_page(plan: Plan, classes: Sequence[ClassTimeline]) -> str:
    """The page: memory over time of each class, stacked by category, and who holds the peak."""
    data = {
        "verdict": plan.verdict.value,
        "calibrated": plan.calibrated,
        "classes": [_class(each) for each in classes],
    }
    # "<" would end the script element if a module were called "</script>".
    embedded = json.dumps(data, separators=(",", ":")).replace("<", "\\u003c")
    template = resources.files("planner.report").joinpath("timeline_page.html").read_text(encoding="utf-8")
    filled = template.replace("{{name}}", escape(name_of(plan.job)))
    filled = filled.replace("{{about}}", escape(" · ".join(describe(plan.job, Style()))))
    filled = filled.replace("{{light}}", css_variables(LIGHT)).replace("{{dark}}", css_variables(DARK))
    return filled.replace("{{data}}", embedded)


def _class(traced: ClassTimeline) -> dict[str, Any]:
    statement, series = traced.statement, thin(traced.events, traced.timeline)
    peak = statement.peak
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
        "at": series.at,
        "allocated_bytes": {
            category.value: series.allocated_bytes[category]
            for category in STACKED
            if category in series.allocated_bytes
        },
        "reserved_bytes": series.reserved_bytes,
        "phases": [
            {"phase": each.phase.value, "iteration": each.iteration, "first": each.first, "last": each.last}
            for each in phase_spans(traced.events)
        ],
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
