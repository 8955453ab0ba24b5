"""What an evaluation must be to the rest of a job."""

from __future__ import annotations

from planner.job.nodes import Node
from planner.job.schema import Job


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
