"""What a job must be for its pipeline: what torch's schedules refuse, said before anything is built."""

from __future__ import annotations

from planner.errors import SpecError
from planner.job import pipeline_schedules
from planner.job.nodes import Node
from planner.job.schema import Job, Pp


def check_pipeline(job: Job, document: Node) -> None:
    """Raises SpecError for the first thing that does not go with pipeline parallelism."""
    pp = job.parallel.pp
    if pp.schedule not in pipeline_schedules.SCHEDULES:
        node = document.nearest_to("parallel.pp.schedule")
        raise node.error(
            f"{pp.schedule!r} is no schedule of torch 2.13", allowed=", ".join(pipeline_schedules.SCHEDULES)
        )
    if pp.degree == 1:  # its split waits for a pipeline: people switch one off by its degree
        return
    _check_split(pp, document)
    _check_layers(job, document)
    _check_micro_batches(job, document)
    _check_company(job, document)


def _check_split(pp: Pp, document: Node) -> None:
    schedule, stages = pipeline_schedules.SCHEDULES[pp.schedule], len(pp.split)
    if not pp.split:
        return
    node = document.nearest_to("parallel.pp.split")
    said = f"has {stages} stages, and {pp.schedule} over {pp.degree} ranks"
    if not schedule.several and stages != pp.degree:
        raise node.error(f"{said} takes one to a rank", allowed=f"the layers of {pp.degree} stages")
    if schedule.v_shaped and stages != 2 * pp.degree:
        raise node.error(f"{said} takes two to a rank", allowed=f"the layers of {2 * pp.degree} stages")
    if stages % pp.degree:
        raise node.error(f"{said} takes as many to every rank", allowed=f"a multiple of {pp.degree} stages")


def _check_layers(job: Job, document: Node) -> None:
    layers = pipeline_schedules.layers_of(job)
    if layers is None:
        return
    pp = job.parallel.pp
    counts = pipeline_schedules.layers_of_stages(pp, layers)
    if min(counts) < 1:
        shape = f"{pp.degree} ranks with {len(counts) // pp.degree} each"
        raise SpecError(
            f"the model has {layers} layers for {len(counts)} stages ({shape}), and every stage needs a layer",
            allowed=f"up to {layers} stages; where no split is given, embedding and head count as a layer each",
            place=document.nearest_to("parallel.pp").place,
        )
    if sum(counts) != layers:
        node = document.nearest_to("parallel.pp.split")
        raise node.error(f"adds up to {sum(counts)} layers, and the model has {layers}")


def _check_micro_batches(job: Job, document: Node) -> None:
    pp, count = job.parallel.pp, job.train.gradient_accumulation_steps
    schedule, stages = pipeline_schedules.SCHEDULES[pp.schedule], pipeline_schedules.stage_count(pp)
    node = document.nearest_to("train.gradient_accumulation_steps")
    if schedule.as_many_as_stages and count < stages:
        raise SpecError(
            f"{pp.schedule} over {stages} stages needs at least {stages} micro-batches, and there are {count}",
            allowed=f"train.gradient_accumulation_steps from {stages}",
            place=node.place,
        )
    rounds = max(1, count // pp.degree)
    if schedule.in_rounds and count % rounds:
        raise SpecError(
            f"{pp.schedule} over {pp.degree} ranks runs {count} micro-batches in {rounds} rounds, which do not divide "
            "them",
            allowed=f"train.gradient_accumulation_steps a multiple of {pp.degree}",
            place=node.place,
        )


def _check_company(job: Job, document: Node) -> None:
    """What does not go together with a pipeline."""
    train, parallel = job.train, job.parallel
    if parallel.dp_replicate.degree > 1 and parallel.dp_shard.degree == 1:
        node = document.nearest_to("parallel.dp_replicate.degree")
        raise node.error(
            "replicates by DistributedDataParallel, which is not planned inside a pipeline",
            allowed="dp_replicate with dp_shard (HSDP), or dp_shard alone",
        )
    if train.precision == "fp16_autocast":
        node = document.nearest_to("train.precision")
        raise node.error(
            "is fp16_autocast, and torch.distributed.pipelining (torch 2.13) has no place for a GradScaler",
            allowed="none, bf16_autocast, fsdp_mixed",
        )
    if train.eval is not None:
        raise document.nearest_to("train.eval").error("is not planned inside a pipeline", remedy="delete it")
    if train.retains:
        raise document.nearest_to("train.retains").error("is not planned inside a pipeline", remedy="delete it")
    if train.loss.name not in ("cross_entropy", "sum"):
        node = document.nearest_to("train.loss.name")
        raise node.error(
            f"is {train.loss.name}, and the last stage of a pipeline gives logits", allowed="cross_entropy, sum"
        )
    if train.inputs:
        raise document.nearest_to("train.inputs").error(
            "cannot be given for a pipeline, whose first stage takes tokens"
        )
    if job.model.factory:
        node = document.nearest_to("model.factory")
        raise node.error("brings a model that nobody can split into stages", allowed="decoder, hf_config")
    if job.model.decoder is not None and job.model.decoder.tie_embeddings:
        node = document.nearest_to("model.decoder.tie_embeddings")
        raise node.error(
            "ties a weight that lies in two stages, and torch.distributed.pipelining (torch 2.13) does not keep it "
            "equal",
            allowed="false",
        )
