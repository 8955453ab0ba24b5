"""A spec's program and the step that is made by hand for it tell an allocator the same."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import pytest

from planner.errors import TraceError
from planner.job.layout import Mesh, rank_classes
from planner.job.pipeline_schedules import SCHEDULES
from planner.job.schema import (
    Adapter,
    CheckpointLoad,
    CheckpointSave,
    Compile,
    Cp,
    DpShard,
    Ep,
    Eval,
    Generate,
    Input,
    Job,
    Lengths,
    Model,
    Optimizer,
    Pp,
    Recompute,
    Tp,
)
from planner.planning.job_plan import plan_from_traces
from planner.planning.judging import RankTrace
from planner.report.statement import RankClassStatement
from planner.tracing import job_program
from planner.tracing.rank_trace import Trace
from planner.tracing.spec import step_trace

MakeJob = Callable[..., Job]
TraceRank = Callable[[Job], Trace]
LOSS_GRADIENTS = 4 * 512
"""Bytes of the gradients from which backwards start: torch makes them before the backward of a program is seen."""


def plan_first_class(job: Job, trace_rank: TraceRank) -> RankClassStatement:
    first = rank_classes(Mesh.of(job.parallel))[0]
    return plan_from_traces(job, [RankTrace(first, trace_rank(job))]).plan.rank_classes[0]


def sharded(job: Job, ranks: int, replicas: int = 1, **shard: Any) -> Job:
    parallel = replace(
        job.parallel,
        dp_replicate=replace(job.parallel.dp_replicate, degree=replicas),
        dp_shard=DpShard(degree=ranks, **shard),
    )
    return replace(job, parallel=parallel, cluster=replace(job.cluster, gpus_per_node=ranks * replicas))


def divided(job: Job, **axes: Any) -> Job:
    ranks = job.cluster.gpus_per_node * math.prod(axis.degree for axis in axes.values())
    return replace(job, parallel=replace(job.parallel, **axes), cluster=replace(job.cluster, gpus_per_node=ranks))


def pipelined(schedule: str, job_of: MakeJob, ranks: int = 1, tp: Tp | None = None, **train: Any) -> Job:
    """Six layers over two stages or four, `ranks` along `dp_shard`."""
    job = sharded(job_of(gradient_accumulation_steps=8, **train), ranks)
    assert job.model.decoder is not None
    longer = replace(job, model=replace(job.model, decoder=replace(job.model.decoder, layers=6)))
    return divided(longer, pp=Pp(degree=2, schedule=schedule), tp=tp or Tp())


def with_config(job: Job, config: dict[str, Any], **model: Any) -> Job:
    return replace(job, model=Model(hf_config=config, **model))


LLAMA = {
    "architectures": ["LlamaForCausalLM"], "model_type": "llama", "vocab_size": 512, "hidden_size": 128,
    "intermediate_size": 256, "num_hidden_layers": 2, "num_attention_heads": 2, "num_key_value_heads": 2,
}  # fmt: skip
MIXTRAL = {
    **LLAMA, "architectures": ["MixtralForCausalLM"], "model_type": "mixtral", "num_local_experts": 4,
    "num_experts_per_tok": 2,
}  # fmt: skip
JOBS: dict[str, Callable[[MakeJob], Job]] = {
    "one GPU": lambda job_of: job_of(),
    "pictures": lambda job_of: job_of("normed"),
    "clipped, bf16": lambda job_of: job_of(precision="bf16_autocast", gradient_clipping=1.0),
    "scaled, fp16": lambda job_of: job_of(precision="fp16_autocast"),
    "accumulated": lambda job_of: job_of(gradient_accumulation_steps=3),
    "gradients that stay": lambda job_of: job_of(zero_grad_set_to_none=False),
    "recomputed": lambda job_of: job_of(recompute=Recompute(mode="full")),
    "outputs that are kept": lambda job_of: job_of(retains="output"),
    "DDP": lambda job_of: job_of(ddp={}),
    "DDP, views": lambda job_of: job_of(ddp={"gradient_as_bucket_view": True, "static_graph": True}),
    "DDP, accumulated": lambda job_of: job_of(ddp={}, gradient_accumulation_steps=2),
    "DDP, compressed": lambda job_of: job_of(ddp={"comm_hook": "power_sgd"}),
    "FSDP2": lambda job_of: sharded(job_of(precision="fsdp_mixed"), 4),
    "FSDP2, kept, accumulated": lambda job_of: sharded(
        job_of(gradient_accumulation_steps=2), 4, reshard_after_forward=False, no_sync=True
    ),
    "FSDP2, fused": lambda job_of: sharded(job_of(optimizer=Optimizer(arguments={"fused": True})), 2, prefetch=1),
    "HSDP": lambda job_of: sharded(job_of(precision="fsdp_mixed", gradient_clipping=1.0), 2, replicas=2),
    "ZeRO-1": lambda job_of: job_of(ddp={"degree": 2, "zero_redundancy_optimizer": True}),
    "TP": lambda job_of: divided(job_of(), tp=Tp(degree=2, sequence_parallel=True, loss_parallel=True)),
    "TP, FSDP2": lambda job_of: divided(sharded(job_of(gradient_clipping=1.0), 2), tp=Tp(degree=2)),
    "CP": lambda job_of: divided(job_of(precision="bf16_autocast", sequence_length=256), cp=Cp(degree=2)),
    **{f"PP, {schedule}": partial(pipelined, schedule) for schedule in SCHEDULES},
    "PP, FSDP2, TP": lambda job_of: pipelined(
        "Interleaved1F1B",
        job_of,
        ranks=2,
        tp=Tp(degree=2, sequence_parallel=True, loss_parallel=True),
        precision="fsdp_mixed",
        recompute=Recompute(mode="full"),
    ),
    "PP, clipped, bf16": lambda job_of: pipelined("1F1B", job_of, precision="bf16_autocast", gradient_clipping=1.0),
    "LoRA": lambda job_of: with_config(job_of(precision="bf16_autocast"), LLAMA, adapter=Adapter()),
    "experts": lambda job_of: divided(with_config(job_of(), MIXTRAL), ep=Ep(degree=2, imbalance=1.5)),
    "FSDP1": lambda job_of: sharded(job_of(gradient_clipping=1.0), 2, kind="fsdp1"),
    "FSDP2, offloaded": lambda job_of: sharded(job_of(gradient_clipping=1.0), 2, offload="cpu"),
    "activations that are offloaded": lambda job_of: job_of(activation_offload=True),
    "steps within the backward": lambda job_of: job_of(optimizer_in_backward=True),
    "accumulated 16 times": lambda job_of: job_of(gradient_accumulation_steps=16),
    "DDP, accumulated 16 times": lambda job_of: job_of(ddp={}, gradient_accumulation_steps=16),
    "compiled": lambda job_of: job_of(compile=Compile(scope=("blocks",))),
    "evaluated": lambda job_of: job_of(eval=Eval(every=1, micro_batch_size=2)),
    "evaluated for long": lambda job_of: with_config(
        job_of(eval=Eval(every=2, micro_batch_size=2, batches=40, gather="logits")), LLAMA
    ),
    "generated": lambda job_of: with_config(
        job_of(eval=Eval(every=2, micro_batch_size=2, generate=Generate(max_new_tokens=40))), LLAMA
    ),
    "checkpoints that are saved": lambda job_of: sharded(job_of(checkpoint_save=CheckpointSave(every=1)), 2),
    "checkpoints in the background": lambda job_of: sharded(
        job_of(checkpoint_save=CheckpointSave(every=1, kind="dcp_async")), 2
    ),
    "a checkpoint that is loaded": lambda job_of: job_of(checkpoint_load=CheckpointLoad(optimizer=True)),
    "a checkpoint by shards": lambda job_of: sharded(
        job_of(checkpoint_load=CheckpointLoad(kind="dcp", optimizer=True)), 2
    ),
    "lengths that differ": lambda job_of: job_of(lengths=Lengths(p50=16, p99=30)),
    "QLoRA": lambda job_of: with_config(job_of(), LLAMA, adapter=Adapter(kind="qlora"), parameter_dtype="bfloat16"),
}


@pytest.mark.parametrize("name", JOBS)
def test_both_take_the_same_memory(job_of: MakeJob, name: str) -> None:
    job = JOBS[name](job_of)
    program, by_hand = (plan_first_class(job, trace) for trace in (job_program.trace, step_trace.trace))

    assert (program.peak, program.verdict) == (by_hand.peak, by_hand.verdict)


# What divides a batch before its forward (CP) is input of a program, and the gradient of a whole parameter a gradient
# before it is added to that of earlier micro-batches.
@pytest.mark.parametrize("name", [name for name in JOBS if name not in ("CP", "PP, FSDP2, TP")])
def test_both_name_what_it_is_for(job_of: MakeJob, name: str) -> None:
    job = JOBS[name](job_of)
    program, by_hand = (plan_first_class(job, trace) for trace in (job_program.trace, step_trace.trace))

    assert program.at_peak == pytest.approx(by_hand.at_peak, abs=LOSS_GRADIENTS)


def test_both_say_the_same_of_an_error_within_torch(job_of: MakeJob) -> None:
    job = job_of("mlp", inputs={"x": Input(shape=(64,)), "labels": Input(shape=(), dtype="int64", maximum=128)})

    said = []
    for trace in (job_program.trace, step_trace.trace):
        with pytest.raises(TraceError) as caught:
            trace(job)
        said.append(str(caught.value))
    assert said[0] == said[1]


def test_what_has_no_program_yet_is_traced_step_by_step(job_of: MakeJob) -> None:
    jobs = [
    ]

    assert not any(map(job_program.has_program, jobs))
