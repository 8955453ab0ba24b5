"""What a loss must be to the rest of the job."""

from __future__ import annotations

from planner.job.nodes import Node
from planner.job.schema import Job


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
