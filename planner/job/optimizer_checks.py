"""What the optimizer's part of a job must be to the rest of it."""

from __future__ import annotations

from planner.job.axes import axis_degrees
from planner.job.nodes import Node
from planner.job.schema import Job


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
        _check_offload(job, document)


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


def _check_offload(job: Job, document: Node) -> None:
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
