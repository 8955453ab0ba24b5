"""The rules that are deployed: valid, each tried by promtool, made of metrics that exist."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from planner.service.metrics import METRICS, STORE_UP

HERE = Path(__file__).parent
DEPLOYED = HERE.parents[2] / "deploy" / "prometheus"
RULES = [DEPLOYED / "recording.rules.yml", DEPLOYED / "alerts.rules.yml"]
TRIALS = sorted(HERE.glob("*_rules_test.yml")) + sorted(HERE.glob("alerts_test.yml"))


def rules() -> list[dict[str, Any]]:
    documents = [yaml.safe_load(path.read_text(encoding="utf-8")) for path in RULES]
    return [rule for document in documents for group in document["groups"] for rule in group["rules"]]


RECORDED = [rule["record"] for rule in rules() if "record" in rule]
ALERTS = [rule["alert"] for rule in rules() if "alert" in rule]


def promtool(program: Callable[[str], str], *arguments: str) -> str:
    found = subprocess.run([program("promtool"), *arguments], capture_output=True, text=True, timeout=300, cwd=HERE)
    assert found.returncode == 0, found.stdout + found.stderr
    return found.stdout + found.stderr


def test_the_configuration_and_its_rules_are_valid(program: Callable[[str], str]) -> None:
    said = promtool(program, "check", "config", str(DEPLOYED / "prometheus.yml"))

    assert f"{len(RECORDED)} rules found" in said
    assert f"{len(ALERTS)} rules found" in said


@pytest.mark.parametrize("trial", TRIALS, ids=lambda path: path.stem)
def test_rules_say_what_they_should(program: Callable[[str], str], trial: Path) -> None:
    assert "SUCCESS" in promtool(program, "test", "rules", str(trial))


def test_every_recording_rule_is_tried_with_a_value() -> None:
    document = yaml.safe_load((HERE / "recording_rules_test.yml").read_text(encoding="utf-8"))
    tried = {
        name
        for trial in document["tests"]
        for each in trial["promql_expr_test"]
        if each["exp_samples"]
        for name in RECORDED
        if re.search(rf"(?<![\w:]){re.escape(name)}(?![\w:])", each["expr"])
    }

    assert tried == set(RECORDED)


def test_every_alert_is_tried_where_it_fires_and_where_it_does_not() -> None:
    document = yaml.safe_load((HERE / "alerts_test.yml").read_text(encoding="utf-8"))
    tried = {(each["alertname"], bool(each["exp_alerts"])) for trial in document["tests"]
             for each in trial["alert_rule_test"]}  # fmt: skip

    assert tried == {(alert, fires) for alert in ALERTS for fires in (True, False)}


def test_rules_use_metrics_that_exist() -> None:
    known = {each.name for each in (STORE_UP, *METRICS)} | {"planner_validation_error_ratio_bucket"}
    used = {name for rule in rules() for name in re.findall(r"(?<![\w:])planner_[a-z_]+(?![\w:])", rule["expr"])}

    assert used - known == set()


def test_every_alert_is_explained() -> None:
    docs = HERE.parents[2] / "docs"
    page = "".join((docs / name).read_text(encoding="utf-8") for name in ("monitoring.md", "reference/metrics.md"))

    assert [name for name in (*ALERTS, *RECORDED) if f"`{name}`" not in page] == []
