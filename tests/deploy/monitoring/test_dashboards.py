"""The dashboards: made by their script, told by their page, and with data in every panel."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from dashboards import DASHBOARDS, GRAFANA, choices, fill_in

ROOT = Path(__file__).parents[3]
PANELS = [
    (name, panel)
    for name, dashboard in DASHBOARDS.items()
    for panel in dashboard["panels"]
    if panel["type"] != "row"
]  # fmt: skip
EXPRESSIONS = [
    pytest.param(name, target["expr"], id=f"{name}-{panel['title']}-{target['refId']}".replace(" ", "_"))
    for name, panel in PANELS
    for target in panel["targets"]
]
EACH_PANEL = pytest.mark.parametrize("panel", [pytest.param(p, id=f"{n}-{p['title']}") for n, p in PANELS])


def test_the_script_makes_what_is_committed(tmp_path: Path) -> None:
    pytest.importorskip("grafana_foundation_sdk")
    subprocess.run([sys.executable, str(GRAFANA / "make.py"), str(tmp_path)], check=True, timeout=300)

    made = {str(path.relative_to(tmp_path)): path.read_text(encoding="utf-8") for path in tmp_path.rglob("*.*")}
    dashboards = [f"deploy/grafana/dashboards/{name}.json" for name in DASHBOARDS]
    assert set(made) == {"docs/reference/dashboards.md", *dashboards}
    for name, text in made.items():
        assert text == (ROOT / name).read_text(encoding="utf-8"), f"{name}: run python deploy/grafana/make.py"


def test_there_are_three_and_each_links_to_the_others() -> None:
    assert {name: each["uid"] for name, each in DASHBOARDS.items()} == {
        "job": "planner-job", "cluster": "planner-cluster", "planner": "planner-itself",
    }  # fmt: skip
    for each in DASHBOARDS.values():
        assert "planner" in each["tags"]
        assert [(link["type"], link["tags"]) for link in each["links"]] == [("dashboards", ["planner"])]


def test_rows_of_the_cluster_lead_to_the_page_of_their_job() -> None:
    links = [link["url"] for _, panel in PANELS for link in panel["fieldConfig"]["defaults"].get("links", [])]
    known = {variable["name"] for variable in DASHBOARDS["job"]["templating"]["list"]}

    assert len(links) == 3
    for url in links:
        assert url.startswith(f"/d/{DASHBOARDS['job']['uid']}/?")
        assert set(re.findall(r"var-(\w+)=", url)) == {"system", "job_id"} <= known


def test_provisioning_names_what_there_is() -> None:
    (provider,) = yaml.safe_load((GRAFANA / "provisioning" / "dashboards" / "planner.yaml").read_text())["providers"]
    (source,) = yaml.safe_load((GRAFANA / "provisioning" / "datasources" / "prometheus.yaml").read_text())[
        "datasources"
    ]

    assert (provider["type"], source["type"]) == ("file", "prometheus")


@EACH_PANEL
def test_a_panel_says_what_it_shows(panel: dict[str, Any]) -> None:
    defaults = panel["fieldConfig"]["defaults"]

    assert panel["title"]
    assert panel["description"].endswith(".")
    assert defaults["unit"]
    assert defaults["thresholds"]["steps"]
    assert panel["datasource"] == {"type": "prometheus", "uid": "${datasource}"}
    assert len({target["refId"] for target in panel["targets"]}) == len(panel["targets"]) > 0


@pytest.mark.parametrize("name", DASHBOARDS)
def test_panels_fill_their_rows_and_do_not_overlap(name: str) -> None:
    taken: set[tuple[int, int]] = set()
    for panel in DASHBOARDS[name]["panels"]:
        place = panel["gridPos"]
        across, down = (
            range(place.get("x", 0), place.get("x", 0) + place["w"]),
            range(place["y"], place["y"] + place["h"]),
        )
        cells = {(x, y) for x in across for y in down}
        assert not cells & taken, panel["title"]
        assert max(across) < 24
        taken |= cells

    assert len(taken) == 24 * (max(y for _, y in taken) + 1)
    ids = [panel["id"] for panel in DASHBOARDS[name]["panels"]]
    assert len(ids) == len(set(ids))


@pytest.mark.parametrize("name", DASHBOARDS)
def test_every_variable_has_values_and_is_used(prometheus: Any, name: str) -> None:
    chosen = choices(prometheus, name)
    everything = json.dumps(DASHBOARDS[name])

    for variable, value in chosen.items():
        assert value, variable
        assert f"${variable}" in everything.replace("${", "$")


@pytest.mark.parametrize(("name", "expression"), EXPRESSIONS)
def test_every_expression_of_every_panel_has_data(prometheus: Any, name: str, expression: str) -> None:
    filled = fill_in(expression, choices(prometheus, name))

    assert "$" not in filled
    prometheus.waits_for(filled)
