"""Checks what optimizer, checkpoints, evaluation, lengths, loss and post-training ask of the rest of a job."""

from __future__ import annotations

from itertools import pairwise

from planner.errors import SpecError
from planner.job.layout import axis_degrees
from planner.job.nodes import Node
from planner.job.schema import (
    PERCENTILES,
    CheckpointLoad,
    CheckpointSave,
    Job,
    Lengths,
    PostTraining,
    Rollout,
    tokens_of,
)


def check_stepping(job: Job, document: Node) -> None:
    """Raises SpecError for an optimizer that is divided or steps in the backward, and for activations that are
    offloaded, where the rest of the job leaves no way to."""
    if job.parallel.dp_replicate.zero_redundancy_optimizer:
        _check_division(job, document)
    if job.model.adapter is not None and job.model.adapter.kind == "qlora":
        _check_four_bits(job, document)
    if job.train.optimizer_in_backward:
        _check_in_backward(job, document)
    if job.train.activation_offload:
        _check_activation_offload(job, document)


def _check_division(job: Job, document: Node) -> None:
    node = document.nearest_to("parallel.dp_replicate.zero_redundancy_optimizer")
    degrees = axis_degrees(job.parallel)
    if degrees["dp_replicate"] == 1:
        raise node.error(
            "is true, and dp_replicate has degree 1: there is nobody to divide the optimizer with",
            allowed="dp_replicate with a degree from 2",
        )
    others = [name for name, degree in degrees.items() if degree > 1 and name != "dp_replicate"]
    if others:
        raise node.error(
            f"is true beside {' and '.join(others)}: ZeroRedundancyOptimizer divides what DistributedDataParallel"
            " replicates, whole parameters",
            allowed="dp_replicate alone",
            remedy="delete it; dp_shard divides the optimizer's state as well",
        )


def _check_in_backward(job: Job, document: Node) -> None:
    """A gradient that is gone when the backward ends can be neither accumulated, clipped, unscaled nor reduced."""
    node, train = document.nearest_to("train.optimizer_in_backward"), job.train
    against = {
        "train.gradient_accumulation_steps above 1": train.gradient_accumulation_steps > 1,
        "train.gradient_clipping": bool(train.gradient_clipping),
        "the scaler of fp16_autocast": train.precision == "fp16_autocast",
        "train.zero_grad_set_to_none false": not train.zero_grad_set_to_none,
        **{
            f"{name} {degree}": degree > 1
            for name, degree in axis_degrees(job.parallel).items()
            if name not in ("tp", "dp_shard")
        },
    }
    found = [name for name, there in against.items() if there]
    if found:
        raise node.error(
            f"is true beside {' and '.join(found)}, which needs the gradients after the backward",
            allowed="one micro-batch, not clipped, of a model that is whole or under dp_shard or tp",
        )


def _check_activation_offload(job: Job, document: Node) -> None:
    node = document.nearest_to("train.activation_offload")
    if job.parallel.pp.degree > 1:
        raise node.error("is true in a pipeline, which is not planned", allowed="pp 1")


def _check_four_bits(job: Job, document: Node) -> None:
    degrees = axis_degrees(job.parallel).items()
    split = [name for name, degree in degrees if degree > 1 and name != "dp_replicate"]
    if split:
        node = document.nearest_to("model.adapter.kind")
        raise node.error(
            f"is qlora beside {' and '.join(split)}: packed weights are planned whole",
            allowed="dp_replicate alone, or lora",
        )


_LOAD, _SAVE = "train.checkpoint_load", "train.checkpoint_save"
_SHARDING = ("dp_shard", "tp", "cp", "ep")
_WHOLE_KINDS = ("full_state_dict", "huggingface")


def check_checkpoints(job: Job, document: Node) -> None:
    """Raises SpecError for the first contradiction; `document` is what the job was read from, for the places."""
    load, save = job.train.checkpoint_load, job.train.checkpoint_save
    if load is not None:
        _check_load(job, load, document)
    if save is not None:
        _check_save(job, save, document)
    for place, section in ((_LOAD, load), (_SAVE, save)):
        if section is not None:
            _check_pipeline(job, f"{place}.kind", section.kind, document)
            if section.optimizer and section.kind != "huggingface":
                _check_optimizer(job, f"{place}.optimizer", document)


