"""What a traced step says of the work of its GPU."""

from __future__ import annotations

import dataclasses
import json
from collections import Counter
from dataclasses import replace
from typing import Any

import pytest

import planner.paper  # noqa: F401
from planner.job.layout import Mesh, rank_classes
from planner.job.schema import Cluster, Decoder, DpReplicate, DpShard, Gpu, Job, Model, Parallel, Pp, Tp, Train
from planner.planning import judging
from planner.planning.judging import RankTrace
from planner.planning.trace_source import USUAL_SOURCE
from planner.step_work import LaunchKind, StepWork
from planner.timing.kernel_seconds import operations_of
from planner.tracing import job_program, rank_trace
from planner.truth.calibration.interval import Calibration

LAYERS = 2


def job(parallel: Parallel | None = None, **train: Any) -> Job:
    parallel = parallel or Parallel()
    gpu = Gpu(name="H100-SXM-80GB", total_bytes=80 << 30, arch="sm_90")
    return Job(
        model=Model(decoder=Decoder(layers=LAYERS, hidden=64, heads=4, kv_heads=4, ffn=128, vocab=300)),
        train=Train(micro_batch_size=2, sequence_length=32, **{"precision": "bf16_autocast", **train}),
        parallel=parallel,
        cluster=Cluster(gpus_per_node=Mesh.of(parallel).world_size, gpu=gpu),
    )


def counted(work: StepWork) -> Counter[str]:
    ops: Counter[str] = Counter()
    for number, count in work.count_kernels().items():
        ops[work.kernels[number].op] += count
    return ops


def test_an_iteration_has_three_products_of_every_linear_layer_and_attention_both_ways() -> None:
    ops = counted(job_program.trace(job()).work)
    linear_layers = 7 * LAYERS + 1
    assert ops["aten::mm"] == 3 * linear_layers
    assert ops["aten::_cudnn_attention_forward"] == LAYERS
    assert ops["aten::_cudnn_attention_backward"] == LAYERS
    assert ops["aten::gather"] == 1  # of the embedding


@pytest.mark.parametrize(
    ("arch", "precision"), [("sm_90", "bf16_autocast"), ("sm_80", "bf16_autocast"), ("sm_90", "none")]
)
def test_attention_by_any_of_torchs_kernels_computes_half_of_the_square(arch: str, precision: str) -> None:
    """By cuDNN, by FlashAttention and by the memory-efficient kernel."""
    elsewhere = Cluster(gpu=Gpu(total_bytes=80 << 30, arch=arch))
    traced = USUAL_SOURCE.trace_rank(replace(job(precision=precision), cluster=elsewhere), 0)
    forward = 4 * 2 * 4 * 32 * 16 * 16
    computed = [operations_of(kernel) for kernel in traced.work.kernels if "attention" in kernel.op]
    assert computed == [forward, 2.5 * forward]


@pytest.mark.parametrize("parallel", [Parallel(), Parallel(dp_replicate=DpReplicate(degree=2)),
                                      Parallel(dp_shard=DpShard(degree=2))])  # fmt: skip
def test_work_that_is_folded_is_that_of_running_it_all(parallel: Parallel) -> None:
    accumulating = job(parallel, gradient_accumulation_steps=5)
    folded, whole = (job_program.trace(accumulating, shortened=shortened).work for shortened in (True, False))
    assert counted(folded) == counted(whole)


def test_ddp_reduces_every_gradient_once_on_a_stream_of_its_own() -> None:
    work = job_program.trace(job(Parallel(dp_replicate=DpReplicate(degree=4)))).work
    reduced = [
        (work.kernels[launch.what], launch.stream)
        for launch in work.launches
        if launch.kind == LaunchKind.KERNEL and work.kernels[launch.what].op == "nccl::allreduce"
    ]
    elements = 2 * 300 * 64 + LAYERS * (4 * 64 * 64 + 3 * 64 * 128 + 2 * 64) + 64
    assert sum(kernel.read_bytes for kernel, _ in reduced) == 4 * elements
    assert {kernel.scalars for kernel, _ in reduced} == {(4, 1)}
    assert all(stream > 0 for _, stream in reduced)


def test_tensor_parallelism_waits_for_its_collectives() -> None:
    work = job_program.trace(job(Parallel(tp=Tp(degree=2)))).work
    assert any(op.startswith("nccl::") for op in counted(work))
    assert any(launch.kind == LaunchKind.WAIT_ALL for launch in work.launches)


def test_a_stage_hears_once_of_every_micro_batch() -> None:
    parallel = Parallel(pp=Pp(degree=2, schedule="1F1B"))
    ops = counted(job_program.trace(job(parallel, gradient_accumulation_steps=4), rank=1).work)
    assert (ops["nccl::recv"], ops["nccl::send"]) == (4, 4)


def test_a_trace_that_was_kept_has_the_same_work() -> None:
    trace = job_program.trace(job(Parallel(dp_replicate=DpReplicate(degree=2)), gradient_accumulation_steps=9))
    assert trace.work.repeats
    assert rank_trace.loads(rank_trace.dumps(trace)).work == trace.work


@pytest.mark.parametrize("repeats", [[[0, 1, 0]], [[0, 1, -9]], [[1, 1, 2]], [[0, 10**6, 2]], [[3, 5, 1], [4, 6, 1]]])
def test_a_trace_whose_launches_repeat_as_none_do_is_refused(repeats: list[list[int]]) -> None:
    about, *lines = rank_trace.dumps(job_program.trace(job())).splitlines()
    changed = json.dumps({**json.loads(about), "launch_repeats": repeats})
    with pytest.raises(ValueError, match="repeat"):
        rank_trace.loads("\n".join((changed, *lines)))


def test_a_trace_that_launches_a_kernel_that_is_not_there_is_refused() -> None:
    text = rank_trace.dumps(dataclasses.replace(job_program.trace(job()), events=(), repeats=(), host=()))
    torn = text.replace('"launches"', '"launched"', 1)
    with pytest.raises(ValueError, match="cut off"):
        rank_trace.loads(torn)


def test_a_statement_says_the_time_of_a_step_and_the_tokens_of_a_gpu() -> None:
    of_two = job(Parallel(dp_shard=DpShard(degree=2)), gradient_accumulation_steps=3)
    (rank_class,) = rank_classes(Mesh.of(of_two.parallel))
    trace = job_program.trace(of_two)
    step = judging.judge_trace(of_two, RankTrace(rank_class, trace), Calibration.none()).statement.step
    assert step is not None
    low, high = step.interval_seconds
    assert low < step.seconds < high
    assert step.tokens_per_second == pytest.approx(3 * 2 * 32 / step.seconds, rel=1e-3)


def test_a_gpu_of_unknown_speed_has_no_time() -> None:
    unknown = dataclasses.replace(job(), cluster=Cluster(gpus_per_node=1, gpu=Gpu(total_bytes=80 << 30, arch="sm_90")))
    (rank_class,) = rank_classes(Mesh.of(unknown.parallel))
    trace = RankTrace(rank_class, job_program.trace(unknown))
    assert judging.judge_trace(unknown, trace, Calibration.none()).statement.step is None
