"""What post-training asks of the rest of a job: what is not planned beside an engine is refused here."""

from __future__ import annotations

from planner.errors import SpecError
from planner.job.axes import axis_degrees
from planner.job.nodes import Node
from planner.job.post_training_schema import PostTraining, Rollout
from planner.job.schema import Job

_PLACE = "post_training"


def check_post_training(job: Job, document: Node) -> None:
    """Raises SpecError for the first contradiction; `document` is what the job was read from, for the places."""
    if job.post_training is None:
        return
    _check_company(job, document)
    _check_model(job, document)
    _check_engine(job, job.post_training.rollout, document)
    _check_offload(job, job.post_training, document)


def _check_company(job: Job, document: Node) -> None:
    parallel, train = job.parallel, job.train
    beside = {
        "a pipeline (parallel.pp)": parallel.pp.degree > 1,
        "context parallelism (parallel.cp)": parallel.cp.degree > 1,
        "expert parallelism (parallel.ep)": parallel.ep.degree > 1,
        "DeepSpeed (parallel.deepspeed)": parallel.deepspeed is not None,
        "ZeroRedundancyOptimizer (parallel.dp_replicate)": parallel.dp_replicate.zero_redundancy_optimizer,
        "torch.compile (train.compile)": train.compile is not None,
        "optimizer_in_backward (train)": train.optimizer_in_backward,
        "an adapter (model.adapter)": job.model.adapter is not None,
        "sequences of several lengths (train.lengths)": train.lengths is not None,
    }
    for name, there in beside.items():
        if there:
            node = document.nearest_to(_PLACE)
            allowed = "dp_replicate, dp_shard and tp, with any torch.optim optimizer"
            raise node.error(f"is not planned beside {name}", allowed=allowed)


def _check_model(job: Job, document: Node) -> None:
    if job.model.factory:
        node = document.nearest_to(_PLACE)
        raise node.error("is not planned for a factory's model", allowed="model.hf_config or model.decoder")
    if not job.train.sequence_length:
        node = document.nearest_to("train.sequence_length")
        raise node.error("is missing, and post-training takes tokens", allowed="a whole number from 1")
    for name in ("reference", "reward"):
        frozen = getattr(job.post_training, name)
        if frozen is not None and frozen.head and job.model.decoder is not None and frozen.config is None:
            node = document.nearest_to(f"{_PLACE}.{name}.head")
            raise node.error("is only used with a transformers config", remedy=f"give {_PLACE}.{name}.config")


def _check_engine(job: Job, rollout: Rollout, document: Node) -> None:
    degree, node = rollout.tensor_parallel, document.nearest_to(f"{_PLACE}.rollout.tensor_parallel")
    ranks = 1
    for size in axis_degrees(job.parallel).values():
        ranks *= size
    if ranks % degree:
        raise node.error(
            f"is {degree}, and the job's {ranks} ranks do not fall into engines of {degree}",
            allowed=f"a divisor of {ranks}",
        )
    heads = _heads_of(job)
    if heads and heads % degree:
        raise node.error(
            f"is {degree}, which does not divide the model's {heads} heads", allowed=f"a divisor of {heads}"
        )
    if rollout.max_num_batched_tokens < rollout.max_num_seqs:
        node = document.nearest_to(f"{_PLACE}.rollout.max_num_batched_tokens")
        raise node.error(
            f"is {rollout.max_num_batched_tokens}, and {rollout.max_num_seqs} sequences give as many tokens a step",
            allowed=f"a whole number from {rollout.max_num_seqs}",
        )


def _heads_of(job: Job) -> int:
    if job.model.decoder is not None:
        return job.model.decoder.heads
    config = job.model.hf_config or {}
    found = config.get("text_config", config).get("num_attention_heads", 0)
    return found if type(found) is int else 0


def _check_offload(job: Job, post_training: PostTraining, document: Node) -> None:
    offload = post_training.trainer_offload
    if job.parallel.dp_shard.offload == "cpu" and (offload.parameters or offload.optimizer):
        raise SpecError(
            "the trainer's parameters and states rest on the host already (parallel.dp_shard.offload: cpu)",
            allowed="one of the two",
            remedy="leave post_training.trainer_offload away",
            place=document.nearest_to(f"{_PLACE}.trainer_offload").place,
        )
