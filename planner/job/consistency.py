"""What the parts of a job must be to each other."""

from __future__ import annotations

import math

from planner.errors import SpecError
from planner.job.axes import DISTINCT_AXES, axis_degrees
from planner.job.checkpoint_checks import check_checkpoints
from planner.job.compile_checks import check_compile
from planner.job.deepspeed_checks import check_deepspeed
from planner.job.evaluation_checks import check_evaluation
from planner.job.expert_checks import check_experts
from planner.job.field_checks import FLOATING
from planner.job.length_checks import check_lengths
from planner.job.loss_checks import check_loss
from planner.job.nodes import Node
from planner.job.optimizer_checks import check_stepping
from planner.job.pipeline_checks import check_pipeline
from planner.job.post_training_checks import check_post_training
from planner.job.schema import AS_BUILT, Decoder, DpShard, Gpu, Job, Parallel
from planner.job.size_limits import MOST_RANK_CLASSES, MOST_RANKS
from planner.job.split_checks import check_split
from planner.job.transformers_checks import check_transformers_options


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
