"""What a compiled step asks of a job, and what is compiled where the job does not say."""

from __future__ import annotations

from dataclasses import replace

from planner.job.axes import axis_degrees
from planner.job.deepspeed_config import zero_of
from planner.job.nodes import Node
from planner.job.pipeline_schedules import SCHEDULES
from planner.job.schema import Compile, Job

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
