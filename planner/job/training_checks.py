"""Checks what optimizer, checkpoints, evaluation, lengths, loss and post-training ask of the rest of a job.

Each raises SpecError for the first contradiction; `document` is what the job was read from, for the places.
"""

from __future__ import annotations

import math
from itertools import pairwise

from planner.errors import SpecError
from planner.job.layout import axis_degrees
from planner.job.nodes import Node
from planner.job.schema import PERCENTILES, Generate, Job, Lengths, tokens_of


def check_stepping(job: Job, document: Node) -> None:
    """An optimizer that is divided or steps in the backward, four bits, and activations that are offloaded."""
    train, degrees = job.train, axis_degrees(job.parallel)
    others = [name for name, degree in degrees.items() if degree > 1 and name != "dp_replicate"]
    if job.parallel.dp_replicate.zero_redundancy_optimizer:
        path = "parallel.dp_replicate.zero_redundancy_optimizer"
        if degrees["dp_replicate"] == 1:
            raise document.fault(
                path,
                "is true, and dp_replicate has degree 1: there is nobody to divide the optimizer with",
                allowed="dp_replicate with a degree from 2",
            )
        if others:
            raise document.fault(
                path,
                f"is true beside {' and '.join(others)}: ZeroRedundancyOptimizer divides what DistributedDataParallel"
                " replicates, whole parameters",
                allowed="dp_replicate alone",
                remedy="delete it; dp_shard divides the optimizer's state as well",
            )
    if job.model.adapter is not None and job.model.adapter.kind == "qlora" and others:
        raise document.fault(
            "model.adapter.kind",
            f"is qlora beside {' and '.join(others)}: packed weights are planned whole",
            allowed="dp_replicate alone, or lora",
        )
    if train.optimizer_in_backward:
        # A gradient that is gone when the backward ends can be neither accumulated, clipped, unscaled nor reduced.
        against = {
            "train.gradient_accumulation_steps above 1": train.gradient_accumulation_steps > 1,
            "train.gradient_clipping": bool(train.gradient_clipping),
            "the scaler of fp16_autocast": train.precision == "fp16_autocast",
            "train.zero_grad_set_to_none false": not train.zero_grad_set_to_none,
            **{f"{name} {size}": size > 1 for name, size in degrees.items() if name not in ("tp", "dp_shard")},
        }
        if any(against.values()):
            raise document.fault(
                "train.optimizer_in_backward",
                f"is true beside {_joined(against)}, which needs the gradients after the backward",
                allowed="one micro-batch, not clipped, of a model that is whole or under dp_shard or tp",
            )
    if train.activation_offload and job.parallel.pp.degree > 1:
        raise document.fault("train.activation_offload", "is true in a pipeline, which is not planned", allowed="pp 1")


def _joined(against: dict[str, bool]) -> str:
    return " and ".join(name for name, is_there in against.items() if is_there)


_LOAD, _SAVE = "train.checkpoint_load", "train.checkpoint_save"


