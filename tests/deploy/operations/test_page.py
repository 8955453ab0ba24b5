"""docs/operations.md and its reference beside what there is: alerts, settings, metrics, log fields, faults, links."""

from __future__ import annotations

import dataclasses
import json
import logging
import re
from pathlib import Path
from typing import Any

import yaml

from planner.service import logs
from planner.service.metrics import METRICS, STORE_UP
from planner.settings import Settings

ROOT = Path(__file__).parents[3]
DOCS = ROOT / "docs"
PAGE = (DOCS / "operations.md").read_text(encoding="utf-8")
PROMETHEUS = ROOT / "deploy" / "prometheus"


def rules(name: str) -> list[dict[str, Any]]:
    document = yaml.safe_load((PROMETHEUS / name).read_text(encoding="utf-8"))
    return [rule for group in document["groups"] for rule in group["rules"]]


def section(title: str, level: str = "##") -> str:
    return PAGE.partition(f"\n{level} {title}\n")[2].partition(f"\n{level} ")[0]


def anchors(text: str) -> set[str]:
    """As GitHub makes them of headings."""
    headings = re.findall(r"^#+ (.+)$", text, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", each.lower()).replace(" ", "-") for each in headings}


def test_each_alert_leads_to_its_section_and_each_section_is_of_an_alert() -> None:
    alerts = {rule["alert"]: rule["annotations"]["runbook"] for rule in rules("alerts.rules.yml")}

    assert set(re.findall(r"^### (\w+)$", section("Alerts"), re.MULTILINE)) == set(alerts)
    assert alerts == {name: f"docs/operations.md#{name.lower()}" for name in alerts}
    assert {name.lower() for name in alerts} <= anchors(PAGE)


def test_every_setting_is_there_with_its_default() -> None:
    page = (DOCS / "reference" / "settings.md").read_text(encoding="utf-8")
    named = set(re.findall(r"`(\w+)`", "".join(re.findall(r"^\| (`.+?) \|", page, re.MULTILINE))))

    assert {field.name for field in dataclasses.fields(Settings)} <= named


def test_every_metric_that_is_named_exists() -> None:
    known = {each.name for each in (STORE_UP, *METRICS)} | {
        rule["record"] for rule in rules("recording.rules.yml") if "record" in rule
    }
    named = set(re.findall(r"`(?:rate\()?((?:\w+:)?planner_\w+(?::\w+)?)(?:\{[^`]*\})?[^`]*`", PAGE))

    assert len(named) > 10
    assert named - known == set()


def test_every_field_of_the_log_is_explained() -> None:
    record = logging.LogRecord("planner.service", logging.INFO, "", 0, "said", (), None)
    written = set(json.loads(logs.JsonLines().format(record))) | set(logs._OWN) | {"error"}
    told = re.findall(r"^\| (`.+?) \| ", section("What it says"), re.MULTILINE)

    assert set(re.findall(r"`(\w+)`", "".join(told))) == written


def test_every_fault_that_is_tried_is_told_and_no_other() -> None:
    tried = {
        name
        for path in (ROOT / "tests" / "service" / "faults").glob("test_*.py")
        for name in re.findall(r"^def (test_\w+)\(", path.read_text(encoding="utf-8"), re.MULTILINE)
    }

    page = (DOCS / "reference" / "faults.md").read_text(encoding="utf-8")
    assert set(re.findall(r"`(test_\w+)`", page)) == tried


def test_links_lead_somewhere() -> None:
    dead = []
    for name in ("operations.md", "security.md", "admission.md", "monitoring.md"):
        for target, anchor in re.findall(r"\]\(([^)#:]*)(?:#([^)]+))?\)", (DOCS / name).read_text(encoding="utf-8")):
            path = (DOCS / target).resolve() if target else DOCS / name
            known = anchors(path.read_text(encoding="utf-8")) if path.suffix == ".md" and path.is_file() else set()
            if not path.exists() or (anchor and anchor not in known):
                dead.append(f"{name}: {target}#{anchor}")

    assert dead == []
