"""Plans, checks and comparisons as objects: the figures of the commands, and pictures of them."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import planner
from planner.api import child
from planner.errors import SpecError, TraceError
from planner.report.statement import Verdict

SPEC: dict[str, Any] = {
    "metadata": {"name": "<small>"},
    "model": {"decoder": {"layers": 2, "hidden": 64, "heads": 4, "kv_heads": 2, "ffn": 128, "vocab": 300}},
    "train": {"sequence_length": 32},
    "cluster": {"gpu": "H100-SXM-80GB"},
}


@pytest.fixture(scope="module")
def plan() -> Iterator[planner.Plan]:
    yield planner.plan(SPEC)
    child.server().close()


def test_a_plan_is_that_of_the_command_line(plan: planner.Plan, tmp_path: Path) -> None:
    path = tmp_path / "job.json"
    path.write_text(json.dumps(SPEC))
    command = [sys.executable, "-m", "planner", "plan", str(path), "--format", "json"]
    said = json.loads(subprocess.run(command, capture_output=True, check=True).stdout)

    assert {**plan.to_dict(), "seconds": None} == {**said, "seconds": None}


def test_it_says_the_figures_of_the_fullest_ranks(plan: planner.Plan) -> None:
    (statement,) = plan.rank_classes

    assert (plan.verdict, plan.fits, plan.advice) == (Verdict.FITS, True, ())
    assert (plan.fullest, plan.device_bytes) == (statement, statement.peak.device_bytes)
    assert plan.headroom_bytes == plan.capacity_bytes - plan.device_bytes
    assert repr(plan).startswith("<Plan <small> fits: rank 0 needs 0.")
    assert str(plan).startswith("Fits: rank 0 needs 0.")
    assert "\n<small>\ndecoder 2 × 64 · micro-batch 1 × 32, AdamW · one process · H100-SXM-80GB\n" in str(plan)


def test_in_a_notebook_it_is_a_card_without_scripts(plan: planner.Plan) -> None:
    card = plan._repr_html_()

    assert "<b>&lt;small&gt; <span" in card
    assert "Fits: " in card
    assert ("<script" in card, "http" in card) == (False, False)
    assert card.count("<div") == card.count("</div>")


def test_the_page_and_the_snapshot_are_written(plan: planner.Plan, tmp_path: Path) -> None:
    plan.write_timeline(tmp_path / "plan.html")
    plan.write_snapshot(tmp_path / "plan.pickle")

    assert "memory over time" in (tmp_path / "plan.html").read_text(encoding="utf-8")
    assert (tmp_path / "plan.pickle").stat().st_size > 1000


def test_what_cannot_be_planned_is_said_as_everywhere() -> None:
    config = {"model_type": "mixtral", "architectures": ["MixtralForCausalLM"], "hidden_size": "wide"}

    with pytest.raises((SpecError, TraceError), match="wide"):
        planner.plan({**SPEC, "model": {"hf_config": config}})


def test_a_job_that_cannot_fit_is_refused_without_pytorch() -> None:
    code = (
        "import sys, planner\n"
        "found = planner.check('Qwen/Qwen3-8B', gpus='1xH100')\n"
        "print(found.fits, found.plan, 'torch' in sys.modules)\n"
        "print(found)"
    )
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)

    assert ended.stdout.splitlines()[0] == "False None False"
    assert ended.stdout.splitlines()[1].startswith("qwen3-8b does not fit: a rank needs at least ")


@pytest.mark.parametrize("ask", [planner.check, planner.plan])
def test_a_job_without_a_gpu_is_refused_with_what_to_name(ask: Callable[[Any], object]) -> None:
    with pytest.raises(SpecError, match="the job names no GPU") as refused:
        ask({**SPEC, "cluster": {"gpu": None}})

    assert (refused.value.place, "a name of the catalog" in refused.value.allowed) == ("cluster.gpu", True)


def test_a_job_that_may_fit_is_checked_by_its_plan(plan: planner.Plan) -> None:
    found = planner.check(SPEC)

    assert (found.verdict, found.fits) == (Verdict.FITS, True)
    assert str(found) == repr(plan).removeprefix("<Plan ").removesuffix(">")


def test_a_plan_is_compared_with_what_was_measured(plan: planner.Plan, tmp_path: Path) -> None:
    plan.write_snapshot(tmp_path / "recorded.pickle")
    (comparison,) = planner.compare(plan, tmp_path / "recorded.pickle")

    assert {each.name: each.error_percent for each in comparison.peak} == {"allocated": 0.0, "reserved": 0.0}
    assert str(comparison).startswith("recorded.pickle on cuda:0")


def test_a_name_that_there_is_not_is_said_by_python() -> None:
    with pytest.raises(AttributeError, match="module 'planner' has no attribute 'plans'"):
        planner.plans  # noqa: B018  # type: ignore[attr-defined]