def check_checkpoints(job: Job, document: Node) -> None:
    """What is loaded and what is saved, and how."""
    load, save, parallel = job.train.checkpoint_load, job.train.checkpoint_save, job.parallel
    if load is not None:
        if load.broadcast_from_rank0:
            path = f"{_LOAD}.broadcast_from_rank0"
            if load.kind != "full_state_dict":
                raise document.fault(path, f"is true beside kind {load.kind}", allowed="kind: full_state_dict")
            if parallel.dp_replicate.degree * parallel.dp_shard.degree == 1:
                nobody = "is true, and there is nobody to send to"
                raise document.fault(path, nobody, allowed="dp_shard or dp_replicate above 1")
        degrees = axis_degrees(parallel)
        shards = [name for name in ("dp_shard", "tp", "cp", "ep") if degrees[name] > 1]
        if load.kind == "state_dict" and load.optimizer and shards:
            raise document.fault(
                f"{_LOAD}.optimizer",
                f"is true beside kind state_dict and {' and '.join(shards)}: whole states are not those of shards",
                allowed="kind: full_state_dict, or dcp",
            )
        against = {"keep_reference": load.keep_reference, "map_location": load.map_location == "device"}
        for key, is_given in against.items():
            if load.kind == "dcp" and is_given:
                problem = "is given beside kind dcp, which reads into the model's own tensors"
                raise document.fault(f"{_LOAD}.{key}", problem, remedy="delete it")
    if save is not None:
        kind = document.nearest_to(f"{_SAVE}.kind")
        if save.kind == "huggingface" and job.model.hf_config is None:
            allowed = "another kind, or hf_config"
            raise kind.error("is huggingface, and the model is none of transformers", allowed=allowed)
        if save.kind == "huggingface" and job.model.adapter is not None:
            allowed = "another kind, or none"
            raise kind.error("is huggingface beside model.adapter, which is saved alone", allowed=allowed)
        if save.pinned and save.kind != "dcp_async":
            problem = f"is true beside kind {save.kind}, which stages nothing"
            raise document.fault(f"{_SAVE}.pinned", problem, allowed="kind: dcp_async")
        if save.cpu_offload and save.kind in ("dcp_async", "huggingface"):
            problem = f"is true beside kind {save.kind}, which goes by way of the host anyway"
            raise document.fault(f"{_SAVE}.cpu_offload", problem, remedy="delete it")
    unplanned = {
        "train.optimizer_in_backward": job.train.optimizer_in_backward,
        "parallel.dp_replicate.zero_redundancy_optimizer": parallel.dp_replicate.zero_redundancy_optimizer,
        "parallel.dp_shard.offload": bool(parallel.dp_shard.offload),
    }
    for place, section in ((_LOAD, load), (_SAVE, save)):
        if section is None:
            continue
        if parallel.pp.degree > 1 and section.kind in ("full_state_dict", "huggingface"):
            problem = f"is {section.kind}, and a rank of a pipeline has the parameters of its stages alone"
            raise document.fault(f"{place}.kind", problem, allowed="dcp")
        for other, is_there in unplanned.items():
            if is_there and section.optimizer and section.kind != "huggingface":
                problem = f"has the optimizer's state beside {other}, of which it is not planned"
                raise document.fault(f"{place}.optimizer", problem, allowed="optimizer: false")


def check_evaluation(job: Job, document: Node) -> None:
    """What is kept between evaluation steps, and text that is generated."""
    evaluation = job.train.eval
    if evaluation is None:
        return
    usual = {"batches": 1, "accumulation_steps": 0}
    for name, value in usual.items():
        if not evaluation.gather and getattr(evaluation, name) != value:
            raise document.fault(
                f"train.eval.{name}",
                f"is {getattr(evaluation, name)}, and nothing is kept from one evaluation step to the next",
                remedy="give train.eval.gather: loss or logits",
            )
    if evaluation.generate is not None:
        _check_generation(job, evaluation.generate, document.nearest_to("train.eval.generate"))


def _check_generation(job: Job, generate: Generate, node: Node) -> None:
    if not job.train.sequence_length or job.train.inputs:
        raise node.error("is for models of tokens", remedy="give train.sequence_length and no train.inputs")
    against = {
        "parallel.cp, whose ranks have a part of each sequence": job.parallel.cp.degree > 1,
        "parallel.tp.sequence_parallel, which splits a single token": job.parallel.tp.sequence_parallel,
        "train.compile, which compiles for each length anew": job.train.compile is not None,
        "a factory, of whose arguments nothing is known": bool(job.model.factory),
    }
    for name, is_there in against.items():
        if is_there:
            raise node.error(f"is not planned with {name}", remedy="delete it, or plan the generation by itself")
    if generate.use_cache and job.model.hf_config is None:
        problem = "keeps keys and values (use_cache: true), which only models of hf_config do"
        raise node.error(problem, allowed="use_cache: false")


_SUM_TOLERANCE = 1e-6
"""How far shares may be from 1: people write `0.333`."""


