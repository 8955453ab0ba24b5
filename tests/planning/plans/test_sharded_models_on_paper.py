"""fully_shard of models that are not the built-in decoder: together the ranks hold what one rank alone would."""

from __future__ import annotations

import dataclasses

import pytest
from architectures import TABLE, job_of

from planner.job.schema import Cluster, DpShard, Gpu, Job, Parallel
from planner.tracing.job_program import trace
from planner.truth.measuring.measurement_lines import most_by_category
from planner.units import GIB

MODELS = ["llama", "mamba", "mixtral", "resnet", "gpt2", "bert", "vit", "convnext"]
GPU = Gpu(total_bytes=80 * GIB, arch="sm_90")


def sharded(job: Job, ranks: int) -> Job:
    return dataclasses.replace(
        job,
        parallel=Parallel(dp_shard=DpShard(degree=ranks)),
        cluster=Cluster(gpus_per_node=ranks, gpu=GPU),
    )


@pytest.mark.parametrize("name", MODELS)
def test_the_ranks_of_a_transformers_model_hold_together_what_one_alone_would(name: str) -> None:
    alone = dataclasses.replace(job_of(TABLE[name]), cluster=Cluster(gpu=GPU))

    whole = most_by_category(trace(alone).events)
    parts = [most_by_category(trace(sharded(alone, 2), rank).events) for rank in (0, 1)]

    assert sum(each["optimizer_state"] for each in parts) == whole["optimizer_state"]
    # What is reduced is padded to the first rank's size on every rank.
    assert {2 * each["gradient"] for each in parts} == {parts[0]["optimizer_state"]}
