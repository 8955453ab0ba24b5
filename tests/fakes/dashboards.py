"""The committed dashboards, and their queries filled in as Grafana does it."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import httpx

GRAFANA = Path(__file__).parents[2] / "deploy" / "grafana"
DASHBOARDS: dict[str, Any] = {
    path.stem: json.loads(path.read_text(encoding="utf-8")) for path in sorted((GRAFANA / "dashboards").glob("*.json"))
}


def panel(name: str, title: str) -> dict[str, Any]:
    """The first panel of that title."""
    found: dict[str, Any] = next(
        each for each in DASHBOARDS[name]["panels"] if each["type"] != "row" and each["title"] == title
    )
    return found


def fill_in(text: str, chosen: dict[str, str]) -> str:
    """As Grafana would, for a data source that is scraped every half second."""
    for variable, value in {**chosen, "__rate_interval": "30s"}.items():
        text = re.sub(rf"\$({variable}\b|{{{variable}}})", lambda _, value=value: value, text)
    return text


def choices(prometheus: Any, name: str, **wanted: str) -> dict[str, str]:
    """What is wanted, else the first value of each variable, and all where that can be chosen."""
    found: dict[str, str] = {}
    for variable in DASHBOARDS[name]["templating"]["list"]:
        if variable["type"] != "query":
            continue
        query = fill_in(variable["query"]["query"], found)
        asked = re.fullmatch(r"label_values\((.+), (\w+)\)", query)
        assert asked, query
        answer = httpx.get(
            f"{prometheus.base_url}/api/v1/label/{asked[2]}/values", params={"match[]": asked[1]}, timeout=300
        ).json()
        assert answer["data"], query
        first = variable["allValue"] if variable.get("includeAll") else answer["data"][0]
        found[variable["name"]] = wanted.get(variable["name"], first)
        assert variable.get("includeAll") or found[variable["name"]] in answer["data"]
    return found
