"""Checks what optimizer, checkpoints and lengths ask of the rest of a job.

Each raises SpecError for the first contradiction; `document` is what the job was read from, for the places.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import pairwise

from planner.job.layout import axis_degrees
from planner.job.nodes import Node
from planner.job.schema import PERCENTILES, CheckpointLoad, CheckpointSave, Job, Lengths, tokens_of

_LOAD, _SAVE = "train.checkpoint_load", "train.checkpoint_save"
_OF_SHARDS = ("state_dict", "sharded_state_dict", "dcp", "dcp_async")
"""Kinds of checkpoints of which each rank loads or saves its own part."""
_SUM_TOLERANCE = 1e-6
"""How far shares may be from 1: people write `0.333`."""


def join_names(against: Mapping[str, bool]) -> str:
    """Those that are there, in a sentence."""
    return " and ".join(name for name, is_there in against.items() if is_there)


def check_stepping(job: Job, document: Node) -> None:
    """An optimizer that is divided or steps in the backward, and four bits."""
    train, degrees, refuse = job.train, axis_degrees(job.parallel), document.refuse_if
    others = [name for name, degree in degrees.items() if degree > 1 and name != "dp_replicate"]
    beside, divides = " and ".join(others), job.parallel.dp_replicate.zero_redundancy_optimizer
    path = "parallel.dp_replicate.zero_redundancy_optimizer"
    refuse(
        divides and degrees["dp_replicate"] == 1,
        path,
        "is true, and dp_replicate has degree 1: there is nobody to divide the optimizer with",
        allowed="dp_replicate with a degree from 2",
    )
    refuse(
        divides and others,
        path,
        f"is true beside {beside}: ZeroRedundancyOptimizer divides what DistributedDataParallel replicates, whole"
        " parameters",
        allowed="dp_replicate alone",
        remedy="delete it; dp_shard divides the optimizer's state as well",
    )
    packs = job.model.adapter is not None and job.model.adapter.kind == "qlora"
    problem = f"is qlora beside {beside}: packed weights are planned whole"
    refuse(packs and others, "model.adapter.kind", problem, allowed="dp_replicate alone, or lora")
    # A gradient that is gone when the backward ends can be neither accumulated, clipped, unscaled nor reduced.
    against = {
        "train.gradient_accumulation_steps above 1": train.gradient_accumulation_steps > 1,
        "train.gradient_clipping": bool(train.gradient_clipping),
        "the scaler of fp16_autocast": train.precision == "fp16_autocast",
        "train.zero_grad_set_to_none false": not train.zero_grad_set_to_none,
        **{f"{name} {size}": size > 1 for name, size in degrees.items() if name not in ("tp", "dp_shard")},
    }
    refuse(
        train.optimizer_in_backward and any(against.values()),
        "train.optimizer_in_backward",
        f"is true beside {join_names(against)}, which needs the gradients after the backward",
        allowed="one micro-batch, not clipped, of a model that is whole or under dp_shard or tp",
    )


def check_checkpoints(job: Job, document: Node) -> None:
    """What is loaded and what is saved, and how."""
    load, save, parallel = job.train.checkpoint_load, job.train.checkpoint_save, job.parallel
    if load is not None:
        _check_load(load, job, document)
    if save is not None:
        _check_save(save, job, document)
    unplanned = {
        "train.optimizer_in_backward": job.train.optimizer_in_backward,
        "parallel.dp_replicate.zero_redundancy_optimizer": parallel.dp_replicate.zero_redundancy_optimizer,
        "parallel.dp_shard.offload": bool(parallel.dp_shard.offload),
    }
    for place, section in ((_LOAD, load), (_SAVE, save)):
        if section is None:
            continue
        is_whole = parallel.pp.degree > 1 and section.kind not in _OF_SHARDS
        problem = f"is {section.kind}, and a rank of a pipeline has the parameters of its stages alone"
        document.refuse_if(is_whole, f"{place}.kind", problem, allowed="dcp")
        has_state = section.optimizer and section.kind != "huggingface"
        for other, is_there in unplanned.items():
            problem = f"has the optimizer's state beside {other}, of which it is not planned"
            document.refuse_if(has_state and is_there, f"{place}.optimizer", problem, allowed="optimizer: false")


def _check_load(load: CheckpointLoad, job: Job, document: Node) -> None:
    degrees, refuse = axis_degrees(job.parallel), document.refuse_if
    is_alone = degrees["dp_replicate"] * degrees["dp_shard"] == 1
    problem = f"is {load.kind}, and there is nobody to send to"
    sends_to_nobody = load.kind == "full_state_dict_from_rank0" and is_alone
    refuse(sends_to_nobody, f"{_LOAD}.kind", problem, allowed="dp_shard or dp_replicate above 1")
    shards = [name for name in ("dp_shard", "tp", "cp", "ep") if degrees[name] > 1]
    refuse(
        load.kind == "state_dict" and load.optimizer and shards,
        f"{_LOAD}.optimizer",
        f"is true beside kind state_dict and {' and '.join(shards)}: whole states are not those of shards",
        allowed="kind: full_state_dict, or dcp",
    )
    problem = "is given beside kind dcp, which reads into the model's own tensors"
    is_given = load.kind == "dcp" and load.map_location == "device"
    refuse(is_given, f"{_LOAD}.map_location", problem, remedy="delete it")


def _check_save(save: CheckpointSave, job: Job, document: Node) -> None:
    refuse, path, of_transformers = document.refuse_if, f"{_SAVE}.kind", save.kind == "huggingface"
    problem = "is huggingface, and the model is none of transformers"
    refuse(of_transformers and job.model.hf_config is None, path, problem, allowed="another kind, or hf_config")
    problem = "is huggingface beside model.adapter, which is saved alone"
    refuse(of_transformers and job.model.adapter is not None, path, problem, allowed="another kind, or none")
    problem = f"is true beside kind {save.kind}, which goes by way of the host anyway"
    goes_there = save.kind in ("dcp_async", "huggingface")
    refuse(save.cpu_offload and goes_there, f"{_SAVE}.cpu_offload", problem, remedy="delete it")


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
        raise section.error(f"has {join_names(ways) or 'no distribution'}", allowed=allowed)
    if lengths.histogram:
        _check_shares(lengths, section.nearest_to("histogram"))
    ascending = [("min", lengths.min), *percentiles]
    if section.nearest_to("max") is not section:
        ascending.append(("max", longest))
    for (lower, less), (name, more) in pairwise(ascending):
        problem = f"is {more}, less than {lower} ({less})"
        section.refuse_if(more < less, name, problem, allowed="percentiles that do not fall")
    if lengths.batches:
        most, count, micro_batches = max(lengths.batches), len(lengths.batches), job.train.gradient_accumulation_steps
        allowed = f"one of train.sequence_length ({longest}), or longer ones, which are cut to it"
        section.refuse_if(most < longest, "batches", f"has none longer than {most} tokens", allowed=allowed)
        allowed = f"at least train.gradient_accumulation_steps ({micro_batches})"
        problem = f"has {count} batches, not enough for one step"
        section.refuse_if(count < micro_batches, "batches", problem, allowed=allowed)
    _check_company_of_lengths(job, lengths, section)


def _check_shares(lengths: Lengths, node: Node) -> None:
    for length, share in lengths.histogram.items():
        problem = "has a key that is not a number of tokens"
        node.refuse_if(not tokens_of(length), length, problem, allowed="such as 512, or 4k")
        if type(share) not in (int, float) or not 0 < share <= 1:
            raise node.nearest_to(length).is_error(allowed="a share larger than 0 and not above 1")
    total = sum(lengths.histogram.values(), 0.0)
    if abs(total - 1) > _SUM_TOLERANCE:
        allowed = "shares that add up to 1"
        raise node.error(f"has shares that add up to {total:g}", allowed=allowed, remedy="divide counts by their sum")


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
    }
    for name, is_there in against.items():
        if is_there:
            raise section.error(f"is not planned with {name}", allowed="one length")


def check_transformers_options(job: Job, document: Node) -> None:
    """A mask, which transformers models have alone."""
    splits, refuse = job.parallel.pp.degree > 1 or job.parallel.cp.degree > 1, document.refuse_if
    padding, path = job.train.padding, "train.padding"
    if padding != "none":
        problem, allowed = (
            f"is {padding}, which is for models of hf_config",
            "none; a factory's mask is one of train.inputs",
        )
        refuse(job.model.hf_config is None, path, problem, allowed=allowed)
        refuse(splits, path, f"is {padding} under pp or cp, which take no attention mask", allowed="none")
