"""Every question of docs/monitoring.md and of the reference of metrics, asked of a real Prometheus under our rules."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import httpx
import pytest

from planner.service.metrics import METRICS, STORE_UP
from planner.units import GIB

DOCS = Path(__file__).parents[3] / "docs"
PAGES = "".join((DOCS / name).read_text(encoding="utf-8") for name in ("monitoring.md", "reference/metrics.md"))
QUESTIONS = re.findall(r"```promql\n(.*?)```", PAGES, re.DOTALL)
CLOSER = {"30d:1h": "10s:1s", "7d:1h": "10s:1s", "40 * 2^30": "43 * 2^30"}
"""Whole hours have to pass before some have an answer, and the plans here are larger than one asks for."""


def question(words: str) -> str:
    (found,) = [each for each in QUESTIONS if words in each]
    return found


@pytest.mark.parametrize("asked", QUESTIONS, ids=lambda text: " ".join(text.split())[:60])
def test_every_question_of_the_pages_has_an_answer(prometheus: Any, asked: str) -> None:
    for long, short in CLOSER.items():
        asked = asked.replace(long, short)
    prometheus.waits_for(asked, 15)


def test_headroom_in_whole_gpus(prometheus: Any) -> None:
    """Four GPUs of 80 GiB, of which 158 GiB will be used."""
    found = prometheus.figures(question("/ on (queue, gpu)"), "queue", "gpu")

    assert found[("q", "H100-SXM-80GB")] == pytest.approx((162 * GIB - 4) / (80 * GIB))


def test_plans_for_a_smaller_gpu(prometheus: Any) -> None:
    asked = question("planner_plan_ranks")

    assert prometheus.ask(asked) == []  # both take up to 41 GiB
    assert set(prometheus.figures(asked.replace("40 * 2^30", "43 * 2^30"), "name").values()) == {4}


def test_only_what_does_not_fit_is_found_not_to_fit(prometheus: Any) -> None:
    found = prometheus.figures(question("> on (plan)"), "plan", "rank_class")

    assert set(found) == {(f"pl-{2:026d}", "0"), (f"pl-{2:026d}", "2")}


def test_it_takes_every_metric(prometheus: Any) -> None:
    names = [f"{each.name}_count" if each.kind == "histogram" else each.name for each in (STORE_UP, *METRICS)]

    assert [name for name in names if not prometheus.ask(name)] == []
    assert prometheus.figures("up", "job") == {("planner",): 1, ("gpus",): 1}


def test_no_label_of_ours_collides_with_its_own(prometheus: Any) -> None:
    names = httpx.get(f"{prometheus.base_url}/api/v1/labels").json()["data"]

    assert [name for name in names if name.startswith("exported_")] == []
