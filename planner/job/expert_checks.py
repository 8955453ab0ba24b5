"""What expert parallelism goes with, and how uneven its tokens can be."""

from __future__ import annotations

from planner.errors import SpecError
from planner.job.nodes import Node
from planner.job.schema import Job

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
