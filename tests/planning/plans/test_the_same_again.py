"""A job's trace is the same story every time: twice in one process, after other jobs, in a fresh process."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from planner.errors import TraceError
from planner.job.schema import Eval, Job, Optimizer, Recompute
from planner.planning.plan import plan_job
from planner.planning.trace_source import USUAL_SOURCE
from planner.tracing.isolated import trace_isolated
from planner.tracing.job_program import trace

JobOf = Callable[..., Job]
SMALL: dict[str, Any] = {"micro_batch_size": 2, "sequence_length": 32, "iterations": 2}


def others(job_of: JobOf) -> list[Job]:
    """Jobs that leave as much behind in a process as jobs can: other dtypes, targets, worlds, modes."""
    return [
        job_of(**SMALL, precision="fp16_autocast", gradient_clipping=1.0),
        job_of(**SMALL, ddp={"degree": 4, "gradient_as_bucket_view": True}),
        job_of(**SMALL, model={"parameter_dtype": "bfloat16"}, recompute=Recompute(mode="selective")),
        job_of("normed", ddp={"arguments": {"find_unused_parameters": True}}, iterations=2),
        job_of(**SMALL, eval=Eval(micro_batch_size=1, every=1), optimizer=Optimizer(name="Adafactor")),
    ]


@pytest.mark.parametrize(
    "arguments",
    [{}, {"precision": "fp16_autocast"}, {"ddp": {}, "gradient_accumulation_steps": 2}],
    ids=["plain", "fp16", "ddp"],
)
def test_the_same_job_twice_in_one_process(job_of: JobOf, arguments: dict[str, Any]) -> None:
    job = job_of(**SMALL, **arguments)

    first, second = trace(job), trace(job)

    assert (first.events, first.buckets) == (second.events, second.buckets)


def test_after_many_other_jobs_as_in_a_fresh_process(job_of: JobOf) -> None:
    job = job_of(**SMALL, ddp={"bucket_cap_mb": 0.25}, precision="bf16_autocast")
    for other in others(job_of):
        trace(other)

    here, fresh = trace(job), trace_isolated(job)

    assert (here.events, here.buckets) == (fresh.events, fresh.buckets)


def test_after_a_job_that_failed_in_the_middle_as_before(job_of: JobOf) -> None:
    job = job_of(**SMALL)
    before = trace(job)
    with pytest.raises(TraceError):
        trace(job_of("Half", ddp={}))  # its unused parameters are waited for

    assert trace(job).events == before.events


def test_any_rank_of_a_class_does_the_same(job_of: JobOf) -> None:
    job = job_of(**SMALL, ddp={"degree": 1024})

    assert trace(job, 0).events == trace(job, 1023).events


def test_nodes_with_more_gpus_than_torch_can_count_are_none_of_its_business(job_of: JobOf) -> None:
    job = job_of(**SMALL, ddp={"degree": 1024})
    one_node = replace(job, cluster=replace(job.cluster, nodes=1, gpus_per_node=1024))

    assert USUAL_SOURCE.trace_rank(one_node, 0).events == trace(job).events


def test_a_thousand_ranks_are_one_trace(job_of: JobOf) -> None:
    plan = plan_job(job_of(**SMALL, ddp={"degree": 1024})).plan

    assert [(each.representative, each.ranks) for each in plan.rank_classes] == [(0, "0-1023")]
