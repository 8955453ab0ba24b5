"""A job that cannot be traced is told so at once the next time, until the software or the limits change."""

from __future__ import annotations

import asyncio
import dataclasses
from typing import Any

import pytest
from plan_makers import JOB, OTHER, STAGES, ServiceStack, StackRunner, never, on_stack

from planner.errors import PlannerError, TraceError
from planner.job.schema import Allocator
from planner.planning import identity
from planner.service.errors import TraceLimitError, WorkerLostError
from planner.service.orders import PlanRefused
from planner.service.scheduling.worker_pool import WorkerDiedError

REFUSAL = TraceError(
    "aten.gone has no shape", allowed="operators with one", remedy="write it otherwise", place="model.0"
)


async def refuses(_: str) -> PlanRefused:
    return PlanRefused(REFUSAL)


async def refused(stack: ServiceStack, job: Any = JOB) -> PlannerError:
    with pytest.raises(PlannerError) as found:
        await stack.plan_provider.plan(job)
    await stack.settled()
    return found.value


def parts(error: PlannerError) -> tuple[type[PlannerError], str, str, str, str]:
    return type(error), error.problem, error.allowed, error.remedy, error.place


@pytest.mark.parametrize("job", [JOB, STAGES], ids=["one rank class", "several"])
def test_the_next_process_tells_the_same_without_tracing(run_stack: StackRunner, job: Any) -> None:
    async def fails(stack: ServiceStack) -> None:
        stack.pool.does = refuses
        assert parts(await refused(stack, job)) == parts(REFUSAL)

    async def remembers(stack: ServiceStack) -> None:
        assert parts(await refused(stack, job)) == parts(REFUSAL)
        with pytest.raises(TraceError):
            await stack.plan_provider.plan(job, keep=True)
        assert stack.pool.asked == []
        assert (await stack.plan_provider.plan(OTHER)).stored

    run_stack(fails)
    run_stack(remembers)


def test_a_failure_that_nobody_waited_for_is_remembered_too(run_stack: StackRunner) -> None:
    async def fails(stack: ServiceStack) -> None:
        stack.pool.does = never
        assert (await stack.plan_provider.plan(JOB, keep=True, seconds=0.01)).is_pending
        await stack.settled()

    async def remembers(stack: ServiceStack) -> None:
        assert isinstance(await refused(stack), TraceLimitError)
        assert stack.pool.asked == []

    run_stack(fails, trace_seconds=0.05)
    run_stack(remembers, trace_seconds=0.05)


@pytest.mark.parametrize("raised", [{"trace_seconds": 5.0}, {"trace_memory_bytes": 2**34}], ids=["time", "memory"])
def test_a_job_that_ran_into_a_limit_is_tried_again_under_a_larger_one(
    run_stack: StackRunner, raised: dict[str, Any]
) -> None:
    limits = {"trace_seconds": 0.05, "trace_memory_bytes": 2**33}

    async def fails(stack: ServiceStack) -> None:
        stack.pool.does = never
        assert isinstance(await refused(stack), TraceLimitError)

    async def remembers(stack: ServiceStack) -> None:
        assert isinstance(await refused(stack), TraceLimitError)
        assert stack.pool.asked == []

    async def tries_again(stack: ServiceStack) -> None:
        assert (await stack.plan_provider.plan(JOB)).stored

    run_stack(fails, **limits)
    run_stack(remembers, **limits)
    run_stack(remembers, **{**limits, "trace_seconds": 0.04})
    run_stack(tries_again, **{**limits, **raised})


def test_othersoftware_tries_again(run_stack: StackRunner, monkeypatch: pytest.MonkeyPatch) -> None:
    async def fails(stack: ServiceStack) -> None:
        stack.pool.does = refuses
        await refused(stack)

    async def tries_again(stack: ServiceStack) -> None:
        assert (await stack.plan_provider.plan(JOB)).stored

    run_stack(fails)
    later = {**identity.every_version(), "planner": "99.0"}
    monkeypatch.setattr(identity, "every_version", lambda: later)
    run_stack(tries_again)


@on_stack()
async def test_what_is_wrong_with_a_job_is_not_with_another_of_the_same_trace(stack: ServiceStack) -> None:
    stack.pool.does = refuses
    await refused(stack)
    stack.pool.does = None
    other = dataclasses.replace(JOB, allocator=Allocator(conf="expandable_segments:True"))
    assert (await stack.plan_provider.plan(other)).stored


def test_what_may_work_the_next_time_is_not_remembered(run_stack: StackRunner) -> None:
    async def dies(_: str) -> None:
        raise WorkerDiedError("gone")

    async def story(stack: ServiceStack) -> None:
        stack.pool.does = dies
        assert isinstance(await refused(stack), WorkerLostError)
        stack.pool.does = None
        assert (await stack.plan_provider.plan(JOB)).stored

    run_stack(story)


def test_a_store_that_does_not_answer_forgets_and_stops_nobody(
    run_stack: StackRunner, monkeypatch: pytest.MonkeyPatch
) -> None:
    def away(*_: object) -> None:
        raise PlannerError("away")

    async def story(stack: ServiceStack) -> None:
        monkeypatch.setattr(stack.history.failures, "get", away)
        monkeypatch.setattr(stack.history.failures, "put", away)
        stack.pool.does = refuses
        assert parts(await refused(stack)) == parts(REFUSAL)
        stack.pool.does = None
        assert (await asyncio.wait_for(stack.plan_provider.plan(JOB), 300)).stored

    run_stack(story)