def check_lengths(job: Job, document: Node) -> None:
    """How long sequences are that are not all of one length."""
    lengths, longest = job.train.lengths, job.train.sequence_length
    if lengths is None:
        return
    section = document.nearest_to("train.lengths")
    if section.path != "train.lengths":  # as the mapping in the place of the sequence length
        section = document.nearest_to("train.sequence_length")
    percentiles = [(name, length) for name in PERCENTILES if (length := getattr(lengths, name))]
    ways = {
        "percentiles": bool(percentiles),
        "histogram": bool(lengths.histogram),
        "batches": bool(lengths.batches),
    }
    if sum(ways.values()) != 1:
        allowed = "one of percentiles ({p50: 512, p99: 4096, max: 8192}), histogram and batches"
        raise section.error(f"has {_joined(ways) or 'no distribution'}", allowed=allowed)
    if lengths.histogram:
        _check_shares(lengths, section.nearest_to("histogram"))
    ascending = [("min", lengths.min), *percentiles]
    if section.nearest_to("max") is not section:
        ascending.append(("max", longest))
    for (lower, less), (name, more) in pairwise(ascending):
        if more < less:
            problem = f"is {more}, less than {lower} ({less})"
            raise section.fault(name, problem, allowed="percentiles that do not fall")
    micro_batches = job.train.gradient_accumulation_steps
    if lengths.batches and max(lengths.batches) < longest:
        allowed = f"one of train.sequence_length ({longest}), or longer ones, which are cut to it"
        raise section.fault("batches", f"has none longer than {max(lengths.batches)} tokens", allowed=allowed)
    if lengths.batches and len(lengths.batches) < micro_batches:
        allowed = f"at least train.gradient_accumulation_steps ({micro_batches})"
        raise section.fault("batches", f"has {len(lengths.batches)} batches, not enough for one step", allowed=allowed)
    _check_company_of_lengths(job, lengths, section)


def _check_shares(lengths: Lengths, node: Node) -> None:
    for length, share in lengths.histogram.items():
        if not tokens_of(length):
            raise node.fault(length, "has a key that is no number of tokens", allowed="such as 512, or 4k")
        if type(share) not in (int, float) or not 0 < share <= 1:
            raise node.nearest_to(length).is_error(allowed="a share larger than 0 and not above 1")
    total = sum(lengths.histogram.values(), 0.0)
    if abs(total - 1) > _SUM_TOLERANCE:
        raise node.error(
            f"has shares that add up to {total:g}",
            allowed="shares that add up to 1",
            remedy="divide counts by their sum",
        )


def _check_company_of_lengths(job: Job, lengths: Lengths, section: Node) -> None:
    """What does not go together with batches that differ."""
    train, parallel, multiple = job.train, job.parallel, lengths.pad_to_multiple_of
    node = section.nearest_to("pad_to_multiple_of")
    if not train.sequence_length:
        raise section.error("has no longest sequence", remedy="give train.sequence_length")
    if train.sequence_length % multiple:
        raise node.error(f"is {multiple}, which does not divide train.sequence_length ({train.sequence_length})")
    split = 2 * parallel.cp.degree if parallel.cp.degree > 1 else 1
    split *= parallel.tp.degree if parallel.tp.sequence_parallel else 1
    if multiple % split or any(length % split for length in lengths.batches):
        raise node.error(f"is {multiple}, and the ranks split each batch's tokens", allowed=f"a multiple of {split}")
    against = {
        "train.inputs, whose shapes are fixed": bool(train.inputs),
        "train.compile, which compiles for other lengths anew": train.compile is not None,
        "parallel.pp, whose stages exchange tensors of one shape": parallel.pp.degree > 1,
        "power_sgd, which begins after a thousand steps": parallel.dp_replicate.comm_hook == "power_sgd",
    }
    for name, is_there in against.items():
        if is_there:
            raise section.error(f"is not planned with {name}", allowed="one length")


def check_loss(job: Job, document: Node) -> None:
    """A head that is called in chunks where nothing is chunked, or where its output is split."""
    loss, node = job.train.loss, document.nearest_to("train.loss.chunk_head")
    if not loss.chunk_head:
        return
    if loss.name != "cross_entropy" or loss.chunks == 1:
        problem = f"is true with loss {loss.name} in {loss.chunks} chunk" + "s" * (loss.chunks != 1)
        raise node.error(problem, allowed="with loss cross_entropy and chunks from 2")
    if job.model.factory:
        raise node.error("is true, and nobody knows the head of a factory's model", allowed="with hf_config or decoder")
    for axis in ("tp", "pp", "cp"):
        if (degree := axis_degrees(job.parallel)[axis]) > 1:
            raise node.error(f"is true with {axis}({degree}), beside which it is not planned", allowed=f"{axis}: 1")
    if job.train.compile is not None:
        raise node.error("is true with train.compile, beside which it is not planned", allowed="either of them")


_POST = "post_training"


