"""What fully_shard holds on each rank. It is PyTorch's own; the other ranks are absent."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from planner.allocator.replay import replay
from planner.errors import SpecError
from planner.events import Event, Use
from planner.job.layout import Mesh, rank_classes, split_by_shards
from planner.job.schema import (
    CheckpointLoad,
    Cluster,
    Decoder,
    DpReplicate,
    DpShard,
    Gpu,
    Job,
    Model,
    Optimizer,
    Parallel,
    Train,
)
from planner.tracing.job_program import trace
from planner.tracing.rank_trace import Trace
from planner.truth.measuring.measurement_lines import most_by_category, phases_of

DECODER = Decoder(layers=2, hidden=64, heads=2, kv_heads=2, ffn=128, vocab=256)
UNEVEN = Decoder(layers=1, hidden=72, heads=2, kv_heads=2, ffn=130, vocab=257)
PARAMETERS = 2 * 256 * 64 + 2 * (4 * 64 * 64 + 3 * 64 * 128 + 2 * 64) + 64


def job(ranks: int, decoder: Decoder = DECODER, replicas: int = 1, **options: Any) -> Job:
    shard = {key: options.pop(key) for key in list(options) if key in DpShard.__dataclass_fields__}
    return Job(
        model=Model(decoder=decoder),
        train=Train(**{"micro_batch_size": 1, "sequence_length": 16, "iterations": 2, **options}),
        parallel=Parallel(dp_replicate=DpReplicate(degree=replicas), dp_shard=DpShard(degree=ranks, **shard)),
        cluster=Cluster(gpus_per_node=ranks * replicas, gpu=Gpu(total_bytes=80 << 30, arch="sm_90")),
    )


def most(traced: Trace) -> dict[str, int]:
    return most_by_category(traced.events)


def at_rest(traced: Trace) -> int:
    """Requested bytes at the end of the last iteration."""
    return phases_of(traced.events)[-1].end.requested_bytes


def test_nothing_that_rests_on_the_host_is_on_the_device_at_rest() -> None:
    traced = trace(job(2, offload="cpu", gradient_clipping=1.0, optimizer=Optimizer(name="AdamW")))

    assert "gradient" not in most(traced)
    assert "optimizer_state" not in most(traced)
    assert at_rest(traced) < PARAMETERS * 4 // 2 + (64 << 20)


@pytest.mark.parametrize(
    "options",
    [
        {"precision": "bf16_autocast"},
        {"precision": "fp16_autocast", "gradient_clipping": 1.0},
        {"optimizer": Optimizer(name="AdamW", arguments={"fused": True})},
        {"optimizer": Optimizer(name="SGD", arguments={"lr": 0.1, "foreach": False})},
        {"checkpoint_load": CheckpointLoad()},
    ],
    ids=str,
)
def test_it_goes_together_with_the_rest_of_a_job(options: dict[str, Any]) -> None:
    found = most(trace(job(2, **options)))

    assert found["gradient"] == PARAMETERS * 4 // 2


def test_a_whole_state_dict_on_the_device_is_refused() -> None:
    with pytest.raises(SpecError, match="a sharded model does not take a whole state dict"):
        trace(job(2, checkpoint_load=CheckpointLoad(map_location="device")))


def test_a_group_that_leads_nowhere_is_refused() -> None:
    with pytest.raises(SpecError, match="Decoder has no module 'nowhere'"):
        trace(job(2, groups=("nowhere",)))


@pytest.mark.parametrize(("ranks", "replicas"), [(3, 1), (5, 1), (3, 2)])
def test_every_rank_peaks_as_the_one_that_speaks_for_it(ranks: int, replicas: int) -> None:
    """Shards that do not divide: the last rank has fewer rows, or none."""
    spec = job(ranks, UNEVEN, replicas)
    mesh = Mesh.of(spec.parallel)
    (whole,) = rank_classes(mesh)
    traces = {rank: trace(spec, rank) for rank in range(ranks * replicas)}
    parts = split_by_shards(mesh, whole, traces[0].sharded_dims)

    assert len(parts) > 1
    for part in parts:
        assert {_peaks(traces[rank].events) for rank in part.ranks} == {_peaks(traces[part.representative].events)}


def test_no_block_is_used_on_another_stream_than_its_own() -> None:
    """fully_shard orders its streams by events and holds references: when a block is free does not hang on the GPU."""
    traced = trace(job(4, precision="fsdp_mixed"))

    assert not traced.is_timed
    assert not [event for event in traced.events if isinstance(event, Use)]


def _peaks(events: Sequence[Event]) -> tuple[int, int]:
    timeline = replay(events)
    return timeline.peak_allocated_bytes, timeline.peak_reserved_bytes
