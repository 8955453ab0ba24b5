"""Checks the parts of a job against each other, and fills in what is compiled where the job does not say."""

from __future__ import annotations

import math
from dataclasses import replace

from planner.errors import SpecError
from planner.job.deepspeed_config import zero_of
from planner.job.field_checks import FLOATING
from planner.job.layout import DISTINCT_AXES, axis_degrees
from planner.job.nodes import Node
from planner.job.parallel_checks import check_deepspeed, check_experts, check_pipeline, check_split
from planner.job.pipeline_schedules import SCHEDULES
from planner.job.schema import AS_BUILT, Compile, Decoder, DpShard, Gpu, Job, Parallel
from planner.job.size_limits import MOST_RANK_CLASSES, MOST_RANKS
from planner.job.training_checks import (
    check_checkpoints,
    check_evaluation,
    check_lengths,
    check_loss,
    check_post_training,
    check_stepping,
    check_transformers_options,
)

_CUDA_GRAPHS = ("reduce-overhead", "max-autotune")
_SHARDING = ("dp_shard", "cp", "ep", "tp", "pp")


def with_scope(job: Job) -> Job:
    """The job with the scope that `compile: true` stands for: blocks where parameters are sharded, else the model."""
    compiled = job.train.compile
    if compiled is None or compiled.scope:
        return job
    degrees = axis_degrees(job.parallel)
    scope = "blocks" if any(degrees[axis] > 1 for axis in _SHARDING) else "model"
    return replace(job, train=replace(job.train, compile=replace(compiled, scope=(scope,))))


def check_compile(job: Job, document: Node) -> None:
    """Raises SpecError for what is not planned compiled: the eager step is planned only where the job says so."""
    compiled = job.train.compile
    if compiled is None:
        return
    _check_scope(compiled, document)
    if compiled.planned_as == "eager":
        return
    if compiled.mode != "default" and compiled.backend != "inductor":
        raise document.nearest_to("train.compile.mode").error(
            f"is {compiled.mode}, a mode of the backend inductor, and the backend is {compiled.backend}",
            allowed="default",
        )
    _check_graphs(job, compiled, document)
    _check_autograd(job, compiled, document)
    _check_rest(job, compiled, document)


def _check_graphs(job: Job, compiled: Compile, document: Node) -> None:
    """A CUDA graph is captured again where its parameters have moved, and where what is gathered lies is not known."""
    degrees = axis_degrees(job.parallel)
    beside = [f"parallel.{axis} {degrees[axis]}" for axis in ("dp_shard", "pp", "cp") if degrees[axis] > 1]
    beside += ["parallel.deepspeed"] if job.parallel.deepspeed is not None else []
    if compiled.mode in _CUDA_GRAPHS and beside:
        raise document.nearest_to("train.compile.mode").error(
            f"is {compiled.mode}, which captures CUDA graphs, beside {' and '.join(beside)}, which is not planned",
            allowed="default, max-autotune-no-cudagraphs",
        )


def _check_autograd(job: Job, compiled: Compile, document: Node) -> None:
    """Hooks of DDP, FSDP2 and pipelines break a backward that is captured as a whole, each in its own way; a second
    micro-batch stops in the captured code (torch 2.13), for a reason not known."""
    degrees = axis_degrees(job.parallel)
    beside = [f"parallel.{axis} {degree}" for axis, degree in degrees.items() if degree > 1]
    beside += ["parallel.deepspeed"] if job.parallel.deepspeed is not None else []
    beside += ["train.optimizer_in_backward"] if job.train.optimizer_in_backward else []
    steps = job.train.gradient_accumulation_steps
    beside += [f"train.gradient_accumulation_steps {steps}"] if steps > 1 else []
    beside += [f"mode: {compiled.mode}"] if compiled.mode in _CUDA_GRAPHS else []
    if compiled.autograd and beside:
        raise document.nearest_to("train.compile.autograd").error(
            f"compiles the backward as a whole beside {' and '.join(beside)}, which is not planned",
            allowed="one GPU, one micro-batch in a step, without CUDA graphs",
            remedy="leave it out where the job does not set torch._dynamo.config.compiled_autograd",
        )


def _check_scope(compiled: Compile, document: Node) -> None:
    if {"model", "blocks"} <= set(compiled.scope):
        raise document.nearest_to("train.compile.scope").error(
            "names the model and its blocks, which are compiled with it", allowed="one of model and blocks"
        )
    if len(set(compiled.scope)) != len(compiled.scope):
        raise document.nearest_to("train.compile.scope").error("names a part twice", allowed="each part once")


