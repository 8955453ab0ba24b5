"""What DeepSpeed's config and the rest of a job must be to each other."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

from planner.errors import SpecError
from planner.job import deepspeed_config, deepspeed_engine_config
from planner.job.axes import axis_degrees
from planner.job.nodes import Node
from planner.job.schema import DpReplicate, Job


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
        deepspeed_engine_config.check(job, node.place)
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