def check_post_training(job: Job, document: Node) -> None:
    """What is beside the trainer on its GPUs."""
    post_training, parallel, train, model = job.post_training, job.parallel, job.train, job.model
    if post_training is None:
        return
    against = {
        "a pipeline (parallel.pp)": parallel.pp.degree > 1,
        "context parallelism (parallel.cp)": parallel.cp.degree > 1,
        "expert parallelism (parallel.ep)": parallel.ep.degree > 1,
        "DeepSpeed (parallel.deepspeed)": parallel.deepspeed is not None,
        "ZeroRedundancyOptimizer (parallel.dp_replicate)": parallel.dp_replicate.zero_redundancy_optimizer,
        "torch.compile (train.compile)": train.compile is not None,
        "optimizer_in_backward (train)": train.optimizer_in_backward,
        "an adapter (model.adapter)": model.adapter is not None,
        "sequences of several lengths (train.lengths)": train.lengths is not None,
    }
    for name, is_there in against.items():
        if is_there:
            allowed = "dp_replicate, dp_shard and tp, with any torch.optim optimizer"
            raise document.fault(_POST, f"is not planned beside {name}", allowed=allowed)
    if model.factory:
        problem = "is not planned for a factory's model"
        raise document.fault(_POST, problem, allowed="model.hf_config or model.decoder")
    if not train.sequence_length:
        problem = "is missing, and post-training takes tokens"
        raise document.fault("train.sequence_length", problem, allowed="a whole number from 1")
    for name in ("reference", "reward"):
        frozen = getattr(post_training, name)
        if frozen is not None and frozen.head and model.decoder is not None and frozen.config is None:
            problem = "is only used with a transformers config"
            raise document.fault(f"{_POST}.{name}.head", problem, remedy=f"give {_POST}.{name}.config")
    _check_engine(job, document)
    offload = post_training.trainer_offload
    if parallel.dp_shard.offload == "cpu" and (offload.parameters or offload.optimizer):
        raise SpecError(
            "the trainer's parameters and states rest on the host already (parallel.dp_shard.offload: cpu)",
            allowed="one of the two",
            remedy="leave post_training.trainer_offload away",
            place=document.nearest_to(f"{_POST}.trainer_offload").place,
        )


def _check_engine(job: Job, document: Node) -> None:
    assert job.post_training is not None
    rollout = job.post_training.rollout
    degree, path = rollout.tensor_parallel, f"{_POST}.rollout.tensor_parallel"
    ranks = math.prod(axis_degrees(job.parallel).values())
    if ranks % degree:
        problem = f"is {degree}, and the job's {ranks} ranks do not fall into engines of {degree}"
        raise document.fault(path, problem, allowed=f"a divisor of {ranks}")
    config = job.model.hf_config or {}
    heads = config.get("text_config", config).get("num_attention_heads", 0)
    if job.model.decoder is not None:
        heads = job.model.decoder.heads
    if type(heads) is int and heads and heads % degree:
        problem = f"is {degree}, which does not divide the model's {heads} heads"
        raise document.fault(path, problem, allowed=f"a divisor of {heads}")
    if rollout.max_num_batched_tokens < rollout.max_num_seqs:
        raise document.fault(
            f"{_POST}.rollout.max_num_batched_tokens",
            f"is {rollout.max_num_batched_tokens}, and {rollout.max_num_seqs} sequences give as many tokens a step",
            allowed=f"a whole number from {rollout.max_num_seqs}",
        )


def check_transformers_options(job: Job, document: Node) -> None:
    """A cache and a mask, which transformers models have alone."""
    splits = job.parallel.pp.degree > 1 or job.parallel.cp.degree > 1
    if job.model.use_cache:
        path = "model.use_cache"
        if job.train.recompute.mode != "none":
            problem = "is true under recomputation, for which transformers turns the cache off"
            raise document.fault(path, problem, allowed="false")
        if splits:
            raise document.fault(path, "is true under pp or cp, whose ranks have no such cache", allowed="false")
    if job.train.padding != "none":
        node = document.nearest_to("train.padding")
        if job.model.hf_config is None:
            allowed = "none; a factory's mask is one of train.inputs"
            raise node.error(f"is {job.train.padding}, which is for models of hf_config", allowed=allowed)
        if splits:
            raise node.error(f"is {job.train.padding} under pp or cp, which take no attention mask", allowed="none")
