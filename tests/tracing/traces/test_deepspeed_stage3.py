"""DeepSpeed's stage 3 by its own engine: on paper beside real runs over gloo, and what its config's sizes do."""

from __future__ import annotations

import gc
import sys
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import deepspeed_jobs
import pytest
from cpu_runs import Both, Run, assert_exact, both_ways, without
from deepspeed_jobs import BF16

from planner.allocator.replay import replay
from planner.errors import SpecError
from planner.events import Alloc, Category, Event, Free, Mark, Phase, Role
from planner.job.layout import Mesh, rank_classes
from planner.job.loading import load_job
from planner.job.schema import Cluster, DpReplicate, Job, Model, Parallel
from planner.paper import host_memory
from planner.planning import identity
from planner.planning.trace_source import USUAL_SOURCE
from planner.step_work import Launch
from planner.timing.gpu_clock import Prices
from planner.timing.pending_frees import complete_frees
from planner.timing.step_time import price_for_clock
from planner.tracing.job_program import trace
from planner.truth.measuring.measurement_lines import most_by_category, phases_of

HOST = {"device": "cpu"}


def divided(name: str = "", ranks: int = 2, **given: Any) -> Job:
    """By stage 3, where most parameters of so small a model would persist."""
    return deepspeed_jobs.divided(name, ranks, **{"stage": 3, "stage3_param_persistence_threshold": 1_000, **given})


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


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Both:
    return both_ways(tmp_path_factory.mktemp("runs"), [(PAIRS, 2)], "deepspeed_stage_3")


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
    assert paper.buffers == real.buffers != Counter()


def block_of(run: Run, category: Category, name: str) -> int:
    """The largest block that is given this role, under a name that begins so."""
    sizes = {each.block: each.requested_bytes for each in run.events if isinstance(each, Alloc)}
    roles = (each for each in run.events if isinstance(each, Role))
    return max(
        (each.block for each in roles if each.category is category and each.name.startswith(name)),
        key=sizes.__getitem__,
    )


@pytest.mark.parametrize(
    ("category", "name"),
    [
        (Category.PARAMETER, "deepspeed.partitions"),
        (Category.OPTIMIZER_STATE, "deepspeed.fp32_partitions"),
        (Category.OPTIMIZER_STATE, "exp_avg"),
        (Category.GRADIENT, "deepspeed.partitions"),
        (Category.BUCKET, "deepspeed.ipg"),
    ],
)
def test_a_partition_or_a_bucket_less_is_noticed(runs: Both, category: Category, name: str) -> None:
    paper, real = runs["usual", 0]
    poorer = replace(paper, events=without(paper.events, block_of(paper, category, name)))

    with pytest.raises(AssertionError):
        assert_exact(after_load(poorer), after_load(real))


def test_a_gathered_parameter_less_is_noticed(runs: Both) -> None:
    paper, real = runs["prefetched", 0]
    gathered = block_of(paper, Category.COMMUNICATION, "deepspeed.all_gather_params")

    assert replace(paper, events=without(paper.events, gathered)).buffers != real.buffers


def most(job: Job, rank: int = 0) -> dict[str, int]:
    return most_by_category(trace(job, rank).events)


def test_parameters_up_to_the_threshold_stay_whole() -> None:
    some, all_of_them = (most(divided(config=BF16, stage3_param_persistence_threshold=each)) for each in (0, 1_000_000))

    partition = some["parameter"]
    assert all_of_them["parameter"] == pytest.approx(3 * partition, rel=0.001)  # the whole of it, beside this half


def second_forward(**zero: int) -> int:
    """The peak of a forward whose modules DeepSpeed has seen before, in requested bytes."""
    events = trace(divided(layers=6, **zero)).events
    return next(p.peak.requested_bytes for p in phases_of(events) if (p.phase, p.iteration) == (Phase.FORWARD, 2))


def test_what_may_live_and_what_is_fetched_ahead_decides_the_peak() -> None:
    """Sizes are in elements. All 1.4 million of them may live; or none longer than it is used; or some are fetched
    ahead, but not where few may live."""
    everything = second_forward()
    few = second_forward(stage3_max_reuse_distance=0, stage3_prefetch_bucket_size=0)
    ahead = second_forward(stage3_max_reuse_distance=0, stage3_prefetch_bucket_size=300_000)
    limited = second_forward(
        stage3_max_reuse_distance=0, stage3_prefetch_bucket_size=300_000, stage3_max_live_parameters=100_000
    )

    assert few == limited < ahead < everything


def test_memory_that_another_stream_used_is_free_once_the_gpu_has_passed() -> None:
    traced = trace(divided(layers=6, stage3_max_reuse_distance=0, stage3_prefetch_bucket_size=0))

    at_once, timed, only_at_waits = (
        max(replay(complete_frees(traced.events, traced.repeats, prices).events).active_bytes)
        for prices in (
            Prices([0] * len(traced.work.kernels), [1] * len(traced.work.kernels)),
            price_for_clock(traced.work.kernels, "H100-SXM-80GB", "sm_90", 8),
            Prices([1 << 50] * len(traced.work.kernels), [0] * len(traced.work.kernels)),
        )
    )

    assert at_once <= timed < only_at_waits


def test_offload_leaves_the_partition_of_the_parameters_or_nothing() -> None:
    adamw = {**BF16, "optimizer": {"type": "AdamW"}}
    on_device = most(divided(config=adamw))
    optimizer = most(divided(config=adamw, offload_optimizer=HOST))
    both = most(divided(config=adamw, offload_optimizer=HOST, offload_param=HOST))

    assert optimizer.get("optimizer_state", 0) == both.get("optimizer_state", 0) == 0
    assert optimizer["parameter"] == on_device["parameter"]
    assert both["parameter"] < 0.02 * on_device["parameter"]  # norms alone, which are too small to be divided


