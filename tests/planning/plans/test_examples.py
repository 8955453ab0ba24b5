"""The examples are jobs at full size: they plan, and the one pair says what it is there to say."""

from __future__ import annotations

import dataclasses
from functools import cache
from pathlib import Path

import pytest

from planner.events import Category
from planner.job.loading import load_job
from planner.job.schema import Job
from planner.planning.plan import plan_job
from planner.report.plan_text import render
from planner.report.statement import Plan, Verdict
from planner.report.style import Style
from planner.units import GIB
from planner.versions import torch_at_hand

EXAMPLES = Path(__file__).parents[3] / "examples"


@cache
def _planned(name: str) -> Plan:
    job: Job = load_job(EXAMPLES / f"{name}.yaml")
    # The peak is that of the second iteration; a third would only take longer.
    # Of the torch of here, or else the interval would be wider by what versions differ.
    return plan_job(dataclasses.replace(
        job, train=dataclasses.replace(job.train, iterations=2),
        software=dataclasses.replace(job.software, torch=torch_at_hand()),
    )).plan  # fmt: skip


def test_the_second_copy_of_the_gradients_decides_whether_nemotron_fits() -> None:
    copied, viewed = _planned("nemotron-4b-ddp"), _planned("nemotron-4b-ddp-bucket-view")

    assert (copied.verdict, viewed.verdict) == (Verdict.EXCEEDS, Verdict.FITS)

    with_copy, with_view = (each.rank_classes[0].at_peak for each in (copied, viewed))
    assert with_copy[Category.BUCKET] == pytest.approx(with_copy[Category.PARAMETER], rel=1e-3)
    assert with_copy[Category.GRADIENT] == pytest.approx(with_copy[Category.PARAMETER], rel=1e-3)
    assert with_view[Category.GRADIENT] < with_copy[Category.GRADIENT] / 5


def test_the_readme_shows_what_the_plan_prints() -> None:
    readme = (EXAMPLES.parent / "README.md").read_text(encoding="utf-8")
    verdict, change = readme.partition("$ make plan\n")[2].splitlines()[:2]
    printed = render(_planned("nemotron-4b-ddp"), Style()).splitlines()
    smaller = _planned("nemotron-4b-ddp-bucket-view").rank_classes[0].peak.device_bytes

    assert printed[0] == verdict
    assert change == (
        f"Smallest change: parallel.dp_replicate.gradient_as_bucket_view: true → {smaller / GIB:.2f} GiB."
    )


@pytest.mark.parametrize(
    ("name", "parameters", "dtype_bytes"),
    [
        ("bert-large-mlm", 335_174_458, 4),
        ("gpt2-xl", 1_557_611_200, 4),
        ("llama-3-8b-sft", 8_030_261_248, 2),
        ("llama-3-70b-sft", 70_553_706_496, 2),
        ("resnet-50", 25_557_032, 4),
        ("vit-h-14", 632_045_800, 4),
    ],
)
def test_a_full_size_example_plans_with_as_many_parameters_as_published(
    name: str, parameters: int, dtype_bytes: int
) -> None:
    found = _planned(name).rank_classes[0]

    # On top come buffers and what is not cut off a block: 25 MiB in a segment of 26 MiB count 26.
    assert 1.0 <= found.at_peak[Category.PARAMETER] / (parameters * dtype_bytes) < 1.03
    assert sum(found.at_peak.values()) == found.peak.allocated_bytes


@pytest.mark.parametrize(("name", "shards"), [("llama-3-8b-fsdp2", 64), ("llama-3-8b-hsdp", 8)])
def test_a_sharded_example_has_its_share_of_the_optimizers_state(name: str, shards: int) -> None:
    found = _planned(name).rank_classes[0]

    assert found.at_peak[Category.OPTIMIZER_STATE] == pytest.approx(2 * 4 * 8_030_261_248 / shards, rel=1e-3)
    assert sum(found.at_peak.values()) == found.peak.allocated_bytes


def test_an_offloaded_example_has_its_parameters_on_the_device_only_while_they_are_gathered() -> None:
    found = _planned("llama-3-8b-fsdp2-offload").rank_classes[0]

    assert (found.at_peak[Category.OPTIMIZER_STATE], found.at_peak[Category.GRADIENT]) == (0, 0)
    assert max(each.end_allocated_bytes for each in found.phases if each.phase == "optimizer_step") < 2**27


@pytest.mark.parametrize(("name", "ranks"), [("llama-3-8b-fsdp2", 64), ("llama-3-8b-hsdp", 8), ("llama-3-8b-tp8", 8)])
def test_split_examples_load_the_share_of_each_rank(name: str, ranks: int) -> None:
    load = _planned(name).rank_classes[0].phases[0]

    # Norms are whole on every rank under tensor parallelism; rotary tables are nobody's share.
    assert load.end_allocated_bytes / (8_030_261_248 * 4 / ranks) == pytest.approx(1.0, abs=0.01)


def test_every_example_is_in_the_table() -> None:
    said = (EXAMPLES / "README.md").read_text()
    named = {path.stem for path in EXAMPLES.glob("*.yaml")}

    missing = {name for name in named if name not in said and f"-{name.rsplit('-', 1)[-1]}" not in said}
    assert missing == set()