def _check_load(job: Job, load: CheckpointLoad, document: Node) -> None:
    if load.broadcast_from_rank0:
        node = document.nearest_to(f"{_LOAD}.broadcast_from_rank0")
        if load.kind != "full_state_dict":
            raise node.error(f"is true beside kind {load.kind}", allowed="kind: full_state_dict")
        if job.parallel.dp_replicate.degree * job.parallel.dp_shard.degree == 1:
            raise node.error("is true, and there is nobody to send to", allowed="dp_shard or dp_replicate above 1")
    shards = [name for name, degree in axis_degrees(job.parallel).items() if degree > 1 and name in _SHARDING]
    if load.kind == "state_dict" and load.optimizer and shards:
        node = document.nearest_to(f"{_LOAD}.optimizer")
        raise node.error(
            f"is true beside kind state_dict and {' and '.join(shards)}: whole states are not those of shards",
            allowed="kind: full_state_dict, or dcp",
        )
    if load.kind == "dcp":
        against = {"keep_reference": load.keep_reference, "map_location": load.map_location == "device"}
        for key, given in against.items():
            if given:
                raise document.nearest_to(f"{_LOAD}.{key}").error(
                    "is given beside kind dcp, which reads into the model's own tensors", remedy="delete it"
                )


def _check_save(job: Job, save: CheckpointSave, document: Node) -> None:
    if save.kind == "huggingface" and job.model.hf_config is None:
        node = document.nearest_to(f"{_SAVE}.kind")
        raise node.error("is huggingface, and the model is none of transformers", allowed="another kind, or hf_config")
    if save.kind == "huggingface" and job.model.adapter is not None:
        node = document.nearest_to(f"{_SAVE}.kind")
        raise node.error("is huggingface beside model.adapter, which is saved alone", allowed="another kind, or none")
    if save.pinned and save.kind != "dcp_async":
        node = document.nearest_to(f"{_SAVE}.pinned")
        raise node.error(f"is true beside kind {save.kind}, which stages nothing", allowed="kind: dcp_async")
    if save.cpu_offload and save.kind in ("dcp_async", "huggingface"):
        node = document.nearest_to(f"{_SAVE}.cpu_offload")
        raise node.error(f"is true beside kind {save.kind}, which goes by way of the host anyway", remedy="delete it")


def _check_pipeline(job: Job, place: str, kind: str, document: Node) -> None:
    if job.parallel.pp.degree > 1 and kind in _WHOLE_KINDS:
        raise document.nearest_to(place).error(
            f"is {kind}, and a rank of a pipeline has the parameters of its stages alone", allowed="dcp"
        )


def _check_optimizer(job: Job, place: str, document: Node) -> None:
    against = {
        "train.optimizer_in_backward": job.train.optimizer_in_backward,
        "parallel.dp_replicate.zero_redundancy_optimizer": job.parallel.dp_replicate.zero_redundancy_optimizer,
        "parallel.dp_shard.offload": bool(job.parallel.dp_shard.offload),
    }
    for other, there in against.items():
        if there:
            raise document.nearest_to(place).error(
                f"has the optimizer's state beside {other}, of which it is not planned", allowed="optimizer: false"
            )


def check_evaluation(job: Job, document: Node) -> None:
    """Raises SpecError for the first contradiction; `document` is what the job was read from, for the places."""
    evaluation = job.train.eval
    if evaluation is None:
        return
    if not evaluation.gather:
        for name, value, usual in (
            ("batches", evaluation.batches, 1),
            ("accumulation_steps", evaluation.accumulation_steps, 0),
        ):
            if value != usual:
                node = document.nearest_to(f"train.eval.{name}")
                raise node.error(
                    f"is {value}, and nothing is kept from one evaluation step to the next",
                    remedy="give train.eval.gather: loss or logits",
                )
    if evaluation.generate is not None:
        _check_generation(job, document)


