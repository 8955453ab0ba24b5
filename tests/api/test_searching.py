"""Searches, largest sizes and sweeps as objects: the figures of the commands, and pictures of them."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest

import planner
from planner.api import child
from planner.errors import SpecError

SPEC: dict[str, Any] = {
    "metadata": {"name": "<small>"},
    "model": {"decoder": {"layers": 2, "hidden": 64, "heads": 4, "kv_heads": 2, "ffn": 128, "vocab": 300}},
    "train": {"sequence_length": 32, "micro_batch_size": 2},
    "cluster": {"gpu": "H100-SXM-80GB"},
}


@pytest.fixture(scope="module", autouse=True)
def server() -> Iterator[None]:
    """One child loads PyTorch for all of them."""
    yield
    child.server().close()


def test_the_best_of_a_search_is_a_job_whose_plan_says_the_same() -> None:
    axes = {"recompute": ["none", "full"], "pp": 1, "micro_batch_size": 2}
    found = planner.search(SPEC, gpus="2xH100", axes=axes, fsdp=True, tp=1, objective="memory", top=2)

    document = found.to_dict()
    assert (document["schema"], found.complete, len(found.candidates)) == ("planner.search/1", True, 2)
    assert found.best is not None
    assert found.best.parallel.dp_shard.degree == 2
    plan = planner.plan(found.best)
    assert plan.device_bytes == found.candidates[0].exact.device_bytes == document["candidates"][0]["device_bytes"]
    assert str(found).startswith("2 candidates by least memory, each proven by a plan\n")
    assert found._repr_html_().startswith("<pre>2 candidates by least memory")


def test_the_largest_size_is_found_with_its_job() -> None:
    spec = {**SPEC, "cluster": {"gpu": {"total_bytes": "2GiB", "arch": "sm_90"}}}
    found = planner.max(spec, "micro_batch_size", step=512)

    assert found.value == max(size for size, exact in found.planned.items() if exact.fits)
    assert not found.planned[found.value + 512].fits
    assert found.job.train.micro_batch_size == found.value
    assert (found.to_dict()["schema"], found.to_dict()["value"]) == ("planner.max/1", found.value)
    assert repr(found) == f"<Largest micro_batch_size {found.value}>"


def test_a_sweep_has_every_point() -> None:
    found = planner.sweep(SPEC, {"micro_batch_size": [1, 2], "sequence_length": "32,64"})

    assert [point.labels for point in found.points] == [("1", "32"), ("1", "64"), ("2", "32"), ("2", "64")]
    assert {point.verdict for point in found.points} == {"fits"}
    assert found.to_dict()["schema"] == "planner.sweep/1"
    assert str(found).startswith("micro_batch_size down, sequence_length across\n")


WRONG: dict[str, tuple[Any, str]] = {
    "an axis that is none": (
        lambda: planner.search(SPEC, axes=["recompote=none"]), "there is no axis 'recompote'",
    ),
    "values that are an object": (
        lambda: planner.sweep(SPEC, {"tp": {}}), "the values of tp are an object",
    ),
    "nothing varied": (lambda: planner.sweep(SPEC, {}), "nothing is varied"),
    "an objective that is none": (
        lambda: planner.search(SPEC, objective="speed"), "there is no objective 'speed'",
    ),
    "a size that has no largest": (
        lambda: planner.max(SPEC, "tp"), "tp has no largest value: more of it does not always take more memory",
    ),
    "no time": (lambda: planner.max(SPEC, "micro_batch_size", seconds=0), "in 0 seconds nothing can be planned"),
    "nothing to show": (lambda: planner.search(SPEC, top=0), "top is 0"),
    "degrees that no layout has": (
        lambda: planner.search(SPEC, gpus=8, tp=3), "no layout of 8 GPUs has tp 3",
    ),
    "a GPU twice": (
        lambda: planner.search(SPEC, gpus="4xH100", gpu="A100"), "gpus names H100, and gpu A100",
    ),
    "a GPU that is none": (
        lambda: planner.search(SPEC, gpus="8xH1000"), "there is no GPU `H1000` in the catalog",
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", WRONG)
def test_what_cannot_be_asked_is_said_as_everywhere(case: str) -> None:
    ask, said = WRONG[case]
    with pytest.raises(SpecError) as refused:
        ask()
    assert refused.value.problem == said


def test_searching_leaves_pytorch_to_the_child() -> None:
    code = "import sys, planner; planner.search, planner.max, planner.sweep; print({'torch', 'ray'} & set(sys.modules))"
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ended.stdout == "set()\n"
