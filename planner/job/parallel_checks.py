"""Checks what pipelines, tensor, context and expert parallelism, and DeepSpeed ask of the rest of a job.

Each raises SpecError for the first contradiction; `document` is what the job was read from, for the places.
"""

from __future__ import annotations

from dataclasses import fields

from planner.errors import SpecError
from planner.job import deepspeed_config, pipeline_schedules
from planner.job.layout import axis_degrees
from planner.job.nodes import Node
from planner.job.schema import DpReplicate, DpShard, Job

_TORCH = "torch 2.13"
_OTHER_AXES = ("tp", "pp", "cp", "ep")


def check_pipeline(job: Job, document: Node) -> None:
    """What does not go with pipeline parallelism."""
    pp = job.parallel.pp
    if pp.schedule not in pipeline_schedules.SCHEDULES:
        problem = f"{pp.schedule!r} is no schedule of {_TORCH}"
        raise document.fault("parallel.pp.schedule", problem, allowed=", ".join(pipeline_schedules.SCHEDULES))
    if pp.degree == 1:  # its split waits for a pipeline: people switch one off by its degree
        return
    schedule, stages = pipeline_schedules.SCHEDULES[pp.schedule], len(pp.split)
    if pp.split:
        node = document.nearest_to("parallel.pp.split")
        split = f"has {stages} stages, and {pp.schedule} over {pp.degree} ranks"
        if not schedule.several and stages != pp.degree:
            raise node.error(f"{split} takes one to a rank", allowed=f"the layers of {pp.degree} stages")
        if schedule.v_shaped and stages != 2 * pp.degree:
            raise node.error(f"{split} takes two to a rank", allowed=f"the layers of {2 * pp.degree} stages")
        if stages % pp.degree:
            raise node.error(f"{split} takes as many to every rank", allowed=f"a multiple of {pp.degree} stages")
    if (layers := pipeline_schedules.layers_of(job)) is not None:
        counts = pipeline_schedules.layers_of_stages(pp, layers)
        if min(counts) < 1:
            shape = f"{pp.degree} ranks with {len(counts) // pp.degree} each"
            raise SpecError(
                f"the model has {layers} layers for {len(counts)} stages ({shape}), and every stage needs a layer",
                allowed=f"up to {layers} stages; where no split is given, embedding and head count as a layer each",
                place=document.nearest_to("parallel.pp").place,
            )
        if sum(counts) != layers:
            problem = f"adds up to {sum(counts)} layers, and the model has {layers}"
            raise document.fault("parallel.pp.split", problem)
    count, stages = job.train.gradient_accumulation_steps, pipeline_schedules.stage_count(pp)
    place = document.nearest_to("train.gradient_accumulation_steps").place
    if schedule.as_many_as_stages and count < stages:
        raise SpecError(
            f"{pp.schedule} over {stages} stages needs at least {stages} micro-batches, and there are {count}",
            allowed=f"train.gradient_accumulation_steps from {stages}",
            place=place,
        )
    rounds = max(1, count // pp.degree)
    if schedule.in_rounds and count % rounds:
        raise SpecError(
            f"{pp.schedule} over {pp.degree} ranks runs {count} micro-batches in {rounds} rounds, which do not divide "
            "them",
            allowed=f"train.gradient_accumulation_steps a multiple of {pp.degree}",
            place=place,
        )
    _check_company_of_pipeline(job, document)


def _check_company_of_pipeline(job: Job, document: Node) -> None:
    train, parallel, model = job.train, job.parallel, job.model
    if parallel.dp_replicate.degree > 1 and parallel.dp_shard.degree == 1:
        raise document.fault(
            "parallel.dp_replicate.degree",
            "replicates by DistributedDataParallel, which is not planned inside a pipeline",
            allowed="dp_replicate with dp_shard (HSDP), or dp_shard alone",
        )
    if train.precision == "fp16_autocast":
        raise document.fault(
            "train.precision",
            f"is fp16_autocast, and torch.distributed.pipelining ({_TORCH}) has no place for a GradScaler",
            allowed="none, bf16_autocast, fsdp_mixed",
        )
    for name in ("eval", "retains"):
        if getattr(train, name):
            raise document.fault(f"train.{name}", "is not planned inside a pipeline", remedy="delete it")
    if train.loss.name not in ("cross_entropy", "sum"):
        problem = f"is {train.loss.name}, and the last stage of a pipeline gives logits"
        raise document.fault("train.loss.name", problem, allowed="cross_entropy, sum")
    if train.inputs:
        raise document.fault("train.inputs", "cannot be given for a pipeline, whose first stage takes tokens")
    if model.factory:
        problem = "brings a model that nobody can split into stages"
        raise document.fault("model.factory", problem, allowed="decoder, hf_config")
    if model.decoder is not None and model.decoder.tie_embeddings:
        raise document.fault(
            "model.decoder.tie_embeddings",
            f"ties a weight that lies in two stages, and torch.distributed.pipelining ({_TORCH}) does not keep it "
            "equal",
            allowed="false",
        )


def check_tensor_parallelism(job: Job, document: Node) -> None:
    """What does not go with a model whose layers are split."""
    model, parallel, tp = job.model, job.parallel, job.parallel.tp
    if tp.degree == 1:
        return
    place = document.nearest_to("parallel.tp.degree").place
    if parallel.dp_replicate.degree > 1 and parallel.dp_shard.degree * parallel.cp.degree == 1:
        raise SpecError(
            f"tp {tp.degree} under dp_replicate {parallel.dp_replicate.degree}: DistributedDataParallel of {_TORCH} "
            "takes no DTensors",
            allowed="tp with dp_shard, and dp_replicate beside both (HSDP)",
            remedy="shard the parameters: parallel.dp_shard",
            place=place,
        )
    is_own_plan = model.decoder is not None and not tp.plan
    if model.decoder is not None and is_own_plan:
        # Of heads and of the ffn torch can make no uneven parts; of a vocabulary it can.
        if (vocab := model.decoder.vocab) % tp.degree:
            raise SpecError(
                f"tp {tp.degree} does not divide model.decoder.vocab ({vocab}): {_TORCH} gives the last rank fewer "
                "rows, which is not planned",
                allowed=f"a divisor of {vocab}",
                remedy=f"pad the vocabulary to {-(-vocab // tp.degree) * tp.degree}, as most programs do",
                place=place,
            )
        for name in ("heads", "kv_heads", "ffn"):
            if (size := getattr(model.decoder, name)) % tp.degree:
                raise SpecError(
                    f"tp {tp.degree} does not divide model.decoder.{name} ({size}), and {_TORCH} splits it evenly only",
                    allowed=f"a divisor of {size}",
                    place=place,
                )
    if model.factory and not tp.plan:
        raise SpecError(
            f"tp {tp.degree} has no plan: nothing says how the factory's model is split",
            allowed='parallel.tp.plan: {"layers.*.up": colwise, "layers.*.down": rowwise}',
            place=place,
        )
    sequence = document.nearest_to("parallel.tp.sequence_parallel")
    if tp.sequence_parallel and tp.plan:
        allowed = "false; a plan can say sequence_parallel for single norms"
        raise sequence.error("is for the model's own plan, and this job has another", allowed=allowed)
    if tp.sequence_parallel and not is_own_plan and parallel.pp.degree > 1:
        problem = "of a transformers model is not planned between the stages of a pipeline"
        raise sequence.error(problem, allowed="false")
    loss = document.nearest_to("parallel.tp.loss_parallel")
    if tp.loss_parallel and not (is_own_plan or model.hf_config is not None):
        problem = "needs a head that a plan of a model's own splits"
        raise loss.error(problem, allowed="a decoder without plan, hf_config")
    if tp.loss_parallel and job.train.loss.name != "cross_entropy":
        raise loss.error(f"is for cross_entropy only ({_TORCH}), and the loss is {job.train.loss.name}")
    tokens, cp = job.train.sequence_length, parallel.cp.degree
    if tp.sequence_parallel and tokens % (cp * tp.degree):
        ranks = f"tp({tp.degree})" if cp == 1 else f"cp({cp}) * tp({tp.degree})"
        problem = f"is {tokens}, no multiple of {ranks}: sequence parallelism splits the tokens evenly"
        raise document.fault("train.sequence_length", problem)


def check_context_parallelism(job: Job, document: Node) -> None:
    """What does not go with sequences that are split."""
    degree, tokens = job.parallel.cp.degree, job.train.sequence_length
    if degree == 1:
        return
    if not tokens:
        raise SpecError(
            f"cp {degree} splits sequences of tokens, and the job has no train.sequence_length",
            allowed="models of tokens",
            place=document.nearest_to("parallel.cp.degree").place,
        )
    if tokens % (2 * degree):
        problem = f"is {tokens}, no multiple of 2 * cp({degree}): each rank holds two chunks of a sequence"
        raise document.fault("train.sequence_length", problem)
    if job.model.attention != "sdpa":
        problem = f"is {job.model.attention}, and context_parallel of {_TORCH} is a ring of sdpa"
        raise document.fault("model.attention", problem, allowed="sdpa")


_WITHOUT_EXPERTS = {
    "tp": "transformers 5.23 splits experts over the ranks of tp too",
    "pp": "transformers 5.23 sends no tokens to experts inside a pipeline",
}


def check_experts(job: Job, document: Node) -> None:
    """An `ep` that is not planned, or whose fullest rank would get more than all tokens."""
    ep = job.parallel.ep
    if ep.degree == 1:
        return
    for axis, why in _WITHOUT_EXPERTS.items():
        if (degree := axis_degrees(job.parallel)[axis]) > 1:
            raise SpecError(
                f"parallel.ep has degree {ep.degree} and parallel.{axis} degree {degree}, and ep is not planned "
                f"together with {axis}: {why}",
                allowed=f"ep with dp_replicate, dp_shard and cp, or {axis} without ep",
                place=document.nearest_to("parallel.ep.degree").place,
            )
    if job.model.hf_config is None:
        raise document.fault(
            "parallel.ep.degree",
            f"is {ep.degree}, and nothing says how the experts of this model are split",
            allowed="1, or model.hf_config of a transformers mixture of experts",
        )
    if ep.imbalance > ep.degree:
        problem = f"is {ep.imbalance:g}, and no rank of {ep.degree} gets more than all tokens"
        raise document.fault("parallel.ep.imbalance", problem, allowed=f"1 to {ep.degree}")


_OF_FSDP1 = (
    "no_shard", "use_orig_params", "backward_prefetch", "forward_prefetch", "limit_all_gathers", "sync_module_states",
    "autocast", "wrap", "wrap_size", "wrap_trained",
)  # fmt: skip
_OF_FSDP2 = ("keep_last", "prefetch")


def check_flat_parameters(job: Job, document: Node) -> None:
    """What goes with one kind of `dp_shard` alone, and what does not go with FullyShardedDataParallel."""
    shard, parallel, usual = job.parallel.dp_shard, job.parallel, DpShard()
    is_first = shard.kind == "fsdp1"
    for name in _OF_FSDP2 if is_first else _OF_FSDP1:
        if getattr(shard, name) != getattr(usual, name):
            kinds = ("fsdp2", "fsdp1") if is_first else ("fsdp1", "fsdp2")
            remedy = "delete it" if is_first else "delete it, or write kind: fsdp1"
            problem = "is of {}, and parallel.dp_shard.kind is {}".format(*kinds)
            raise document.fault(f"parallel.dp_shard.{name}", problem, remedy=remedy)
    if not is_first or shard.degree == 1:
        return
    reshard = shard.reshard_after_forward
    if not isinstance(reshard, bool):
        problem = f"is {reshard}, and FullyShardedDataParallel gathers from all ranks of a shard"
        raise document.fault("parallel.dp_shard.reshard_after_forward", problem, allowed="true, false")
    if several := [group for group in shard.groups if " " in group]:
        problem = f'holds "{several[0]}", and FullyShardedDataParallel makes a unit of one module'
        raise document.fault("parallel.dp_shard.groups", problem, allowed="the path of a module in each group")
    if shard.autocast and job.train.precision != "fsdp_mixed":
        problem = f"is true, and train.precision is {job.train.precision}"
        raise document.fault(
            "parallel.dp_shard.autocast", problem, allowed="false; true beside train.precision fsdp_mixed",
            remedy="autocast alone is train.precision: bf16_autocast",
        )  # fmt: skip
    named = {"groups": shard.groups, "wrap_trained": shard.wrap_trained, "wrap": shard.wrap == "none"}
    for name in named if shard.wrap_size else ():
        if named[name]:
            problem = f"is said beside wrap_size {shard.wrap_size}, which makes all units"
            raise document.fault(f"parallel.dp_shard.{name}", problem, remedy="delete one of the two")
    if shard.no_shard and parallel.dp_replicate.degree > 1:
        raise document.fault(
            "parallel.dp_shard.no_shard",
            f"keeps all parameters on every rank, beside dp_replicate {parallel.dp_replicate.degree}",
            allowed="all ranks in dp_shard.degree, dp_replicate 1",
        )
    axes = {f"parallel.{axis}": degree > 1 for axis, degree in axis_degrees(parallel).items() if axis in _OTHER_AXES}
    train = job.train
    against = {
        **axes,
        "post_training": job.post_training is not None,
        "train.checkpoint_load": train.checkpoint_load is not None,
        "train.checkpoint_save": train.checkpoint_save is not None,
        "train.optimizer_in_backward": train.optimizer_in_backward,
    }
    for path, is_there in against.items():
        if is_there:
            raise document.fault(
                path,
                "is not planned beside parallel.dp_shard.kind fsdp1",
                allowed="fsdp1 with dp_replicate, or another kind",
                remedy="write kind: fsdp2, or delete it",
            )


def check_deepspeed(job: Job, document: Node) -> None:
    """What does not go with DeepSpeed's engine, and its own config."""
    config, train, replicate = job.parallel.deepspeed, job.train, job.parallel.dp_replicate
    if config is None:
        return
    node = document.nearest_to("parallel.deepspeed")
    others = [name for name, degree in axis_degrees(job.parallel).items() if degree > 1 and name != "dp_replicate"]
    if others:
        raise node.error(
            f"is given beside {' and '.join(others)}",
            allowed="dp_replicate alone, the ranks among which DeepSpeed divides",
            remedy="write dp_replicate with the number of all ranks",
        )
    usual = DpReplicate()
    for name in (field.name for field in fields(DpReplicate) if field.name != "degree"):
        if getattr(replicate, name) != getattr(usual, name):
            problem = "is for DistributedDataParallel, and parallel.deepspeed takes its place"
            raise document.fault(f"parallel.dp_replicate.{name}", problem, remedy="delete it")
    if train.precision != "none":
        raise document.fault(
            "train.precision",
            f"is {train.precision} beside parallel.deepspeed, which casts the model by its own config",
            allowed="none",
            remedy='say {"bf16": {"enabled": true}} in the DeepSpeed config',
        )
    against = {
        "train.optimizer_in_backward": train.optimizer_in_backward,
        "train.checkpoint_load": train.checkpoint_load is not None,
        "train.checkpoint_save": train.checkpoint_save is not None,
        "model.adapter": job.model.adapter is not None,
    }
    for path, is_there in against.items():
        if is_there:
            raise document.fault(path, "is not planned beside parallel.deepspeed", remedy="delete it")
    deepspeed_config.check_keys(config, node.place)
    if deepspeed_config.zero_of(job, node.place).stage == 3:
        deepspeed_config.check(job, node.place)
    # What both say has to be the same, as transformers' Trainer wants it; `"auto"` is what the job says.
    micro, steps = train.micro_batch_size, train.gradient_accumulation_steps
    numbers = {
        "train_micro_batch_size_per_gpu": (micro, "train.micro_batch_size", "auto"),
        "gradient_accumulation_steps": (steps, "train.gradient_accumulation_steps", "auto"),
        "train_batch_size": (
            micro * steps * replicate.degree, "micro_batch_size * gradient_accumulation_steps * dp_replicate", "auto",
        ),
        "gradient_clipping": (train.gradient_clipping, "train.gradient_clipping", 0.0),
    }  # fmt: skip
    for key, (value, name, usually) in numbers.items():
        written = config.get(key, usually)
        if written not in ("auto", None, value):
            shown = written if key in config else f"{written} by default"
            raise SpecError(
                f"the DeepSpeed config's {key} is {shown}, and {name} is {value}",
                allowed=f'{value}, or "auto"',
                place=node.place,
            )