def _check_generation(job: Job, document: Node) -> None:
    assert job.train.eval is not None
    generate = job.train.eval.generate
    assert generate is not None
    node = document.nearest_to("train.eval.generate")
    if not job.train.sequence_length or job.train.inputs:
        raise node.error("is for models of tokens", remedy="give train.sequence_length and no train.inputs")
    for used, what in (
        (job.parallel.cp.degree > 1, "parallel.cp, whose ranks have a part of each sequence"),
        (job.parallel.tp.sequence_parallel, "parallel.tp.sequence_parallel, which splits a single token"),
        (job.train.compile is not None, "train.compile, which compiles for each length anew"),
        (job.model.factory, "a factory, of whose arguments nothing is known"),
    ):
        if used:
            raise node.error(f"is not planned with {what}", remedy="delete it, or plan the generation by itself")
    if generate.use_cache and job.model.hf_config is None:
        raise node.error(
            "keeps keys and values (use_cache: true), which only models of hf_config do", allowed="use_cache: false"
        )


_SUM_TOLERANCE = 1e-6
"""How far shares may be from 1: people write `0.333`."""


def check_lengths(job: Job, document: Node) -> None:
    """Raises SpecError for the first contradiction; `document` is what the job was read from, for the places."""
    lengths = job.train.lengths
    if lengths is None:
        return
    section = document.nearest_to("train.lengths")
    if section.path != "train.lengths":  # as the mapping in the place of the sequence length
        section = document.nearest_to("train.sequence_length")
    _check_ways(lengths, section)
    if lengths.histogram:
        _check_shares(lengths, section.nearest_to("histogram"))
    _check_order(job, lengths, section)
    _check_batches(job, lengths, section)
    _check_rest(job, lengths, section)


def _check_ways(lengths: Lengths, section: Node) -> None:
    """One of percentiles, histogram, batches."""
    ways = {
        "percentiles": any(getattr(lengths, name) for name in PERCENTILES),
        "histogram": bool(lengths.histogram),
        "batches": bool(lengths.batches),
    }
    said = [name for name, is_said in ways.items() if is_said]
    if len(said) != 1:
        found = " and ".join(said) if said else "no distribution"
        allowed = "one of percentiles ({p50: 512, p99: 4096, max: 8192}), histogram and batches"
        raise section.error(f"has {found}", allowed=allowed)


def _check_shares(lengths: Lengths, node: Node) -> None:
    total = 0.0
    for length, share in lengths.histogram.items():
        at = node.nearest_to(length)
        if not tokens_of(length):
            raise at.error("has a key that is no number of tokens", allowed="such as 512, or 4k")
        if type(share) not in (int, float) or not 0 < share <= 1:
            raise at.is_error(allowed="a share larger than 0 and not above 1")
        total += share
    if abs(total - 1) > _SUM_TOLERANCE:
        raise node.error(
            f"has shares that add up to {total:g}",
            allowed="shares that add up to 1",
            remedy="divide counts by their sum",
        )


def _check_order(job: Job, lengths: Lengths, section: Node) -> None:
    said = [("min", lengths.min), *((name, getattr(lengths, name)) for name in PERCENTILES if getattr(lengths, name))]
    if section.nearest_to("max") is not section:
        said.append(("max", job.train.sequence_length))
    for (lower, less), (name, more) in pairwise(said):
        if more < less:
            node = section.nearest_to(name)
            raise node.error(f"is {more}, less than {lower} ({less})", allowed="percentiles that do not fall")


def _check_batches(job: Job, lengths: Lengths, section: Node) -> None:
    longest, micro_batches = job.train.sequence_length, job.train.gradient_accumulation_steps
    node = section.nearest_to("batches")
    if lengths.batches and max(lengths.batches) < longest:
        allowed = f"one of train.sequence_length ({longest}), or longer ones, which are cut to it"
        raise node.error(f"has none longer than {max(lengths.batches)} tokens", allowed=allowed)
    if lengths.batches and len(lengths.batches) < micro_batches:
        allowed = f"at least train.gradient_accumulation_steps ({micro_batches})"
        raise node.error(f"has {len(lengths.batches)} batches, not enough for one step", allowed=allowed)


