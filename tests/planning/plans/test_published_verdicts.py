"""Verdicts on published runs of which it is known whether they ran: torchtitan's Qwen3-32B on H100 of 95 GiB."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from planner.job.loading import load_document
from planner.planning.plan import plan_job

SPECS = Path(__file__).parents[3] / "examples" / "published"
FSDP16, TP4 = "torchtitan-qwen3-32b-fsdp16", "torchtitan-qwen3-32b-tp4"


@pytest.mark.parametrize(
    ("spec", "batch", "verdict"),
    [
        pytest.param(FSDP16, 4, "fits", id="ran: 78.48 GiB reserved"),
        pytest.param(FSDP16, 8, "exceeds", id="ran out of memory: torchtitan-83"),
        pytest.param(FSDP16, 16, "exceeds", id="ran out of memory: torchtitan-84"),
        pytest.param(TP4, 16, "fits", id="ran: 70.20 GiB reserved"),
        pytest.param(TP4, 32, "exceeds", id="ran out of memory: torchtitan-87"),
    ],
)
def test_a_run_that_ran_out_of_memory_does_not_fit_and_one_that_ran_does(spec: str, batch: int, verdict: str) -> None:
    document = yaml.safe_load((SPECS / f"{spec}.yaml").read_text(encoding="utf-8"))
    document["train"]["micro_batch_size"] = batch

    assert plan_job(load_document(document)).plan.verdict == verdict
