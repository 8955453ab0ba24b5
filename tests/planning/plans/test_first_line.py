"""The first line of the README plans, for a model that is small enough for a test."""

from __future__ import annotations

import dataclasses
from pathlib import Path

from planner.events import Category
from planner.job.named_jobs import GivenJob, read
from planner.job.shorthand import REST, Shorthand
from planner.planning.plan import plan_job

WORDS = Shorthand(gpus="4xH100", lora="r=16", seq="256", batch=2, fsdp=REST)


def test_an_adapter_beside_a_sharded_model_plans_without_a_file() -> None:
    few_layers = GivenJob(
        named="HuggingFaceTB/SmolLM2-135M", words=WORDS, settings=["model.hf_config.num_hidden_layers=3"]
    )
    job = read(few_layers, Path()).job
    brief = dataclasses.replace(job, train=dataclasses.replace(job.train, iterations=2))

    found = plan_job(brief).plan.rank_classes

    assert [str(each.ranks) for each in found] == ["0-3"]
    quarter_of_the_embedding_in_bf16 = 49152 * 576 * 2 / 4
    assert found[0].at_peak[Category.PARAMETER] > quarter_of_the_embedding_in_bf16
    assert 0 < found[0].at_peak[Category.OPTIMIZER_STATE] < quarter_of_the_embedding_in_bf16 / 10
