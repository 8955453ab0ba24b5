"""The page of the dashboards: the panels of each row. Descriptions, layout and queries are in the JSON."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

Document = dict[str, Any]


def outline(dashboards: Iterable[Document]) -> str:
    """A page in Markdown, made from the JSON that Grafana reads."""
    head = (
        "# Dashboards\n\nThree dashboards for Grafana 10 and later are in `deploy/grafana/dashboards/`;"
        "\n`deploy/grafana/provisioning/` tells Grafana where they are. They use the recording rules of"
        "\n[monitoring.md](../monitoring.md). `python deploy/grafana/make.py` makes the dashboards and this page.\n"
    )
    return head + "".join(f"\n{_dashboard(each)}" for each in dashboards)


def _dashboard(document: Document) -> str:
    variables = [each["name"] for each in document["templating"]["list"] if each["type"] == "query"]
    rows: dict[str, list[str]] = {}
    for panel in document["panels"]:
        if panel["type"] == "row":
            rows[panel["title"]] = []
        else:
            rows[list(rows)[-1]].append(panel["title"])
    lines = [f"## {document['title']}", "", document["description"]]
    lines += [f"Variables: {', '.join(f'`{name}`' for name in variables)}.", ""]
    lines += [f"- **{row}**: {'; '.join(panels)}." for row, panels in rows.items()]
    return "\n".join(lines) + "\n"
