"""What the parts of a job must be to each other."""

from __future__ import annotations

import math

from planner.errors import SpecError
from planner.spec.axes import axis_degrees
from planner.spec.job import Decoder, Job, Parallel
from planner.spec.nodes import Node


def check(job: Job, document: Node) -> None:
    """Raises SpecError for the first contradiction; `document` is what the job was read from, for the places."""
    _check_model_source(job, document)
    if job.model.decoder is not None:
        _check_decoder(job, job.model.decoder, document)
    _check_recompute(job, document)
    _check_gpu(job, document)
    _check_world(job, document)
    _refuse_unplanned_axes(job.parallel, document)
    _check_precision(job, document)


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
    ):
        if used and source not in sources:
            at = document.nearest_to(f"model.{key}")
            raise at.error(f"is only used with {source}", remedy=f"delete it, or give model.{source}")


def _check_decoder(job: Job, decoder: Decoder, document: Node) -> None:
    for name, divisor_name in (("hidden", "heads"), ("heads", "kv_heads")):
        value, divisor = getattr(decoder, name), getattr(decoder, divisor_name)
        if value % divisor:
            node = document.nearest_to(f"model.decoder.{name}")
            raise node.error(f"is {value}, no multiple of {divisor_name} ({divisor})")
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


def _check_gpu(job: Job, document: Node) -> None:
    gpu, node = job.cluster.gpu, document.nearest_to("cluster.gpu")
    if node.value is not None and not (gpu.total_bytes and gpu.arch):
        missing = "arch" if gpu.total_bytes else "total_bytes"
        raise node.error(f"has no {missing}", allowed="a name of the catalog, or {total_bytes: 79.1GiB, arch: sm_90}")
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
        f"the cluster has nodes({cluster.nodes}) * gpus_per_node({cluster.gpus_per_node}) = {_counted(gpus, 'GPU')}, "
        f"the job {product} = {_counted(ranks, 'rank')}",
        allowed="one rank to a GPU",
        remedy="change cluster.nodes, cluster.gpus_per_node or the degrees under parallel",
        place=document.nearest_to("parallel" if "parallel" in document.mapping() else "cluster").place,
    )


def _counted(count: int, noun: str) -> str:
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


def _refuse_unplanned_axes(parallel: Parallel, document: Node) -> None:
    """Axes that a spec may name and that no plan covers yet."""
    for name, degree in axis_degrees(parallel).items():
        if name != "dp_replicate" and degree > 1:
            node = document.nearest_to(f"parallel.{name}.degree")
            raise SpecError(
                f"parallel.{name} has degree {degree}, and {name} is not planned yet",
                allowed="dp_replicate with any degree, the other axes with degree 1",
                place=node.place,
            )


def _check_precision(job: Job, document: Node) -> None:
    if job.train.precision == "fsdp_mixed" and job.parallel.dp_shard.degree == 1:
        node = document.nearest_to("train.precision")
        raise node.error(
            "is fsdp_mixed, the policy of fully_shard, and nothing is sharded",
            allowed="none, bf16_autocast, fp16_autocast",
        )
