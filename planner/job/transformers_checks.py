"""What may be said of how a transformers model is called: its cache of keys and values, and padding."""

from __future__ import annotations

from planner.job.nodes import Node
from planner.job.schema import Job


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
