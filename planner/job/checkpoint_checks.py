"""What loading and saving checkpoints ask of the rest of a job."""

from __future__ import annotations

from planner.job.axes import axis_degrees
from planner.job.nodes import Node
from planner.job.schema import CheckpointLoad, CheckpointSave, Job

_LOAD, _SAVE = "train.checkpoint_load", "train.checkpoint_save"
_SHARDING = ("dp_shard", "tp", "cp", "ep")
_WHOLE = ("full_state_dict", "huggingface")


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
    if job.parallel.pp.degree > 1 and kind in _WHOLE:
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
