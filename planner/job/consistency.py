"""Checks the parts of a job against each other, and fills in what is compiled where the job does not say."""

from __future__ import annotations

import math
from dataclasses import replace

from planner.job import named_gpus
from planner.job.field_checks import FLOATING
from planner.job.layout import DISTINCT_AXES, axis_degrees
from planner.job.nodes import Node
from planner.job.parallel_checks import (
    check_context_parallelism,
    check_experts,
    check_pipeline,
    check_tensor_parallelism,
)
from planner.job.pipeline_schedules import SCHEDULES
from planner.job.schema import ALL_LINEAR, AS_BUILT, Gpu, Job
from planner.job.size_limits import MOST_RANK_CLASSES, MOST_RANKS
from planner.job.trainer import check_trainer
from planner.job.training_checks import (
    check_checkpoints,
    check_lengths,
    check_stepping,
    check_transformers_options,
    join_names,
)

_CUDA_GRAPHS = ("reduce-overhead", "max-autotune")
_CHANGE_RANKS = "change cluster.nodes, cluster.gpus_per_node or the degrees under parallel"
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
    """Raises SpecError for what is not planned compiled."""
    compiled, train, parallel = job.train.compile, job.train, job.parallel
    if compiled is None:
        return
    scope = document.nearest_to("train.compile.scope")
    if {"model", "blocks"} <= set(compiled.scope):
        problem = "names the model and its blocks, which are compiled with it"
        raise scope.error(problem, allowed="one of model and blocks")
    if len(set(compiled.scope)) != len(compiled.scope):
        raise scope.error("names a part twice", allowed="each part once")
    mode = document.nearest_to("train.compile.mode")
    if compiled.mode != "default" and compiled.backend != "inductor":
        raise mode.error(
            f"is {compiled.mode}, a mode of the backend inductor, and the backend is {compiled.backend}",
            allowed="default",
        )
    degrees = axis_degrees(parallel)
    captures = compiled.mode in _CUDA_GRAPHS
    # A CUDA graph is captured again where its parameters have moved, and where what is gathered lies is not known.
    beside = [f"parallel.{axis} {degrees[axis]}" for axis in ("dp_shard", "pp", "cp") if degrees[axis] > 1]
    if captures and beside:
        raise mode.error(
            f"is {compiled.mode}, which captures CUDA graphs, beside {' and '.join(beside)}, which is not planned",
            allowed="default, max-autotune-no-cudagraphs",
        )
    schedule = parallel.pp.schedule
    compiles_model = bool({"model", "blocks"} & set(compiled.scope)) or not compiled.scope
    compiles_optimizer = "optimizer" in compiled.scope
    against = {
        f"parallel.ep {degrees['ep']}": degrees["ep"] > 1,
        f"parallel.pp.schedule {schedule}": degrees["pp"] > 1 and SCHEDULES[schedule].splits_backward,
        "model.adapter qlora": job.model.adapter is not None and job.model.adapter.kind == "qlora",
        f"cluster.gpu of {job.cluster.gpu.arch}": job.cluster.gpu.arch.startswith("gfx"),
        # save_on_cpu gives back contiguous tensors; a compiled backward asserts the strides that it was compiled for.
        "train.activation_offload": compiles_model and train.activation_offload,
        "parallel.dp_replicate.zero_redundancy_optimizer": compiles_optimizer
        and parallel.dp_replicate.zero_redundancy_optimizer,
        "train.optimizer_in_backward": compiles_optimizer and train.optimizer_in_backward,
    }
    document.refuse_if(
        any(against.values()),
        "train.compile",
        f"is {', '.join(compiled.scope) or 'true'} beside {join_names(against)}, which is not planned compiled",
        allowed="dp_replicate, dp_shard, tp, cp, pp whose backward is whole, recompute and adapters in full precision",
        remedy="leave it out to plan the eager step, which takes other memory",
    )


def check(job: Job, document: Node) -> None:
    """Raises SpecError for the first contradiction; `document` is what the job was read from, for the places."""
    if job.trainer is not None:
        _check_size(job, document)
        _check_model(job, document)
        check_gpu(job.cluster.gpu, document.nearest_to("cluster.gpu"))
        check_trainer(job, document)
        return
    for check_part in (
        _check_size, _check_model, check_transformers_options, _check_cluster, check_pipeline, check_tensor_parallelism,
        check_context_parallelism, check_experts, check_stepping, check_lengths, check_compile,
        check_checkpoints, _check_sharding,
    ):  # fmt: skip
        check_part(job, document)


