"""Dashboards on paper: where each panel lies, what it is called, and what it asks Prometheus."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

_WIDE = 5
"""Characters for each of the grid's 24 columns."""

Document = dict[str, Any]


def outline(dashboards: Iterable[Document]) -> str:
    """A page in Markdown, made from the JSON that Grafana reads."""
    head = (
        "# Dashboards\n\nThree dashboards for Grafana 10 and later, in `deploy/grafana/dashboards/`;"
        "\n`deploy/grafana/provisioning/` tells Grafana where they lie. They stand on the recording rules of"
        "\n[monitoring.md](monitoring.md). `python deploy/grafana/make.py` makes the dashboards and this page.\n"
    )
    return head + "".join(f"\n{_dashboard(each)}" for each in dashboards)


def _dashboard(document: Document) -> str:
    variables = [each for each in document["templating"]["list"] if each["type"] == "query"]
    lines = [f"## {document['title']}", "", document["description"], "", "```text", *_picture(document), "```", ""]
    lines += ["| variable | values |", "|---|---|"]
    lines += [f"| `{each['name']}` | `{each['query']['query']}` |" for each in variables]
    for panel in document["panels"]:
        if panel["type"] == "row":
            lines += ["", f"### {panel['title']}"]
            continue
        unit = panel["fieldConfig"]["defaults"]["unit"]
        lines += ["", f"**{panel['title']}** ({panel['type']}, {unit}). {panel['description']}", "", "```promql"]
        lines += [target["expr"] for target in panel["targets"]]
        lines.append("```")
    return "\n".join(lines) + "\n"


def _picture(document: Document) -> list[str]:
    """Boxes where Grafana has them, half as high."""
    places = [(panel, panel["gridPos"]) for panel in document["panels"]]
    # A line of text is two of the grid; a row's title has one of its own.
    tops = sorted({place["y"] for _, place in places} | {place["y"] + place["h"] for _, place in places})
    at, line = {}, 0
    for top, following in zip(tops, [*tops[1:], tops[-1]], strict=True):
        at[top] = line
        line += max((following - top + 1) // 2, 1)
    canvas = [[" "] * (24 * _WIDE) for _ in range(line + 1)]
    for panel, place in places:
        left, right = place.get("x", 0) * _WIDE, (place.get("x", 0) + place["w"]) * _WIDE - 1
        top, bottom = at[place["y"]], at[place["y"] + place["h"]] - 1
        if panel["type"] == "row":
            _write(canvas[top], left, f"v {panel['title']}")
            continue
        _box(canvas, left, right, top, bottom)
        _write(canvas[top], left + 2, f" {_cut(panel['title'], right - left - 5)} ")
        if bottom - top > 1:
            _write(canvas[(top + bottom) // 2], left + 2, _cut(f"[{panel['type']}]", right - left - 3))
    return [text for text in ("".join(row).rstrip() for row in canvas) if text]


def _box(canvas: list[list[str]], left: int, right: int, top: int, bottom: int) -> None:
    for y in range(top, bottom + 1):
        for x in range(left, right + 1):
            edge_y, edge_x = y in (top, bottom), x in (left, right)
            canvas[y][x] = "+" if edge_x and edge_y else "-" if edge_y else "|" if edge_x else " "


def _write(row: list[str], start: int, text: str) -> None:
    row[start : start + len(text)] = list(text)


def _cut(text: str, most: int) -> str:
    return text if len(text) <= most else text[: most - 2] + ".."
