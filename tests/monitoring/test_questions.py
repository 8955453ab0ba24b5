"""Every question of docs/monitoring.md, asked of a real Prometheus under the deployed rules."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from planner.units import GIB

PAGE = (Path(__file__).parents[2] / "docs" / "monitoring.md").read_text(encoding="utf-8")
QUESTIONS = re.findall(r"```promql\n(.*?)```", PAGE, re.DOTALL)
CLOSER = {"30d:1h": "10s:1s", "7d:1h": "10s:1s", "40 * 2^30": "43 * 2^30"}
"""Whole hours have to pass before some have an answer, and the plans here are larger than one asks for."""


def question(words: str) -> str:
    (found,) = [each for each in QUESTIONS if words in each]
    return found


@pytest.mark.parametrize("asked", QUESTIONS, ids=lambda text: " ".join(text.split())[:60])
def test_every_question_of_the_page_has_an_answer(prometheus: Any, asked: str) -> None:
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