def _check_rest(job: Job, lengths: Lengths, section: Node) -> None:
    """What does not go together with batches that differ."""
    train, parallel, multiple = job.train, job.parallel, lengths.pad_to_multiple_of
    node = section.nearest_to("pad_to_multiple_of")
    if not train.sequence_length:
        raise section.error("has no longest sequence", remedy="give train.sequence_length")
    if train.sequence_length % multiple:
        raise node.error(f"is {multiple}, which does not divide train.sequence_length ({train.sequence_length})")
    split = 2 * parallel.cp.degree if parallel.cp.degree > 1 else 1
    split *= parallel.tp.degree if parallel.tp.sequence_parallel else 1
    if multiple % split or any(each % split for each in lengths.batches):
        raise node.error(f"is {multiple}, and the ranks split each batch's tokens", allowed=f"a multiple of {split}")
    for used, what in (
        (train.inputs, "train.inputs, whose shapes are fixed"),
        (train.compile is not None, "train.compile, which compiles for other lengths anew"),
        (parallel.pp.degree > 1, "parallel.pp, whose stages exchange tensors of one shape"),
        (parallel.dp_replicate.comm_hook == "power_sgd", "power_sgd, which begins after a thousand steps"),
    ):
        if used:
            raise section.error(f"is not planned with {what}", allowed="one length")


def check_loss(job: Job, document: Node) -> None:
    """Raises SpecError for a head that is called in chunks where nothing is chunked, or where its output is split."""
    loss, parallel = job.train.loss, job.parallel
    if not loss.chunk_head:
        return
    node = document.nearest_to("train.loss.chunk_head")
    if loss.name != "cross_entropy" or loss.chunks == 1:
        given = f"with loss {loss.name} in {loss.chunks} chunk" + "s" * (loss.chunks != 1)
        raise node.error(f"is true {given}", allowed="with loss cross_entropy and chunks from 2")
    if job.model.factory:
        raise node.error("is true, and nobody knows the head of a factory's model", allowed="with hf_config or decoder")
    degrees = {"tp": parallel.tp.degree, "pp": parallel.pp.degree, "cp": parallel.cp.degree}
    for axis, degree in degrees.items():
        if degree > 1:
            raise node.error(f"is true with {axis}({degree}), beside which it is not planned", allowed=f"{axis}: 1")
    if job.train.compile is not None:
        raise node.error("is true with train.compile, beside which it is not planned", allowed="either of them")


_PLACE = "post_training"


def check_post_training(job: Job, document: Node) -> None:
    """Raises SpecError for the first contradiction; `document` is what the job was read from, for the places."""
    if job.post_training is None:
        return
    _check_company(job, document)
    _check_model(job, document)
    _check_engine(job, job.post_training.rollout, document)
    _check_trainer_offload(job, job.post_training, document)


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


def _check_trainer_offload(job: Job, post_training: PostTraining, document: Node) -> None:
    offload = post_training.trainer_offload
    if job.parallel.dp_shard.offload == "cpu" and (offload.parameters or offload.optimizer):
        raise SpecError(
            "the trainer's parameters and states rest on the host already (parallel.dp_shard.offload: cpu)",
            allowed="one of the two",
            remedy="leave post_training.trainer_offload away",
            place=document.nearest_to(f"{_PLACE}.trainer_offload").place,
        )


def check_transformers_options(job: Job, document: Node) -> None:
    """Raises SpecError for the first contradiction; `document` is what the job was read from, for the places."""
    if job.model.use_cache:
        _check_cache(job, document)
    if job.train.padding != "none":
        _check_padding(job, document)


def _check_cache(job: Job, document: Node) -> None:
    node = document.nearest_to("model.use_cache")
    if job.train.recompute.mode != "none":
        raise node.error("is true under recomputation, for which transformers turns the cache off", allowed="false")
    if job.parallel.pp.degree > 1 or job.parallel.cp.degree > 1:
        raise node.error("is true under pp or cp, whose ranks have no such cache", allowed="false")


def _check_padding(job: Job, document: Node) -> None:
    node = document.nearest_to("train.padding")
    if job.model.hf_config is None:
        allowed = "none; a factory's mask is one of train.inputs"
        raise node.error(f"is {job.train.padding}, which is for models of hf_config", allowed=allowed)
    if job.parallel.pp.degree > 1 or job.parallel.cp.degree > 1:
        raise node.error(f"is {job.train.padding} under pp or cp, which take no attention mask", allowed="none")