def _check_rest(job: Job, compiled: Compile, document: Node) -> None:
    degrees, train, schedule = axis_degrees(job.parallel), job.train, job.parallel.pp.schedule
    against = {
        "parallel.deepspeed of stage 3": job.parallel.deepspeed is not None and zero_of(job).stage == 3,
        f"parallel.ep {degrees['ep']}": degrees["ep"] > 1,
        f"parallel.pp.schedule {schedule}": degrees["pp"] > 1 and SCHEDULES[schedule].splits_backward,
        "model.adapter qlora": job.model.adapter is not None and job.model.adapter.kind == "qlora",
        f"cluster.gpu of {job.cluster.gpu.arch}": job.cluster.gpu.arch.startswith("gfx"),
    }
    if {"model", "blocks"} & set(compiled.scope) or not compiled.scope:
        # save_on_cpu gives back contiguous tensors; a compiled backward asserts the strides that it was compiled for.
        against["train.activation_offload"] = train.activation_offload
    if "optimizer" in compiled.scope:
        against |= {
            "parallel.dp_replicate.zero_redundancy_optimizer": job.parallel.dp_replicate.zero_redundancy_optimizer,
            "train.optimizer_in_backward": train.optimizer_in_backward,
        }
    found = [name for name, there in against.items() if there]
    if found:
        raise document.nearest_to("train.compile").error(
            f"is {', '.join(compiled.scope) or 'true'} beside {' and '.join(found)}, which is not planned compiled",
            allowed="dp_replicate, dp_shard, tp, cp, pp whose backward is whole, DeepSpeed to stage 2, recompute and"
            " adapters in full precision",
            remedy="say `planned_as: eager` in it to plan the eager step, which takes other memory, never refused",
        )


def check(job: Job, document: Node) -> None:
    """Raises SpecError for the first contradiction; `document` is what the job was read from, for the places."""
    _check_size(job, document)
    _check_model_source(job, document)
    if job.model.decoder is not None:
        _check_decoder(job, job.model.decoder, document)
    _check_recompute(job, document)
    check_transformers_options(job, document)
    check_gpu(job.cluster.gpu, document.nearest_to("cluster.gpu"))
    _check_held(job, document)
    _check_world(job, document)
    check_pipeline(job, document)
    check_split(job, document)
    check_experts(job, document)
    check_stepping(job, document)
    check_lengths(job, document)
    check_evaluation(job, document)
    check_compile(job, document)
    check_loss(job, document)
    check_deepspeed(job, document)
    check_post_training(job, document)
    check_checkpoints(job, document)
    _check_precision(job, document)
    _check_sharding(job.parallel.dp_shard, document)


def _check_size(job: Job, document: Node) -> None:
    """Comes first: whatever a degree stands for is counted only where this lets it pass."""
    degrees = axis_degrees(job.parallel)
    cluster = job.cluster
    if (ranks := max(math.prod(degrees.values()), cluster.nodes * cluster.gpus_per_node)) > MOST_RANKS:
        raise SpecError(
            f"the job has {ranks} ranks or GPUs",
            allowed=f"at most {MOST_RANKS}",
            remedy="change cluster.nodes, cluster.gpus_per_node or the degrees under parallel",
            place=document.nearest_to("parallel" if "parallel" in document.mapping() else "cluster").place,
        )
    apart = {name: degrees[name] for name in DISTINCT_AXES}
    if (classes := math.prod(apart.values())) > MOST_RANK_CLASSES:
        product = " * ".join(f"{name}({degree})" for name, degree in apart.items())
        raise SpecError(
            f"the job has {product} = {classes} classes of ranks that do different things, each of which is traced",
            allowed=f"at most {MOST_RANK_CLASSES}",
            remedy=f"lower parallel.{max(apart, key=lambda name: apart[name])}.degree",
            place=document.nearest_to("parallel").place,
        )


def _check_model_source(job: Job, document: Node) -> None:
    model = job.model
    given = {"hf_config": model.hf_config is not None, "factory": bool(model.factory), "decoder": bool(model.decoder)}
    sources = [name for name, is_given in given.items() if is_given]
    node = document.nearest_to("model")
    if len(sources) != 1:
        found = " and ".join(sources) if sources else "no source"
        raise node.error(f"has {found}", allowed="exactly one of hf_config, factory and decoder")
    for key, used, source in (
        ("factory_arguments", model.factory_arguments, "factory"),
        ("factory_path", model.factory_path, "factory"),
        ("head", model.head, "hf_config"),
        ("adapter", model.adapter, "hf_config"),
        ("use_cache", model.use_cache, "hf_config"),
    ):
        if used and source not in sources:
            at = document.nearest_to(f"model.{key}")
            raise at.error(f"is only used with {source}", remedy=f"delete it, or give model.{source}")
    if model.adapter is not None and model.adapter.load != "layers" and model.adapter.kind != "qlora":
        at = document.nearest_to("model.adapter.load")
        raise at.error(f"is {model.adapter.load}, and only qlora packs what it loads", allowed="layers")
    if model.parameter_dtype == AS_BUILT and not model.factory:
        at = document.nearest_to("model.parameter_dtype")
        raise at.error(f"is {AS_BUILT}, which is only used with factory", allowed=FLOATING.allowed)


