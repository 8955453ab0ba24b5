"""Checks what pipelines, tensor, context and expert parallelism, and DeepSpeed ask of the rest of a job."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

from planner.errors import SpecError
from planner.job import deepspeed_config, pipeline_schedules
from planner.job.layout import axis_degrees
from planner.job.nodes import Node
from planner.job.schema import Decoder, DpReplicate, Job, Pp


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


_TORCH = "torch 2.13"


def check_split(job: Job, document: Node) -> None:
    """Raises SpecError for the first contradiction; `document` is what the job was read from, for the places."""
    if job.parallel.tp.degree > 1:
        _check_tp(job, document)
    if job.parallel.cp.degree > 1:
        _check_cp(job, document)


def _check_tp(job: Job, document: Node) -> None:
    parallel, tp = job.parallel, job.parallel.tp
    if parallel.dp_replicate.degree > 1 and parallel.dp_shard.degree * parallel.cp.degree == 1:
        node = document.nearest_to("parallel.tp.degree")
        raise SpecError(
            f"tp {tp.degree} under dp_replicate {parallel.dp_replicate.degree}: DistributedDataParallel of {_TORCH} "
            "takes no DTensors",
            allowed="tp with dp_shard, and dp_replicate beside both (HSDP)",
            remedy="shard the parameters: parallel.dp_shard",
            place=node.place,
        )
    if job.model.decoder is not None and not tp.plan:
        _check_decoder(job.model.decoder, tp.degree, document)
    _check_flags(job, document)
    if tp.sequence_parallel:
        _check_tokens(job, document)


def _check_decoder(decoder: Decoder, degree: int, document: Node) -> None:
    """Of heads and of the ffn torch can make no uneven parts; of a vocabulary it can: the last rank gets fewer rows."""
    if decoder.vocab % degree:
        node = document.nearest_to("parallel.tp.degree")
        raise SpecError(
            f"tp {degree} does not divide model.decoder.vocab ({decoder.vocab}): {_TORCH} gives the last rank fewer "
            "rows, which is not planned",
            allowed=f"a divisor of {decoder.vocab}",
            remedy=f"pad the vocabulary to {-(-decoder.vocab // degree) * degree}, as most programs do",
            place=node.place,
        )
    for name in ("heads", "kv_heads", "ffn"):
        size = getattr(decoder, name)
        if size % degree:
            node = document.nearest_to("parallel.tp.degree")
            raise SpecError(
                f"tp {degree} does not divide model.decoder.{name} ({size}), and {_TORCH} splits it evenly only",
                allowed=f"a divisor of {size}",
                place=node.place,
            )


def _check_flags(job: Job, document: Node) -> None:
    model, tp = job.model, job.parallel.tp
    if model.factory and not tp.plan:
        node = document.nearest_to("parallel.tp.degree")
        raise SpecError(
            f"tp {tp.degree} has no plan: nothing says how the factory's model is split",
            allowed='parallel.tp.plan: {"layers.*.up": colwise, "layers.*.down": rowwise}',
            place=node.place,
        )
    own = model.decoder is not None and not tp.plan
    if tp.sequence_parallel and tp.plan:
        node = document.nearest_to("parallel.tp.sequence_parallel")
        raise node.error(
            "is for the model's own plan, and this job has another",
            allowed="false; a plan can say sequence_parallel for single norms",
        )
    if tp.sequence_parallel and not own and job.parallel.pp.degree > 1:
        node = document.nearest_to("parallel.tp.sequence_parallel")
        raise node.error("of a transformers model is not planned between the stages of a pipeline", allowed="false")
    if tp.loss_parallel and not (own or model.hf_config is not None):
        node = document.nearest_to("parallel.tp.loss_parallel")
        raise node.error(
            "needs a head that a plan of a model's own splits", allowed="a decoder without plan, hf_config"
        )
    if tp.loss_parallel and job.train.loss.name != "cross_entropy":
        node = document.nearest_to("parallel.tp.loss_parallel")
        raise node.error(f"is for cross_entropy only ({_TORCH}), and the loss is {job.train.loss.name}")


def _check_tokens(job: Job, document: Node) -> None:
    tokens, cp, tp = job.train.sequence_length, job.parallel.cp.degree, job.parallel.tp.degree
    if tokens % (cp * tp):
        ranks = f"tp({tp})" if cp == 1 else f"cp({cp}) * tp({tp})"
        node = document.nearest_to("train.sequence_length")
        raise node.error(f"is {tokens}, no multiple of {ranks}: sequence parallelism splits the tokens evenly")


def _check_cp(job: Job, document: Node) -> None:
    degree, tokens = job.parallel.cp.degree, job.train.sequence_length
    if not tokens:
        node = document.nearest_to("parallel.cp.degree")
        raise SpecError(
            f"cp {degree} splits sequences of tokens, and the job has no train.sequence_length",
            allowed="models of tokens",
            place=node.place,
        )
    if tokens % (2 * degree):
        node = document.nearest_to("train.sequence_length")
        raise node.error(f"is {tokens}, no multiple of 2 * cp({degree}): each rank holds two chunks of a sequence")
    if job.model.attention != "sdpa":
        node = document.nearest_to("model.attention")
        raise node.error(
            f"is {job.model.attention}, and context_parallel of {_TORCH} is a ring of sdpa", allowed="sdpa"
        )


_WITHOUT = {
    "tp": "transformers 5.23 splits experts over the ranks of tp too",
    "pp": "transformers 5.23 sends no tokens to experts inside a pipeline",
}


def check_experts(job: Job, document: Node) -> None:
    """Raises SpecError for an `ep` that is not planned, or whose fullest rank would get more than all tokens."""
    ep = job.parallel.ep
    if ep.degree == 1:
        return
    for axis, why in _WITHOUT.items():
        degree = getattr(job.parallel, axis).degree
        if degree > 1:
            raise SpecError(
                f"parallel.ep has degree {ep.degree} and parallel.{axis} degree {degree}, and ep is not planned "
                f"together with {axis}: {why}",
                allowed=f"ep with dp_replicate, dp_shard and cp, or {axis} without ep",
                place=document.nearest_to("parallel.ep.degree").place,
            )
    if job.model.hf_config is None:
        raise document.nearest_to("parallel.ep.degree").error(
            f"is {ep.degree}, and nothing says how the experts of this model are split",
            allowed="1, or model.hf_config of a transformers mixture of experts",
        )
    if ep.imbalance > ep.degree:
        raise document.nearest_to("parallel.ep.imbalance").error(
            f"is {ep.imbalance:g}, and no rank of {ep.degree} gets more than all tokens", allowed=f"1 to {ep.degree}"
        )


def check_deepspeed(job: Job, document: Node) -> None:
    """Raises SpecError for the first contradiction; `document` is what the job was read from, for the places."""
    if job.parallel.deepspeed is None:
        return
    node = document.nearest_to("parallel.deepspeed")
    _check_axes(job, document, node)
    _check_training(job, document)
    deepspeed_config.check_keys(job.parallel.deepspeed, node.place)
    zero = deepspeed_config.zero_of(job, node.place)
    if zero.stage == 3:
        deepspeed_config.check(job, node.place)
    _check_numbers(job, job.parallel.deepspeed, node.place)


def _check_axes(job: Job, document: Node, node: Node) -> None:
    others = [name for name, degree in axis_degrees(job.parallel).items() if degree > 1 and name != "dp_replicate"]
    if others:
        raise node.error(
            f"is given beside {' and '.join(others)}",
            allowed="dp_replicate alone, the ranks among which DeepSpeed divides",
            remedy="write dp_replicate with the number of all ranks",
        )
    usual = DpReplicate()
    for each in fields(DpReplicate):
        if each.name != "degree" and getattr(job.parallel.dp_replicate, each.name) != getattr(usual, each.name):
            at = document.nearest_to(f"parallel.dp_replicate.{each.name}")
            raise at.error("is for DistributedDataParallel, and parallel.deepspeed takes its place", remedy="delete it")


def _check_training(job: Job, document: Node) -> None:
    if job.train.precision != "none":
        node = document.nearest_to("train.precision")
        raise node.error(
            f"is {job.train.precision} beside parallel.deepspeed, which casts the model by its own config",
            allowed="none",
            remedy='say {"bf16": {"enabled": true}} in the DeepSpeed config',
        )
    against = {
        "train.optimizer_in_backward": job.train.optimizer_in_backward,
        "train.checkpoint_load": job.train.checkpoint_load is not None,
        "train.checkpoint_save": job.train.checkpoint_save is not None,
        "model.adapter": job.model.adapter is not None,
    }
    for path, there in against.items():
        if there:
            raise document.nearest_to(path).error("is not planned beside parallel.deepspeed", remedy="delete it")


def _check_numbers(job: Job, config: Any, place: str) -> None:
    """What both say has to be the same, as transformers' Trainer wants it; `"auto"` is what the job says."""
    train = job.train
    micro, steps = train.micro_batch_size, train.gradient_accumulation_steps
    ranks = job.parallel.dp_replicate.degree
    said: dict[str, tuple[Any, str]] = {
        "train_micro_batch_size_per_gpu": (micro, "train.micro_batch_size"),
        "gradient_accumulation_steps": (steps, "train.gradient_accumulation_steps"),
        "train_batch_size": (micro * steps * ranks, "micro_batch_size * gradient_accumulation_steps * dp_replicate"),
        "gradient_clipping": (train.gradient_clipping, "train.gradient_clipping"),
    }
    unsaid = {"gradient_clipping": 0.0}
    for key, (value, name) in said.items():
        found = config.get(key, unsaid.get(key, "auto"))
        if found not in ("auto", None, value):
            shown = found if key in config else f"{found} by default"
            raise SpecError(
                f"the DeepSpeed config's {key} is {shown}, and {name} is {value}",
                allowed=f'{value}, or "auto"',
                place=place,
            )
