"""Checks what pipelines, tensor, context and expert parallelism ask of the rest of a job.

Each raises SpecError for the first contradiction; `document` is what the job was read from, for the places.
"""

from __future__ import annotations

from planner.job import pipeline_schedules
from planner.job.layout import axis_degrees
from planner.job.nodes import Node
from planner.job.schema import Job

_TORCH = "torch 2.13"


def check_pipeline(job: Job, document: Node) -> None:
    """What does not go with pipeline parallelism."""
    pp, train, parallel, model = job.parallel.pp, job.train, job.parallel, job.model
    schedules, refuse = pipeline_schedules.SCHEDULES, document.refuse_if
    problem = f"{pp.schedule!r} is not a schedule of {_TORCH}"
    refuse(pp.schedule not in schedules, "parallel.pp.schedule", problem, allowed=", ".join(schedules))
    if pp.degree == 1:  # its split waits for a pipeline: people switch one off by its degree
        return
    schedule, path, stages = schedules[pp.schedule], "parallel.pp.split", len(pp.split)
    if pp.split:
        split = f"has {stages} stages, and {pp.schedule} over {pp.degree} ranks takes"
        one_each, two_each = not schedule.several and stages != pp.degree, schedule.v_shaped and stages != 2 * pp.degree
        refuse(one_each, path, f"{split} one to a rank", allowed=f"the layers of {pp.degree} stages")
        refuse(two_each, path, f"{split} two to a rank", allowed=f"the layers of {2 * pp.degree} stages")
        refuse(stages % pp.degree, path, f"{split} as many to every rank", allowed=f"a multiple of {pp.degree} stages")
    if (layers := pipeline_schedules.layers_of(job)) is not None:
        counts = pipeline_schedules.layers_of_stages(pp, layers)
        document.refuse_job_if(
            min(counts) < 1,
            "parallel.pp",
            f"the model has {layers} layers for {len(counts)} stages ({pp.degree} ranks with"
            f" {len(counts) // pp.degree} each), and every stage needs a layer",
            allowed=f"up to {layers} stages; where no split is given, embedding and head count as a layer each",
        )
        refuse(sum(counts) != layers, path, f"adds up to {sum(counts)} layers, and the model has {layers}")
    path, count, stages = (
        "train.gradient_accumulation_steps",
        train.gradient_accumulation_steps,
        pipeline_schedules.stage_count(pp),
    )
    rounds, place = max(1, count // pp.degree), document.first_written(path, "parallel.pp.degree")
    document.refuse_job_if(
        schedule.as_many_as_stages and count < stages,
        place,
        f"{pp.schedule} over {stages} stages needs at least {stages} micro-batches, and there are {count}",
        allowed=f"{path} from {stages}",
    )
    document.refuse_job_if(
        schedule.in_rounds and count % rounds,
        place,
        f"{pp.schedule} over {pp.degree} ranks runs {count} micro-batches in {rounds} rounds, which do not divide them",
        allowed=f"{path} a multiple of {pp.degree}",
    )
    refuse(
        parallel.dp_replicate.degree > 1 and parallel.dp_shard.degree == 1,
        "parallel.dp_replicate.degree",
        "replicates by DistributedDataParallel, which is not planned inside a pipeline",
        allowed="dp_replicate with dp_shard (HSDP), or dp_shard alone",
    )
    refuse(
        train.precision == "fp16_autocast",
        "train.precision",
        f"is fp16_autocast, and torch.distributed.pipelining ({_TORCH}) has no place for a GradScaler",
        allowed="none, bf16_autocast, fsdp_mixed",
    )
    refuse(train.eval, "train.eval", "is not planned inside a pipeline", remedy="delete it")
    problem = f"is {train.loss.name}, and the last stage of a pipeline gives logits"
    gives_logits = train.loss.name in ("cross_entropy", "sum")
    refuse(not gives_logits, "train.loss.name", problem, allowed="cross_entropy, sum")
    refuse(train.inputs, "train.inputs", "cannot be given for a pipeline, whose first stage takes tokens")
    problem = "brings a model that nobody can split into stages"
    refuse(model.factory, "model.factory", problem, allowed="decoder, hf_config")
    refuse(
        model.decoder is not None and model.decoder.tie_embeddings,
        "model.decoder.tie_embeddings",
        f"ties a weight that lies in two stages, and torch.distributed.pipelining ({_TORCH}) does not keep it equal",
        allowed="false",
    )


def check_tensor_parallelism(job: Job, document: Node) -> None:
    """What does not go with a model whose layers are split."""
    model, parallel, tp = job.model, job.parallel, job.parallel.tp
    if tp.degree == 1:
        return
    place, decoder = "parallel.tp.degree", model.decoder
    document.refuse_job_if(
        parallel.dp_replicate.degree > 1 and parallel.dp_shard.degree * parallel.cp.degree == 1,
        place,
        f"tp {tp.degree} under dp_replicate {parallel.dp_replicate.degree}: DistributedDataParallel of {_TORCH} takes "
        "no DTensors",
        allowed="tp with dp_shard, and dp_replicate beside both (HSDP)",
        remedy="shard the parameters: parallel.dp_shard",
    )
    if decoder is not None:
        # Of heads and of the ffn torch can make no uneven parts; of a vocabulary it can.
        document.refuse_job_if(
            decoder.vocab % tp.degree,
            place,
            f"tp {tp.degree} does not divide model.decoder.vocab ({decoder.vocab}): {_TORCH} gives the last rank fewer "
            "rows, which is not planned",
            allowed=f"a divisor of {decoder.vocab}",
            remedy=f"pad the vocabulary to {-(-decoder.vocab // tp.degree) * tp.degree}, as most programs do",
        )
        for name in ("heads", "kv_heads", "ffn"):
            size = getattr(decoder, name)
            problem = (
                f"tp {tp.degree} does not divide model.decoder.{name} ({size}), and {_TORCH} splits it evenly only"
            )
            document.refuse_job_if(size % tp.degree, place, problem, allowed=f"a divisor of {size}")
    document.refuse_job_if(
        model.factory,
        place,
        f"tp {tp.degree}: nothing says how the factory's model is split",
        allowed="decoder, hf_config; a program of your own calls parallelize_module",
    )
    if tp.sequence_parallel:
        path = "parallel.tp.sequence_parallel"
        problem = "of a transformers model is not planned between the stages of a pipeline"
        document.refuse_if(decoder is None and parallel.pp.degree > 1, path, problem, allowed="false")
    if tp.loss_parallel:
        path, loss = "parallel.tp.loss_parallel", job.train.loss.name
        problem = f"is for cross_entropy only ({_TORCH}), and the loss is {loss}"
        document.refuse_if(loss != "cross_entropy", path, problem)
    tokens, cp = job.train.sequence_length, parallel.cp.degree
    ranks = f"tp({tp.degree})" if cp == 1 else f"cp({cp}) * tp({tp.degree})"
    problem = f"is {tokens}, no multiple of {ranks}: sequence parallelism splits the tokens evenly"
    document.refuse_if(tp.sequence_parallel and tokens % (cp * tp.degree), "train.sequence_length", problem)


def check_context_parallelism(job: Job, document: Node) -> None:
    """What does not go with sequences that are split."""
    degree, tokens, attention = job.parallel.cp.degree, job.train.sequence_length, job.model.attention
    if degree == 1:
        return
    problem = f"cp {degree} splits sequences of tokens, and the job has no train.sequence_length"
    document.refuse_job_if(not tokens, "parallel.cp.degree", problem, allowed="models of tokens")
    problem = f"is {tokens}, no multiple of 2 * cp({degree}): each rank holds two chunks of a sequence"
    document.refuse_if(tokens % (2 * degree), "train.sequence_length", problem)
    problem = f"is {attention}, and context_parallel of {_TORCH} is a ring of sdpa"
    document.refuse_if(attention != "sdpa", "model.attention", problem, allowed="sdpa")


_WITHOUT_EXPERTS = {
    "tp": "transformers 5.23 splits experts over the ranks of tp too",
    "pp": "transformers 5.23 sends no tokens to experts inside a pipeline",
}


def check_experts(job: Job, document: Node) -> None:
    """An `ep` that is not planned, or whose fullest rank would get more than all tokens."""
    ep, path = job.parallel.ep, "parallel.ep.degree"
    if ep.degree == 1:
        return
    for axis, why in _WITHOUT_EXPERTS.items():
        degree = axis_degrees(job.parallel)[axis]
        document.refuse_job_if(
            degree > 1,
            path,
            f"parallel.ep has degree {ep.degree} and parallel.{axis} degree {degree}, and ep is not planned together "
            f"with {axis}: {why}",
            allowed=f"ep with dp_replicate, dp_shard and cp, or {axis} without ep",
        )
    problem = f"is {ep.degree}, and nothing says how the experts of this model are split"
    allowed = "1, or model.hf_config of a transformers mixture of experts"
    document.refuse_if(job.model.hf_config is None, path, problem, allowed=allowed)
    problem = f"is {ep.imbalance:g}, and no rank of {ep.degree} gets more than all tokens"
    document.refuse_if(ep.imbalance > ep.degree, "parallel.ep.imbalance", problem, allowed=f"1 to {ep.degree}")
