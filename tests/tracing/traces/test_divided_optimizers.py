"""ZeroRedundancyOptimizer for real, over gloo, beside the same ranks traced on paper; and which ranks are alike."""

from __future__ import annotations

from typing import Any

import pytest
from cpu_runs import Both, assert_exact, both_ways

from planner.job.layout import Mesh, parts_of, rank_classes
from planner.job.schema import Cluster, Decoder, DpReplicate, Gpu, Job, Metadata, Model, Optimizer, Parallel, Train
from planner.tracing.job_program import trace


def divided(name: str, ranks: int, *, optimizer: str = "AdamW", layers: int = 3, **replicate: Any) -> Job:
    decoder = Decoder(layers=layers, hidden=128, heads=4, kv_heads=2, ffn=384, vocab=1000)
    return Job(
        metadata=Metadata(name=name),
        model=Model(decoder=decoder),
        train=Train(
            micro_batch_size=8,
            sequence_length=64,
            iterations=2,
            optimizer=Optimizer(name=optimizer),
            gradient_clipping=1.0,
        ),
        parallel=Parallel(dp_replicate=DpReplicate(degree=ranks, zero_redundancy_optimizer=True, **replicate)),
        cluster=Cluster(gpus_per_node=ranks, gpu=Gpu(total_bytes=80 * 2**30, arch="sm_90")),
    )


PAIRS = [divided("adamw", 2), divided("views", 2, gradient_as_bucket_view=True), divided("adam", 2, optimizer="Adam")]
BOTH = [(job.metadata.name, rank) for job in PAIRS for rank in (0, 1)]


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Both:
    return both_ways(tmp_path_factory.mktemp("runs"), [(PAIRS, 2)], "divided_optimizers")


@pytest.mark.parametrize(("name", "rank"), BOTH)
def test_parts_of_the_optimizer_are_exact(runs: Both, name: str, rank: int) -> None:
    assert_exact(*runs[name, rank])


def test_the_parts_together_are_the_whole_and_they_differ(runs: Both) -> None:
    first, second = (runs["adamw", rank][1].categories for rank in (0, 1))

    assert first["optimizer_state"] != second["optimizer_state"]
    assert first["optimizer_state"] + second["optimizer_state"] == pytest.approx(2 * first["gradient"], rel=1e-3)


def test_each_rank_does_what_the_first_of_its_class_does() -> None:
    job = divided("five", 5, layers=2)
    (only,) = rank_classes(Mesh.of(job.parallel))
    events = {rank: trace(job, rank) for rank in range(5)}

    classes = parts_of(Mesh.of(job.parallel), only, (), events[0].parts)

    assert len(classes) > 1
    assert {rank: events[rank].events for rank in range(5)} == {
        rank: events[each.representative].events for each in classes for rank in each.ranks
    }
