"""Mixtures of experts on the paper GPU: what the rule decides, and ranks that are alike."""

from __future__ import annotations

from typing import Any

import pytest

from planner.job.layout import Mesh, rank_classes, split_by_shards
from planner.job.schema import Cluster, DpShard, Ep, Gpu, Job, Model, Parallel, Train
from planner.planning.trace_source import USUAL_SOURCE
from planner.tracing.job_program import trace
from planner.truth.measuring.measurement_lines import phases_of

MIXTRAL = {
    "model_type": "mixtral", "vocab_size": 200, "hidden_size": 64, "intermediate_size": 256, "num_hidden_layers": 1,
    "num_attention_heads": 4, "num_key_value_heads": 2, "num_local_experts": 8, "num_experts_per_tok": 2,
}  # fmt: skip


def mixture(*, ep: int = 1, dp_shard: int = 1, imbalance: float = 1.0, arch: str = "sm_90", **config: Any) -> Job:
    return Job(
        model=Model(hf_config={**MIXTRAL, **config}),
        train=Train(micro_batch_size=4, sequence_length=128, iterations=1),
        parallel=Parallel(dp_shard=DpShard(degree=dp_shard), ep=Ep(degree=ep, imbalance=imbalance)),
        cluster=Cluster(gpus_per_node=ep * dp_shard, gpu=Gpu(total_bytes=80 << 30, arch=arch)),
    )


def peaks(job: Job, rank: int = 0) -> list[tuple[str, int]]:
    traced = USUAL_SOURCE.trace_rank(job, rank)  # in a process of its own where the GPU is another
    return [(str(each.phase), each.peak.requested_bytes) for each in phases_of(traced.events)]


@pytest.mark.parametrize(("ep", "dp_shard"), [(2, 1), (2, 2), (2, 3), (4, 1)])
def test_every_rank_does_what_the_first_of_its_class_does(ep: int, dp_shard: int) -> None:
    job = mixture(ep=ep, dp_shard=dp_shard, imbalance=1.5)
    mesh = Mesh.of(job.parallel)
    (whole,) = rank_classes(mesh)

    for part in split_by_shards(mesh, whole, trace(job, 0).sharded_dims):
        first = peaks(job, part.representative)
        assert [peaks(job, rank) for rank in part.ranks] == [first] * len(list(part.ranks))


def test_the_fuller_the_fullest_rank_the_more_it_takes() -> None:
    even, fuller, fullest = (dict(peaks(mixture(ep=4, imbalance=each)))["backward"] for each in (1.0, 2.0, 4.0))

    assert even < fuller < fullest


def test_a_loop_over_experts_takes_what_its_fullest_expert_does() -> None:
    even, uneven = (
        dict(peaks(mixture(experts_implementation="eager", imbalance=each)))["backward"] for each in (1.0, 4.0)
    )

    assert even < uneven


@pytest.mark.parametrize("arch", ["sm_75", "sm_80", "sm_90"])
def test_experts_in_single_precision_run_on_every_gpu(arch: str) -> None:
    assert peaks(mixture(arch=arch))
