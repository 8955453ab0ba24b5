"""The constraints of a search by name, so that an empty space can say which of them emptied it."""

from __future__ import annotations

from collections.abc import Callable

from planner.job import pipeline_schedules
from planner.job.axes import axis_degrees
from planner.job.schema import Job
from planner.searching.changes import fault_of

Rule = Callable[[Job], bool]
"""Whether the job keeps it."""


def broken_rule(job: Job) -> tuple[str, str]:
    """The name of the first rule that the job breaks, and what is said of it; two empty texts if it keeps all."""
    for name, keeps in RULES.items():
        if not keeps(job):
            return name, ""
    fault = fault_of(job)
    return ("", "") if fault is None else (SPEC, fault.problem)


SPEC = "the job keeps the rules of a spec"


def _tp_in_node(job: Job) -> bool:
    return job.parallel.tp.degree <= job.cluster.gpus_per_node


def _world(job: Job) -> bool:
    product = 1
    for degree in axis_degrees(job.parallel).values():
        product *= degree
    return product == job.cluster.nodes * job.cluster.gpus_per_node


def _heads(job: Job) -> bool:
    degree, config = job.parallel.tp.degree, job.model.hf_config
    if degree == 1 or config is None or job.parallel.tp.plan:
        return True
    heads = config.get("num_attention_heads") or config.get("n_head")
    names = ("num_key_value_heads", "intermediate_size", "vocab_size")
    sizes = [heads, *(config.get(name) for name in names)]
    return all(size % degree == 0 for size in sizes if type(size) is int)


def _stages(job: Job) -> bool:
    pp, layers = job.parallel.pp, pipeline_schedules.layers_of(job)
    if pp.degree == 1 or layers is None or pp.schedule not in pipeline_schedules.SCHEDULES:
        return True
    return min(pipeline_schedules.layers_of_stages(pp, layers)) >= 1


def _micro_batches(job: Job) -> bool:
    pp = job.parallel.pp
    return pp.degree == 1 or job.train.gradient_accumulation_steps >= pp.degree


def _tokens(job: Job) -> bool:
    train, parallel = job.train, job.parallel
    parts = 2 * parallel.cp.degree if parallel.cp.degree > 1 else 1
    if parallel.tp.sequence_parallel:
        parts *= parallel.tp.degree
    return train.sequence_length % parts == 0


RULES: dict[str, Rule] = {
    "the product of the degrees is the number of GPUs": _world,
    "tensor parallelism stays inside of a node": _tp_in_node,
    "tp divides the heads, the key-value heads, the feed-forward and the vocabulary": _heads,
    "every stage of a pipeline has a layer": _stages,
    "a pipeline has at least as many micro-batches as ranks": _micro_batches,
    "context and sequence parallelism divide the tokens": _tokens,
}
"""In the order in which they are asked; what a spec itself refuses comes last."""
