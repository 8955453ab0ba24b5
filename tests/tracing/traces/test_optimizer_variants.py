"""Optimizers that keep few bits, or step in the backward: for real on a CPU beside paper, and to the byte by hand."""

from __future__ import annotations

import math
from collections import Counter
from typing import Any

import pytest
from cpu_runs import Both, assert_exact, both_ways

from planner.events import Category, Role
from planner.job.schema import (
    Cluster,
    Decoder,
    DpShard,
    Gpu,
    Job,
    Metadata,
    Model,
    Optimizer,
    Parallel,
    Recompute,
    Train,
)
from planner.tracing.job_program import trace
from planner.truth.measuring.measurement_lines import most_by_category, phases_of

SHAPES = [(1000, 128), (1000, 128), (128,), *2 * [(128,), (128, 128), (64, 128), (64, 128), (128, 128), (128,),
          (384, 128), (384, 128), (128, 384)]]  # fmt: skip
"""Of the decoder below."""


def small(name: str = "", *, ranks: int = 1, optimizer: str = "AdamW", **train: Any) -> Job:
    return Job(
        metadata=Metadata(name=name or optimizer),
        model=Model(decoder=Decoder(layers=2, hidden=128, heads=4, kv_heads=2, ffn=384, vocab=1000)),
        train=Train(micro_batch_size=8, sequence_length=64, iterations=2, optimizer=Optimizer(name=optimizer), **train),
        parallel=Parallel(dp_shard=DpShard(degree=ranks)),
        cluster=Cluster(gpus_per_node=ranks, gpu=Gpu(total_bytes=80 * 2**30, arch="sm_90")),
    )


REAL = [small("in-backward", optimizer_in_backward=True)]


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Both:
    return both_ways(tmp_path_factory.mktemp("runs"), [(REAL, 1)], "optimizer_variants")


@pytest.mark.parametrize("name", [job.metadata.name for job in REAL])
def test_what_is_kept_is_exact(runs: Both, name: str) -> None:
    assert_exact(*runs[name, 0])


def states(job: Job) -> int:
    return most_by_category(trace(job).events)[Category.OPTIMIZER_STATE]


def test_eight_bits_take_two_codes_and_their_scales() -> None:
    """Two states: codes of a byte, a scale of float32 for each 256, two tables in all; small tensors in float32."""
    sizes = [math.prod(shape) for shape in SHAPES]
    large, small_ones = [size for size in sizes if size >= 4096], [size for size in sizes if size < 4096]

    expected = sum(2 * (size + 4 * -(-size // 256)) for size in large) + 2 * 4 * sum(small_ones) + 2 * 256 * 4
    assert states(small(optimizer="bitsandbytes.AdamW8bit")) == expected


def test_what_is_paged_lies_in_no_memory_of_the_allocator() -> None:
    """The embedding and the head have more than 100,000 elements each; their scales are not paged."""
    assert (
        states(small(optimizer="bitsandbytes.AdamW8bit")) - states(small(optimizer="bitsandbytes.PagedAdamW8bit"))
        == 2 * 2 * 128_000
    )


def test_a_state_that_is_born_within_a_reduction_is_no_communication() -> None:
    """fully_shard steps there: the hook of a shard is called by `foreach_reduce`."""
    after, within = (trace(small(optimizer_in_backward=flag, ranks=2)).events for flag in (False, True))

    assert _named(after, Category.COMMUNICATION) == _named(within, Category.COMMUNICATION) != Counter()
    assert _named(after, Category.OPTIMIZER_STATE) == _named(within, Category.OPTIMIZER_STATE) != Counter()


def _named(events: Any, category: Category) -> Counter[str]:
    """How often a block took on the category, by what it is called."""
    blocks = {(each.block, each.name) for each in events if isinstance(each, Role) and each.category is category}
    return Counter(name for _, name in blocks)


@pytest.mark.parametrize("arguments", [{"fused": True}, {"capturable": True}])
def test_fused_and_capturable_keep_their_steps_on_the_device(arguments: dict[str, Any]) -> None:
    job = small()
    on_device = Job(
        model=job.model,
        train=Train(micro_batch_size=8, sequence_length=64, iterations=2, optimizer=Optimizer(arguments=arguments)),
        cluster=job.cluster,
    )

    born = [len(_state_blocks(trace(each).events)) for each in (job, on_device)]
    assert born == [2 * len(SHAPES), 3 * len(SHAPES)]


def _state_blocks(events: Any) -> set[int]:
    return {each.block for each in events if isinstance(each, Role) and each.category is Category.OPTIMIZER_STATE}


@pytest.mark.parametrize("ranks", [1, 2])
def test_offloaded_activations_are_gone_when_the_forward_ends(ranks: int) -> None:
    kept, offloaded = (phases_of(trace(small(ranks=ranks, activation_offload=flag)).events) for flag in (False, True))

    ends = [(each.phase, here.end.requested_bytes - each.end.requested_bytes) for here, each in zip(
        kept, offloaded, strict=True) if each.phase == "forward"]  # fmt: skip
    assert all(saved > 2 * 8 * 64 * 384 * 4 * 4 for _, saved in ends), ends


@pytest.mark.parametrize("mode", ["full", "selective"])
def test_blocks_that_recompute_offload_their_inputs(mode: str) -> None:
    """What `selective` keeps besides stays: torch's cache of it is shown to nobody."""
    jobs = (small(activation_offload=flag, recompute=Recompute(mode=mode)) for flag in (False, True))
    kept, offloaded = (
        [each.end.requested_bytes for each in phases_of(trace(job).events) if each.phase == "forward"] for job in jobs
    )
    inputs_bytes = 2 * 8 * 64 * 128 * 4

    assert all(inputs_bytes <= k - o < 1.2 * inputs_bytes for k, o in zip(kept, offloaded, strict=True))
