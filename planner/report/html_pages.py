"""Memory over time as one HTML page that needs no network, and the plan as a card for notebooks."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from html import escape
from importlib import resources

from planner.report.class_timeline import ClassTimeline, timeline_to_json
from planner.report.statement import Plan, RankClassStatement, Verdict, change_text
from planner.report.style import LIGHT, STACKED, Style, category_colors, size
from planner.report.verdict_text import advice_heading, describe, verdict_sentences

_STYLES = ("page/page.css", "page/charts.css")
_SCRIPTS = ("page/dom.js", "page/units.js", "page/timeline.js")
"""As the service's page has them (planner/service/web/assets.py)."""


def render_page(plan: Plan, classes: Sequence[ClassTimeline]) -> str:
    """The page: memory over time of each class, stacked by category, and who holds the peak."""
    data = {
        "verdict": plan.verdict.value,
        "calibrated": plan.calibrated,
        "classes": [timeline_to_json(traced) for traced in classes],
    }
    # "<" would end the script element if a module were called "</script>".
    embedded = json.dumps(data, separators=(",", ":")).replace("<", "\\u003c")
    styles, scripts = ("\n".join(map(_read, names)) for names in (_STYLES, _SCRIPTS))
    # A module of the service's page is a part of one script here: nothing is imported by a file.
    scripts = re.sub(r"^import .*\n|^export (?=\w)", "", scripts, flags=re.MULTILINE)
    filled = _read("timeline_page.html").replace("{{name}}", escape(plan.name))
    filled = filled.replace("{{verdict}}", escape(" ".join(verdict_sentences(plan))))
    filled = filled.replace("{{about}}", escape(" · ".join(describe(plan.job, Style()))))
    filled = filled.replace("{{styles}}", category_colors() + styles).replace("{{scripts}}", scripts)
    return filled.replace("{{data}}", embedded)


def _read(name: str) -> str:
    return resources.files("planner.report").joinpath(name).read_text(encoding="utf-8")


_VERDICTS = {Verdict.FITS: "#2f7d4f", Verdict.TIGHT: "#a9700c", Verdict.EXCEEDS: "#c0392b"}
_MOST_CLASSES = 16


_COLUMNS = (("ranks", "left"), ("at the peak", "left"), ("needs", "right"), ("of", "right"), ("headroom", "right"))


def render_card(plan: Plan, notes: Sequence[str] = ()) -> str:
    """The card; `notes` are sentences that can be unfolded below it."""
    return "".join(_card_parts(plan, notes))


def _card_parts(plan: Plan, notes: Sequence[str]) -> Iterator[str]:
    color = _VERDICTS[plan.verdict]
    yield '<div style="font-family: system-ui, sans-serif; max-width: 60em; line-height: 1.5">'
    yield f'<div><b>{escape(plan.name)} <span style="color: {color}">{plan.verdict.value}</span></b></div>'
    yield f'<div style="opacity: .7">{escape(" · ".join(describe(plan.job, Style())))}</div>'
    yield f'<div style="color: {color}">{escape(" ".join(verdict_sentences(plan)))}</div>'
    yield '<table style="width: 100%; border-collapse: collapse; margin: .5em 0"><thead><tr>'
    yield "".join(f'<th style="text-align: {side}">{name}</th>' for name, side in _COLUMNS)
    yield "</tr></thead><tbody>"
    for statement in plan.rank_classes[:_MOST_CLASSES]:
        sizes = (statement.peak.device_bytes, statement.capacity_bytes, statement.headroom_bytes)
        figures = "".join(f'<td style="text-align: right; white-space: nowrap">{size(count)}</td>' for count in sizes)
        ranks = f'<td style="text-align: left">{escape(statement.ranks)}</td>'
        yield f'<tr>{ranks}<td style="width: 50%">{_bar(statement)}</td>{figures}</tr>'
    yield "</tbody></table>"
    if (more := len(plan.rank_classes) - _MOST_CLASSES) > 0:
        yield f"<div>and {more} more rank classes</div>"
    marks = "".join(
        f'<span style="margin-right: 1em"><span style="color: {LIGHT[category]}">■</span> '
        f"{category.value.replace('_', ' ')}</span>"
        for category in STACKED
        if any(statement.at_peak.get(category) for statement in plan.rank_classes)
    )
    yield f'<div style="font-size: .85em">{marks}</div>'
    if plan.advice:
        yield f"<div>{advice_heading(plan)}:</div><ul>"
        for advice in plan.advice:
            yield f"<li>{escape(change_text(advice.change))}: {size(advice.device_bytes)}, {advice.verdict.value}</li>"
        yield "</ul>"
    if notes:
        items = "".join(f"<li>{escape(note)}</li>" for note in notes)
        yield f'<details><summary>what it rests on</summary><ul style="text-align: left">{items}</ul></details>'
    yield "</div>"


def _bar(statement: RankClassStatement) -> str:
    """As wide as the capacity, or as what is needed where that is more."""
    whole = max(statement.capacity_bytes, statement.peak.device_bytes)
    parts = [(category.value, LIGHT[category], statement.at_peak.get(category, 0)) for category in STACKED]
    cached = statement.peak.reserved_bytes - sum(count for _, _, count in parts)
    parts.append(("cached by the allocator", "#80808060", cached))
    parts.append(("outside the allocator", "#808080", statement.outside_allocator.total_bytes))
    spans = "".join(
        f'<span title="{escape(name.replace("_", " "))}: {size(count)}" style="display: inline-block; height: 1em;'
        f' width: {100 * count / whole:.3f}%; background: {color}"></span>'
        for name, color, count in parts
        if count > 0
    )
    return f'<div style="background: #80808020; white-space: nowrap; font-size: .9em; line-height: 0">{spans}</div>'
