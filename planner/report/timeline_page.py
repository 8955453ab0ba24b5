"""Memory over time as one HTML page that needs nothing from anywhere: no network, no server, no library."""

from __future__ import annotations

import json
from collections.abc import Sequence
from html import escape
from importlib import resources

from planner.report.category_colors import DARK, LIGHT, css_variables
from planner.report.class_timeline import ClassTimeline, timeline_to_json
from planner.report.statement import Plan
from planner.report.style import Style
from planner.report.title import describe, name_of


def render_page(plan: Plan, classes: Sequence[ClassTimeline]) -> str:
    """The page: memory over time of each class, stacked by category, and who holds the peak."""
    data = {
        "verdict": plan.verdict.value,
        "calibrated": plan.calibrated,
        "classes": [timeline_to_json(each) for each in classes],
    }
    # "<" would end the script element if a module were called "</script>".
    embedded = json.dumps(data, separators=(",", ":")).replace("<", "\\u003c")
    template = resources.files("planner.report").joinpath("timeline_page.html").read_text(encoding="utf-8")
    filled = template.replace("{{name}}", escape(name_of(plan.job)))
    filled = filled.replace("{{about}}", escape(" · ".join(describe(plan.job, Style()))))
    filled = filled.replace("{{light}}", css_variables(LIGHT)).replace("{{dark}}", css_variables(DARK))
    return filled.replace("{{data}}", embedded)
