"""DeepSpeed's stage 3 by its own engine: on paper beside real runs over gloo, and what its config's sizes do."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from cpu_runs import Both, Run, assert_exact, both_ways, without

from planner.events import Free, Mark, Phase
from planner.measuring.event_phases import phases_of
from planner.spec.job import Cluster, Decoder, DpReplicate, Gpu, Job, Metadata, Model, Parallel, Train

BF16 = {"bf16": {"enabled": True}}


def divided(
    name: str = "",
    ranks: int = 2,
    *,
    steps: int = 1,
    layers: int = 2,
    config: dict[str, Any] | None = None,
    **zero: Any,
) -> Job:
    decoder = Decoder(layers=layers, hidden=128, heads=4, kv_heads=2, ffn=384, vocab=1000)
    sizes = {"reduce_bucket_size": 150_000, "stage3_param_persistence_threshold": 1_000}
    written = {"zero_optimization": {"stage": 3, **sizes, **zero}, "gradient_clipping": "auto"}
    return Job(
        metadata=Metadata(name=name),
        model=Model(decoder=decoder),
        train=Train(
            micro_batch_size=8,
            sequence_length=64,
            iterations=2,
            gradient_accumulation_steps=steps,
            gradient_clipping=1.0,
        ),
        parallel=Parallel(dp_replicate=DpReplicate(degree=ranks), deepspeed={**written, **(config or {})}),
        cluster=Cluster(gpus_per_node=ranks, gpu=Gpu(total_bytes=80 * 2**30, arch="sm_90")),
    )


FP32 = {"data_types": {"grad_accum_dtype": "fp32"}}
PAIRS = [
    divided("usual"),
    divided("accumulated", steps=2, config=BF16),
    divided("few-live", stage3_max_live_parameters=200_000, stage3_max_reuse_distance=0, stage3_prefetch_bucket_size=0),
    divided("prefetched", stage3_max_reuse_distance=0, stage3_prefetch_bucket_size=60_000),
    divided("scattered", contiguous_gradients=False, stage3_param_persistence_threshold=0),
    divided("reduced-whole", reduce_scatter=False, overlap_comm=False),
    divided("in-groups-in-fp32", steps=2, config={**BF16, **FP32}, sub_group_size=100_000),
]
BOTH = [(job.metadata.name, rank) for job in PAIRS for rank in (0, 1)]
FEW_BYTES = 64
"""Flags, counters and norms, which DeepSpeed keeps where the device is: a CPU's on its host, a GPU's partly there."""


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Both:
    return both_ways(tmp_path_factory.mktemp("runs"), [(PAIRS, 2)])


def after_load(run: Run) -> Run:
    """Without what is gone when training begins: between CPUs the host's copy of the partitions is the device's."""
    ended: set[int] = set()
    for event in run.events:
        if isinstance(event, Mark) and event.phase is Phase.FORWARD:
            break
        if isinstance(event, Free):
            ended.add(event.block)
    return replace(run, events=without(run.events, *ended))


@pytest.mark.parametrize(("name", "rank"), BOTH)
def test_a_real_step_takes_what_is_traced(runs: Both, name: str, rank: int) -> None:
    paper, real = runs[name, rank]

    assert_exact(after_load(paper), after_load(real))
    peaks = [
        (a.phase, a.iteration, a.peak.requested_bytes - b.peak.requested_bytes)
        for a, b in zip(phases_of(paper.events), phases_of(real.events), strict=True)
    ]
    assert [each for each in peaks if abs(each[2]) > FEW_BYTES] == []