def test_a_host_that_is_not_written_changes_nothing_on_the_device(monkeypatch: pytest.MonkeyPatch) -> None:
    job = divided(config={**BF16, "optimizer": {"type": "AdamW"}}, steps=2, offload_optimizer=HOST, offload_param=HOST)
    written = of_memory(trace(job).events)
    monkeypatch.setattr(host_memory, "_LARGE_BYTES", 0)

    assert of_memory(trace(job).events) == written


def of_memory(events: Sequence[Event]) -> list[Event]:
    return [event for event in events if not isinstance(event, Launch)]


@pytest.mark.parametrize("ranks", [3, 4])
def test_each_rank_does_what_the_first_of_its_class_does(ranks: int) -> None:
    job = divided(ranks=ranks, config=BF16)
    (only,) = rank_classes(Mesh.of(job.parallel))

    first, *others = (phases_of(trace(job, rank).events) for rank in only.ranks)

    assert len(others) == ranks - 1
    assert all(each == first for each in others)


def test_a_process_that_traced_before_traces_the_same() -> None:
    import torch

    job = divided("again")
    other = replace(job, parallel=Parallel(dp_replicate=DpReplicate(degree=2)))
    linear = torch.nn.functional.linear
    first, plain = trace(job).events, trace(other).events
    trace(divided(ranks=5, stage3_param_persistence_threshold=10))

    assert (trace(job).events, trace(other).events) == (first, plain)
    assert torch.nn.functional.linear is linear


@pytest.mark.parametrize("stage", [1, 2])
def test_an_engine_is_gone_with_its_trace(stage: int) -> None:
    before = count_engines()

    trace(divided(stage=stage))

    assert count_engines() == before


def count_engines() -> int:
    gc.collect()
    return sum(type(each).__name__ == "DeepSpeedEngine" for each in gc.get_objects())


@pytest.mark.parametrize("stage", [1, 2, 3])
def test_without_deepspeed_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch, stage: int) -> None:
    monkeypatch.setitem(sys.modules, "deepspeed", None)

    with pytest.raises(SpecError) as caught:
        USUAL_SOURCE.trace_rank(divided(stage=stage), 0)

    assert str(caught.value) == (
        "parallel.deepspeed: DeepSpeed 0.19.8, which runs ZeRO, needs what is not installed: deepspeed\n"
        "  change:  pip install 'deepspeed>=0.19.8,<0.20'"
    )


def test_what_deepspeed_refuses_is_said_in_its_words() -> None:
    with pytest.raises(SpecError) as caught:
        trace(divided(config={"fp16": {"enabled": True, "initial_scale_power": "often"}}))

    assert str(caught.value).startswith(
        "parallel.deepspeed: DeepSpeed 0.19.8 refuses the config: 1 validation error for DeepSpeedFP16Config"
        " initial_scale_power Input should be a valid integer"
    )


def test_the_example_has_its_share_of_a_published_number_of_parameters() -> None:
    job = load_job(Path(__file__).parents[3] / "examples/llama-3-8b-deepspeed-zero3.yaml")
    found = most(replace(job, train=replace(job.train, iterations=1, gradient_accumulation_steps=1)))

    share = 8_030_261_248 // 8
    assert found["optimizer_state"] == 12 * share  # master and two moments in fp32, without the number of steps
    assert 2 * share <= found["parameter"] < 2.01 * share  # and norms, whole


def test_stored_traces_hinge_on_the_version_of_deepspeed() -> None:
    of_deepspeed = [divided(stage=stage) for stage in (1, 2, 3)]
    plain = replace(of_deepspeed[0], parallel=Parallel(dp_replicate=DpReplicate(degree=2)))
    before = [identity.trace_id_of(each) for each in (*of_deepspeed, plain)]
    other = {**identity.every_version(), "deepspeed": "another"}

    after = [identity.trace_id_of(each, other) for each in (*of_deepspeed, plain)]

    assert [one != other for one, other in zip(before, after, strict=True)] == [True, True, True, False]


def test_it_trains_as_the_plain_optimizer_does() -> None:
    """One rank, on the host: the same parameters after two steps of two micro-batches."""
    import torch

    from planner.training import step

    job = divided(ranks=1, steps=2)
    plain = replace(job, parallel=Parallel())

    ours, theirs = (step.run(each, torch.device("cpu")).model for each in (job, plain))

    for one, other in zip(ours.module.parameters(), theirs.parameters(), strict=True):
        torch.testing.assert_close(one.ds_tensor.detach(), other.detach().flatten(), atol=1e-5, rtol=1e-4)


BERT = {
    "model_type": "bert", "architectures": ["BertForMaskedLM"], "hidden_size": 128, "intermediate_size": 256,
    "num_hidden_layers": 2, "num_attention_heads": 4, "vocab_size": 1000,
}  # fmt: skip


def test_transformers_divides_its_models_itself_and_no_rank_holds_a_whole_one() -> None:
    job = replace(
        divided(ranks=512, config=BF16), model=Model(hf_config=BERT), cluster=Cluster(nodes=64, gpus_per_node=8)
    )

    events = trace(job, target="sm_90").events

    load = next(each.peak.requested_bytes for each in phases_of(events) if each.phase is Phase.LOAD)
    largest = 2 * 512 * 128  # the positions' table, gathered to be filled, in 16 bits
    # RankComparison it the bucket and, until they are divided, the first modules' other parameters.
    assert largest < load < 2 * (150_000 + 3 * 512 * 128)
