"""Plans of a trainer that shares its GPUs with an engine: phases, handovers, the largest safe share."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

import planner.paper  # noqa: F401  # before torch
from planner.events import Phase
from planner.job.schema import (
    Allocator,
    Cluster,
    Decoder,
    DpShard,
    FrozenModel,
    Gpu,
    Job,
    Model,
    Optimizer,
    Parallel,
    PostTraining,
    Rollout,
    Train,
    TrainerOffload,
    WeightSync,
)
from planner.planning.job_plan import plan_from_traces
from planner.planning.judging import RankTrace
from planner.planning.planned_classes import trace_job
from planner.records import from_plain, to_plain
from planner.report.statement import Plan, RankClassStatement, SharedGpu, SharedPhase, Verdict, from_json, to_json
from planner.units import GIB, MIB

JOB = Job(
    model=Model(decoder=Decoder(layers=2, hidden=1024, heads=8, kv_heads=4, ffn=4096, vocab=32000)),
    train=Train(micro_batch_size=8, sequence_length=256, optimizer=Optimizer(name="AdamW")),
    post_training=PostTraining(
        rollout=Rollout(max_model_len=512, max_num_seqs=16, max_num_batched_tokens=1024, tensor_parallel=2),
        trainer_offload=TrainerOffload(parameters=True, optimizer=True),
        reference=FrozenModel(micro_batch_size=8, offload=False),
    ),
    parallel=Parallel(dp_shard=DpShard(degree=2)),
    cluster=Cluster(gpus_per_node=2, gpu=Gpu(name="A100-SXM-40GB", total_bytes=8 * GIB, arch="sm_80")),
)


def with_said(**fields: Any) -> Job:
    assert JOB.post_training is not None
    return dataclasses.replace(JOB, post_training=dataclasses.replace(JOB.post_training, **fields))


def with_rollout(**fields: Any) -> Job:
    assert JOB.post_training is not None
    return with_said(rollout=dataclasses.replace(JOB.post_training.rollout, **fields))


@pytest.fixture(scope="module")
def traced() -> tuple[RankTrace, ...]:
    return trace_job(JOB)


@pytest.fixture(scope="module")
def kept_traced() -> tuple[RankTrace, ...]:
    """Of a trainer that gives nothing up."""
    return trace_job(with_said(trainer_offload=TrainerOffload(), empty_cache=False))


def planned(job: Job, traced: tuple[RankTrace, ...]) -> Plan:
    return plan_from_traces(job, traced).plan


def judged(job: Job, traced: tuple[RankTrace, ...]) -> tuple[RankClassStatement, SharedGpu]:
    (statement,) = planned(job, traced).rank_classes
    assert statement.shared is not None
    return statement, statement.shared


def row(shared: SharedGpu, phase: Phase) -> SharedPhase:
    return next(each for each in shared.phases if each.phase is phase)


def engine_bytes(row: SharedPhase) -> int:
    """All of the engine."""
    parts = row.engine_weights_bytes + row.engine_kv_cache_bytes + row.engine_activation_bytes
    return parts + row.engine_outside_bytes


def test_every_phase_says_who_holds_what(traced: tuple[RankTrace, ...]) -> None:
    statement, shared = judged(with_rollout(gpu_memory_utilization=0.5), traced)

    assert [each.phase for each in shared.phases] == [
        Phase.LOAD,
        Phase.WEIGHT_SYNC,
        Phase.ROLLOUT,
        Phase.REFERENCE_FORWARD,
        Phase.FORWARD,
        Phase.BACKWARD,
        Phase.OPTIMIZER_STEP,
    ]
    for each in shared.phases:
        own = each.trainer_bytes + each.reference_bytes + each.reward_bytes + each.outside_bytes
        assert each.total_bytes == own + engine_bytes(each)
        assert each.interval_bytes[0] <= each.total_bytes <= each.interval_bytes[1]
    assert statement.peak.device_bytes == max(each.total_bytes for each in shared.phases)


def test_the_engine_is_awake_where_it_is_needed_and_only_there(traced: tuple[RankTrace, ...]) -> None:
    _, shared = judged(with_rollout(gpu_memory_utilization=0.5), traced)

    awake = {each.phase: (each.engine_weights_bytes > 0, each.engine_kv_cache_bytes > 0) for each in shared.phases}
    assert awake.pop(Phase.WEIGHT_SYNC) == (True, False)
    assert awake.pop(Phase.ROLLOUT) == (True, True)
    assert set(awake.values()) == {(False, False)}
    assert engine_bytes(row(shared, Phase.LOAD)) == 0


def test_running_the_engine_holds_its_share(traced: tuple[RankTrace, ...]) -> None:
    _, shared = judged(with_rollout(gpu_memory_utilization=0.5), traced)

    running = row(shared, Phase.ROLLOUT)
    without_nccl = engine_bytes(running) - running.engine_outside_bytes + 164 * MIB
    assert without_nccl == pytest.approx(4 * GIB, abs=24 * MIB)


def test_a_trainer_that_rests_leaves_the_rollout_nothing_but_its_workspaces(
    traced: tuple[RankTrace, ...], kept_traced: tuple[RankTrace, ...]
) -> None:
    _, resting = judged(with_rollout(gpu_memory_utilization=0.3), traced)
    job = with_said(trainer_offload=TrainerOffload(), empty_cache=False)
    _, staying = judged(job, kept_traced)

    assert row(resting, Phase.ROLLOUT).trainer_bytes < 64 * MIB
    assert row(staying, Phase.ROLLOUT).trainer_bytes == row(staying, Phase.OPTIMIZER_STEP).trainer_bytes > GIB


def test_the_reference_model_has_a_column_of_its_own(traced: tuple[RankTrace, ...]) -> None:
    _, shared = judged(with_rollout(gpu_memory_utilization=0.5), traced)

    sharded = (2 * 32000 * 1024 + 2 * (2 * 1024**2 + 2 * 1024 * 512 + 3 * 1024 * 4096)) // 2 * 2
    assert sharded <= row(shared, Phase.ROLLOUT).reference_bytes < 1.02 * sharded  # in blocks


def test_the_largest_safe_share_fits_and_the_next_does_not(traced: tuple[RankTrace, ...]) -> None:
    _, shared = judged(with_rollout(gpu_memory_utilization=0.5), traced)
    safe, largest = shared.largest_safe_utilization, shared.largest_utilization

    def verdict(share: float) -> Verdict:
        return planned(with_rollout(gpu_memory_utilization=round(share, 2)), traced).verdict

    assert 0 < safe < largest < 1
    assert (verdict(safe), verdict(safe + 0.01)) == (Verdict.FITS, Verdict.TIGHT)
    assert (verdict(largest), verdict(largest + 0.01)) == (Verdict.TIGHT, Verdict.EXCEEDS)


def test_a_share_left_open_is_the_largest_safe_one(traced: tuple[RankTrace, ...]) -> None:
    statement, shared = judged(JOB, traced)

    assert shared.solved
    assert shared.utilization == shared.largest_safe_utilization
    assert statement.verdict is Verdict.FITS


def test_where_the_trainer_keeps_all_less_is_safe(
    traced: tuple[RankTrace, ...], kept_traced: tuple[RankTrace, ...]
) -> None:
    _, resting = judged(JOB, traced)
    _, staying = judged(with_said(trainer_offload=TrainerOffload(), empty_cache=False), kept_traced)

    assert staying.largest_safe_utilization < resting.largest_safe_utilization - 0.1


def test_an_engine_that_never_sleeps_is_named_where_the_trainer_lacks_room(traced: tuple[RankTrace, ...]) -> None:
    statement, shared = judged(with_rollout(gpu_memory_utilization=0.8, sleep_level=0), traced)

    assert statement.verdict is Verdict.EXCEEDS
    assert any(each.startswith("backward of iteration") for each in shared.kept)
    assert any("by vllm, which never sleeps (rollout.sleep_level: 1)" in each for each in shared.kept)


def test_what_the_trainer_keeps_is_named_with_its_key(kept_traced: tuple[RankTrace, ...]) -> None:
    job = with_said(
        trainer_offload=TrainerOffload(),
        empty_cache=False,
        rollout=dataclasses.replace(JOB.post_training.rollout, gpu_memory_utilization=0.9),  # type: ignore[union-attr]
    )
    _, shared = judged(job, kept_traced)

    (said,) = (each for each in shared.kept if each.startswith("rollout"))
    assert [key in said for key in ("trainer_offload.parameters: true", "trainer_offload.optimizer: true")] == [1, 1]
    assert "empty_cache: true" in said


def test_a_cache_awake_while_weights_are_sent_takes_its_place(traced: tuple[RankTrace, ...]) -> None:
    job = with_rollout(gpu_memory_utilization=0.5)
    assert job.post_training is not None
    early = dataclasses.replace(
        job, post_training=dataclasses.replace(job.post_training, weight_sync=WeightSync(while_awake="kv_cache"))
    )
    before, after = (row(judged(each, traced)[1], Phase.WEIGHT_SYNC) for each in (job, early))

    assert after.total_bytes - before.total_bytes == after.engine_kv_cache_bytes > GIB


def test_a_process_of_its_own_has_a_context_of_its_own(traced: tuple[RankTrace, ...]) -> None:
    together, apart = (
        row(judged(with_rollout(gpu_memory_utilization=0.5, placement=each), traced)[1], Phase.BACKWARD)
        for each in ("same_process", "own_process")
    )

    assert apart.engine_outside_bytes - together.engine_outside_bytes > 300 * MIB


def test_a_share_too_small_for_one_sequence_does_not_start(traced: tuple[RankTrace, ...]) -> None:
    statement, shared = judged(with_rollout(gpu_memory_utilization=0.02), traced)

    assert statement.verdict is Verdict.EXCEEDS
    assert shared.kept == (
        "vllm does not start: at a share of 0.02 its KV cache holds 0 tokens, and a sequence of 512 takes 1.00 MiB",
    )


def test_the_weights_of_a_sleeping_engine_rest_on_the_host_at_level_1(traced: tuple[RankTrace, ...]) -> None:
    def highest(level: int) -> int:
        found = planned(with_rollout(gpu_memory_utilization=0.5, sleep_level=level), traced)
        assert found.host is not None
        return max(node.peak.bytes for node in found.host.nodes)

    assert highest(1) > highest(2)


def test_a_plan_comes_back_from_its_document(traced: tuple[RankTrace, ...]) -> None:
    found = planned(with_rollout(gpu_memory_utilization=0.5), traced)
    (statement,) = found.rank_classes
    assert statement.shared is not None

    assert from_plain(SharedGpu, to_plain(statement.shared)) == statement.shared
    assert from_json(to_json(found)).rank_classes == found.rank_classes


def test_the_interval_has_what_was_reported_of_sleeping_engines_of_several_ranks(
    traced: tuple[RankTrace, ...],
) -> None:
    def margin(ranks: int) -> int:
        found = row(judged(with_rollout(gpu_memory_utilization=0.5, tensor_parallel=ranks), traced)[1], Phase.BACKWARD)
        own = found.trainer_bytes + found.reference_bytes + found.outside_bytes
        return found.interval_bytes[1] - own - 164 * MIB

    assert margin(2) - margin(1) > GIB


def test_what_is_taken_for_granted_is_said(traced: tuple[RankTrace, ...]) -> None:
    _, shared = judged(with_rollout(gpu_memory_utilization=0.5, enforce_eager=False), traced)
    expandable = dataclasses.replace(JOB, allocator=Allocator(conf="expandable_segments:True"))

    sources = ["verl-project/verl#6266", "NVIDIA-NeMo/RL#223", "vllm-project/vllm#12126", "vllm-project/vllm#39559"]
    assert [any(source in each for each in shared.assumed) for source in sources] == [True] * 4
    assert any("vllm-project/vllm#11743" in each for each in judged(expandable, traced)[1].assumed)