def _check_decoder(job: Job, decoder: Decoder, document: Node) -> None:
    shares = (("heads", "kv_heads"),) if decoder.head_dim else (("hidden", "heads"), ("heads", "kv_heads"))
    for name, divisor_name in shares:
        value, divisor = getattr(decoder, name), getattr(decoder, divisor_name)
        if value % divisor:
            node = document.nearest_to(f"model.decoder.{name}")
            raise node.error(f"is {value}, no multiple of {divisor_name} ({divisor})")
    if decoder.head_dim % 2:
        node = document.nearest_to("model.decoder.head_dim")
        allowed = "an even number, or 0 for hidden / heads"
        raise node.error(f"is {decoder.head_dim}, and positions rotate pairs of numbers", allowed=allowed)
    if job.train.inputs:
        node = document.nearest_to("train.inputs")
        raise node.error("cannot be given for a decoder, which takes tokens", remedy="give train.sequence_length")
    if not job.train.sequence_length:
        raise SpecError(
            "train.sequence_length is missing: a decoder needs the tokens of a sequence",
            allowed="a whole number from 1",
            place=document.nearest_to("train.sequence_length").place,
        )


def _check_recompute(job: Job, document: Node) -> None:
    recompute = job.train.recompute
    if recompute.every != 1 and recompute.mode != "every":
        node = document.nearest_to("train.recompute.every")
        raise node.error(f"is only used with mode every, not {recompute.mode}", remedy="write {every: 2} alone")


def check_gpu(gpu: Gpu, node: Node) -> None:
    """Raises SpecError for figures of which one is missing; `node` is what was said of the GPU."""
    if node.value is not None and not (gpu.total_bytes and gpu.arch):
        missing = "arch" if gpu.total_bytes else "total_bytes"
        raise node.error(f"has no {missing}", allowed="a name of the catalog, or {total_bytes: 79.1GiB, arch: sm_90}")


def _check_held(job: Job, document: Node) -> None:
    held, total = job.cluster.held_by_others_bytes, job.cluster.gpu.total_bytes
    if total and held >= total:
        node = document.nearest_to("cluster.held_by_others_bytes")
        raise node.error(f"is {held} bytes, and the GPU has {total}", allowed="less than the GPU has")


def _check_world(job: Job, document: Node) -> None:
    cluster, degrees = job.cluster, axis_degrees(job.parallel)
    gpus, ranks = cluster.nodes * cluster.gpus_per_node, math.prod(degrees.values())
    if gpus == ranks:
        return
    product = " * ".join(f"{name}({degree})" for name, degree in degrees.items())
    raise SpecError(
        f"the cluster has nodes({cluster.nodes}) * gpus_per_node({cluster.gpus_per_node}) = "
        f"{_format_count(gpus, 'GPU')}, "
        f"the job {product} = {_format_count(ranks, 'rank')}",
        allowed="one rank to a GPU",
        remedy="change cluster.nodes, cluster.gpus_per_node or the degrees under parallel",
        place=document.nearest_to("parallel" if "parallel" in document.mapping() else "cluster").place,
    )


def _format_count(count: int, noun: str) -> str:
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


def _check_precision(job: Job, document: Node) -> None:
    if job.train.precision == "fsdp_mixed" and math.prod(_sharding(job.parallel)) == 1:
        node = document.nearest_to("train.precision")
        raise node.error(
            "is fsdp_mixed, the policy of fully_shard, and nothing is sharded",
            allowed="none, bf16_autocast, fp16_autocast",
        )


def _sharding(parallel: Parallel) -> tuple[int, ...]:
    return parallel.dp_shard.degree, parallel.cp.degree, parallel.ep.degree


def _check_sharding(shard: DpShard, document: Node) -> None:
    node = document.nearest_to("parallel.dp_shard.kind")
    if shard.kind == "fsdp1":
        raise node.error(
            "is fsdp1 (FullyShardedDataParallel, flat parameters), which is not planned",
            allowed="fsdp2",
            remedy="FULL_SHARD is fsdp2, SHARD_GRAD_OP is {reshard_after_forward: false}, HYBRID_SHARD is fsdp2 with"
            " dp_replicate over the nodes, CPUOffload is {offload: cpu}",
        )
    ranks = shard.reshard_after_forward
    if isinstance(ranks, bool) or shard.degree == 1:
        return
    if shard.degree % ranks or not 1 < ranks < shard.degree:
        node = document.nearest_to("parallel.dp_shard.reshard_after_forward")
        allowed = ", ".join(["true", "false", *map(str, _proper_divisors(shard.degree))])
        raise node.error(f"is {ranks}, to which shards of {shard.degree} ranks are not gathered", allowed=allowed)


def _proper_divisors(number: int) -> list[int]:
    """Ascending, without 1 and the number; of one up to MOST_RANKS, found in a thousand steps."""
    small = [each for each in range(2, math.isqrt(number) + 1) if number % each == 0]
    return sorted({*small, *(number // each for each in small)})