def _check_sharding(job: Job, document: Node) -> None:
    parallel, shard = job.parallel, job.parallel.dp_shard
    document.refuse_if(
        job.train.precision == "fsdp_mixed" and shard.degree * parallel.cp.degree * parallel.ep.degree == 1,
        "train.precision",
        "is fsdp_mixed, the policy of fully_shard, and nothing is sharded",
        allowed="none, bf16_autocast, fp16_autocast",
    )
    ranks = shard.reshard_after_forward
    if not isinstance(ranks, bool) and shard.degree > 1 and (shard.degree % ranks or not 1 < ranks < shard.degree):
        # Of a degree up to MOST_RANKS the divisors are found in a thousand steps.
        small = [number for number in range(2, math.isqrt(shard.degree) + 1) if shard.degree % number == 0]
        divisors = sorted({*small, *(shard.degree // number for number in small)})
        raise document.fault(
            "parallel.dp_shard.reshard_after_forward",
            f"is {ranks}, to which shards of {shard.degree} ranks are not gathered",
            allowed=", ".join(["true", "false", *map(str, divisors)]),
        )


def _check_size(job: Job, document: Node) -> None:
    """Comes first: whatever a degree stands for is counted only where this lets it pass."""
    degrees = axis_degrees(job.parallel)
    ranks = max(math.prod(degrees.values()), job.cluster.ranks)
    place, problem, allowed = _place_of_ranks(document), f"the job has {ranks} ranks or GPUs", f"at most {MOST_RANKS}"
    document.refuse_job_if(ranks > MOST_RANKS, place, problem, allowed=allowed, remedy=_CHANGE_RANKS)
    apart = {name: degrees[name] for name in DISTINCT_AXES}
    classes, product = math.prod(apart.values()), " * ".join(f"{name}({degree})" for name, degree in apart.items())
    document.refuse_job_if(
        classes > MOST_RANK_CLASSES,
        "parallel",
        f"the job has {product} = {classes} classes of ranks that do different things, each of which is traced",
        allowed=f"at most {MOST_RANK_CLASSES}",
        remedy=f"lower parallel.{max(apart, key=lambda name: apart[name])}.degree",
    )


def _place_of_ranks(document: Node) -> str:
    return "parallel" if "parallel" in document.mapping() else "cluster"


def _check_model(job: Job, document: Node) -> None:
    model, decoder, refuse = job.model, job.model.decoder, document.refuse_if
    given = {"hf_config": model.hf_config is not None, "factory": bool(model.factory), "decoder": bool(decoder)}
    sources = [name for name, is_given in given.items() if is_given]
    problem = f"has {join_names(given) or 'no source'}"
    refuse(len(sources) != 1, "model", problem, allowed="exactly one of hf_config, factory and decoder")
    users = {
        "factory_arguments": "factory", "factory_path": "factory", "head": "hf_config", "adapter": "hf_config",
    }  # fmt: skip
    for key, source in users.items():
        problem, remedy = f"is only used with {source}", f"delete it, or give model.{source}"
        refuse(getattr(model, key) and source not in sources, f"model.{key}", problem, remedy=remedy)
    if (adapter := model.adapter) is not None:
        has_names = ALL_LINEAR in adapter.target_modules and len(adapter.target_modules) > 1
        problem, allowed = f"holds {ALL_LINEAR} beside names", f"{ALL_LINEAR} alone, or names"
        refuse(has_names, "model.adapter.target_modules", problem, allowed=allowed)
    is_built, problem = model.parameter_dtype == AS_BUILT, f"is {AS_BUILT}, which is only used with factory"
    refuse(is_built and not model.factory, "model.parameter_dtype", problem, allowed=FLOATING.allowed)
    if decoder is not None:
        shares = (("heads", "kv_heads"),) if decoder.head_dim else (("hidden", "heads"), ("heads", "kv_heads"))
        for name, divisor_name in shares:
            value, divisor = getattr(decoder, name), getattr(decoder, divisor_name)
            refuse(value % divisor, f"model.decoder.{name}", f"is {value}, no multiple of {divisor_name} ({divisor})")
        odd = f"is {decoder.head_dim}, and positions rotate pairs of numbers"
        allowed = "an even number, or 0 for hidden / heads"
        refuse(decoder.head_dim % 2, "model.decoder.head_dim", odd, allowed=allowed)
        takes_tokens, remedy = "cannot be given for a decoder, which takes tokens", "give train.sequence_length"
        refuse(job.train.inputs, "train.inputs", takes_tokens, remedy=remedy)
        missing = "train.sequence_length is missing: a decoder needs the tokens of a sequence"
        has_none, path = not job.train.sequence_length, "train.sequence_length"
        document.refuse_job_if(has_none, path, missing, allowed="a whole number from 1")
    recompute = job.train.recompute
    has_mode, problem = recompute.mode != "every", f"is only used with mode every, not {recompute.mode}"
    refuse(recompute.every != 1 and has_mode, "train.recompute.every", problem, remedy="write {every: 2} alone")


def check_gpu(gpu: Gpu, node: Node) -> None:
    """Raises SpecError for figures of which one is missing; `node` is what was said of the GPU."""
    if node.value is not None and not (gpu.total_bytes and gpu.arch):
        missing = "arch" if gpu.total_bytes else "total_bytes"
        raise node.error(f"has no {missing}", allowed="a name of the catalog, or {total_bytes: 79.1GiB, arch: sm_90}")


def _check_cluster(job: Job, document: Node) -> None:
    """The GPU, what others hold of it, and one rank to a GPU."""
    cluster, degrees = job.cluster, axis_degrees(job.parallel)
    check_gpu(cluster.gpu, document.nearest_to("cluster.gpu"))
    held, total = cluster.held_by_others_bytes, cluster.gpu.total_bytes
    path, problem = "cluster.held_by_others_bytes", f"is {held} bytes, and the GPU has {total}"
    document.refuse_if(total and held >= total, path, problem, allowed="less than the GPU has")
    has_nothing, allowed = total and cluster.capacity_bytes <= 0, "a number above 0, at most 1"
    document.refuse_if(has_nothing, "cluster.gpu_fraction", "leaves the job nothing", allowed=allowed)
    gpus, ranks = cluster.ranks, math.prod(degrees.values())
    named_gpus.refuse_ranks_on_slice(cluster.gpu.name, ranks, document.nearest_to("cluster.gpu").place)
    product = " * ".join(f"{name}({degree})" for name, degree in degrees.items())
    document.refuse_job_if(
        gpus != ranks,
        _place_of_ranks(document),
        f"the cluster has nodes({cluster.nodes}) * gpus_per_node({cluster.gpus_per_node}) = "
        f"{gpus} GPU{'s' * (gpus != 1)}, the job {product} = {ranks} rank{'s' * (ranks != 1)}",
        allowed="one rank to a GPU",
        remedy=_CHANGE_RANKS,
    )
