"""Callers may go, processes may die or take too much: whoever still waits gets an answer."""

from __future__ import annotations

import asyncio
import dataclasses
import json

import pytest
from plan_makers import JOB, OTHER, FakeWorker, ServiceStack, metadata, named, never, on_stack, when

from planner.errors import TraceError
from planner.job.schema import Train
from planner.runtime.limits import Limit, LimitExceededError, Limits
from planner.service.errors import (
    BusyError,
    TraceLimitError,
    WorkerLostError,
)
from planner.service.metrics import JOBS_REFUSED, TRACE_RETRIES
from planner.service.orders import WorkerResult, build_order
from planner.service.scheduling.worker_pool import WorkerDiedError
from planner.truth.calibration.interval import Calibration
from planner.units import GIB


@on_stack(trace_queue=2)
async def test_no_more_wait_than_may_wait(stack: ServiceStack) -> None:
    stack.pool.does = never
    sizes = [Train(sequence_length=64 * n) for n in range(1, 5)]
    waiting = [
        asyncio.create_task(stack.plan_provider.plan(dataclasses.replace(JOB, train=each))) for each in sizes[:3]
    ]
    while stack.tracers.entry_count < len(waiting):
        await asyncio.sleep(0.005)

    with pytest.raises(BusyError) as caught:
        await stack.plan_provider.plan(dataclasses.replace(JOB, train=sizes[3]))
    joined = asyncio.create_task(stack.plan_provider.plan(dataclasses.replace(JOB, train=sizes[0])))  # it adds no work
    await asyncio.sleep(0.05)

    assert not joined.done()
    assert caught.value.problem == "the planning queue is full (3 jobs)"
    assert 1 <= caught.value.retry_after_seconds <= 60
    assert stack.counted[JOBS_REFUSED] == 1
    for each in [*waiting, joined]:
        each.cancel()


@on_stack()
async def test_a_caller_that_goes_frees_the_worker(stack: ServiceStack) -> None:
    stack.pool.does = never
    caller = asyncio.create_task(stack.plan_provider.plan(JOB))
    await stack.asked()
    caller.cancel()
    await stack.settled()
    stack.pool.does = None

    assert (stack.pool.stopped, stack.pool.killed, stack.counted["abandoned"]) == (1, 0, 1)
    assert not (await stack.plan_provider.plan(JOB)).from_store


@on_stack()
async def test_a_worker_that_cannot_be_stopped_is_replaced(stack: ServiceStack) -> None:
    async def fails() -> None:
        raise RuntimeError("canceled before it executes")

    stack.pool.does, stack.pool.stops = never, fails
    caller = asyncio.create_task(stack.plan_provider.plan(JOB))
    await stack.asked()
    caller.cancel()
    await stack.settled()
    stack.pool.does = None

    assert (await stack.plan_provider.plan(JOB)).stored
    assert (stack.pool.killed, stack.pool.hired) == (1, 2)


@pytest.mark.parametrize("stops", ["at once", "late", "fails"])
@on_stack(trace_workers=2, trace_queue=20)
async def test_callers_that_leave_at_every_stage_leave_every_worker(stack: ServiceStack, stops: str) -> None:
    """Some while their work waits, some in the middle of it, some while a worker ends what another one has left."""

    async def work(_: str) -> None:
        await asyncio.sleep(0.02)

    async def stop() -> None:
        await asyncio.sleep(0.0 if stops == "at once" else 0.03)
        if stops == "fails":
            raise RuntimeError("canceled before it executes")

    stack.pool.does, stack.pool.stops = work, stop
    lengths = iter(range(64, 64 * 100, 64))
    for _ in range(3):
        callers = [
            asyncio.create_task(stack.plan_provider.plan(dataclasses.replace(JOB, train=Train(sequence_length=n))))
            for n, _ in zip(lengths, range(6), strict=False)
        ]
        for caller in callers:
            await asyncio.sleep(0.007)
            caller.cancel()
        await asyncio.wait(callers)
    await stack.settled()
    stack.pool.does = None
    while stack.tracers.levels()["workers"] < 2:  # the last ones may still start
        await asyncio.sleep(0.005)

    assert stack.tracers.levels()["busy"] == 0
    assert (await stack.plan_provider.plan(JOB)).stored


@on_stack()
async def test_a_caller_that_goes_takes_nothing_from_another(stack: ServiceStack) -> None:
    go = asyncio.Event()
    stack.pool.does = lambda _: when(go)
    gone, stays = (asyncio.create_task(stack.plan_provider.plan(named(name))) for name in ("gone", "stays"))
    await stack.waited_for_by(2)
    gone.cancel()
    await asyncio.sleep(0.05)
    go.set()

    assert metadata(await stays) == "stays"
    assert (stack.pool.killed, stack.pool.stopped, stack.pool.asked.count("plan")) == (0, 0, 1)


@on_stack()
async def test_a_worker_that_dies_is_replaced_and_its_work_done_again(stack: ServiceStack) -> None:
    async def dies_once(method: str) -> None:
        if method == "plan" and stack.pool.asked.count("plan") == 1:
            raise WorkerDiedError("killed")

    stack.pool.does = dies_once
    found = await stack.plan_provider.plan(JOB)

    assert (found.stored, stack.pool.asked.count("plan"), stack.counted[TRACE_RETRIES]) == (True, 2, 1)


@on_stack(trace_workers=2)
async def test_work_is_not_given_up_where_its_second_worker_was_dead_before(stack: ServiceStack) -> None:
    """All workers are killed at once, and the death of an idle one is noticed late, as on a busy machine."""
    killed: list[FakeWorker] = []

    async def dies_with_all(_: str) -> None:
        if not killed:
            killed.extend(stack.pool.workers)
            for each in killed:
                each.dead = True
            raise WorkerDiedError("killed")

    while stack.tracers.levels()["planning"] < 2:
        await asyncio.sleep(0.005)
    stack.pool.does = dies_with_all
    found = await stack.plan_provider.plan(JOB)

    assert (found.stored, len(killed), stack.pool.hired) == (True, 2, 4)


@on_stack()
async def test_work_waits_where_the_next_worker_is_killed_while_it_starts(stack: ServiceStack) -> None:
    """A worker that starts is killed with those that work."""

    async def dies(_: str) -> None:
        stack.pool.broken = WorkerDiedError("killed")
        raise stack.pool.broken

    stack.pool.does = dies
    planned = asyncio.create_task(stack.plan_provider.plan(JOB))
    while stack.pool.hired < 2:
        await asyncio.sleep(0.005)
    stack.pool.broken = stack.pool.does = None

    assert (await planned).stored
    assert stack.pool.hired == 3


@on_stack(trace_seconds=60.0)
async def test_jobs_that_wait_longer_than_any_trace_takes_make_it_not_ready(stack: ServiceStack) -> None:
    stack.pool.does = never
    waiting = [asyncio.create_task(stack.plan_provider.plan(job)) for job in (JOB, OTHER)]
    await stack.asked()
    await stack.waited_for_by(2)
    assert stack.tracers.unready() is None

    stack.grow_older(1000)
    unready = stack.tracers.unready()
    for each in waiting:
        each.cancel()

    assert unready is not None
    assert (unready.error.problem, unready.error.remedy) == (
        "no tracing process is free: 1 jobs wait, the first for 1000 s",
        "raise PLANNER_TRACE_WORKERS, or lower PLANNER_TRACE_SECONDS",
    )
    await stack.settled()
    assert stack.tracers.unready() is None


@on_stack()
async def test_work_that_kills_two_workers_is_given_up_and_the_next_is_done(stack: ServiceStack) -> None:
    async def dies(method: str) -> None:
        if method == "plan" and stack.pool.asked.count("plan") <= 2:
            raise WorkerDiedError("killed")

    stack.pool.does = dies
    with pytest.raises(WorkerLostError):
        await stack.plan_provider.plan(JOB)

    assert (await stack.plan_provider.plan(OTHER)).stored
    assert stack.pool.hired == 3


@on_stack()
async def test_a_worker_that_dies_idle_is_replaced(stack: ServiceStack) -> None:
    await stack.plan_provider.plan(JOB)
    await stack.settled()
    stack.pool.workers[0].gone.set()
    while stack.pool.hired < 2:
        await asyncio.sleep(0.005)

    assert (stack.pool.hired, stack.tracers.levels()["workers"]) == (2, 1)


@on_stack(trace_seconds=0.1)
async def test_a_trace_that_takes_too_long_is_ended(stack: ServiceStack) -> None:
    stack.pool.does = never
    with pytest.raises(TraceLimitError, match=r"not traced within 0\.1 s"):
        await stack.plan_provider.plan(JOB)
    stack.pool.does = None

    assert (await stack.plan_provider.plan(OTHER)).stored
    assert stack.counted["time"] == 1


@on_stack()
async def test_a_trace_that_takes_too_much_memory_is_ended(stack: ServiceStack) -> None:
    async def grows(_: str) -> WorkerResult:
        return WorkerResult(exceeded=LimitExceededError(Limit.MEMORY, Limits(memory_bytes=8 * GIB), 9 * GIB))

    stack.pool.does = grows
    with pytest.raises(TraceLimitError, match=r"takes 9\.00 GiB of this machine's memory"):
        await stack.plan_provider.plan(JOB)

    assert stack.counted["memory"] == 1


@on_stack()
async def test_a_plan_whose_advice_takes_too_long_goes_without(stack: ServiceStack) -> None:
    async def ends_before_advice(_: str) -> WorkerResult:
        (worker,) = stack.pool.workers
        order = build_order(JOB, Calibration.none(), b"key")
        exceeded = LimitExceededError(Limit.SECONDS, Limits(seconds=0.2), 0.2)
        return WorkerResult(plan=worker.plan(order).plan, exceeded=exceeded)

    stack.pool.does, stack.pool.size, stack.pool.advises = ends_before_advice, 200 * GIB, False
    found = json.loads((await stack.plan_provider.plan(JOB)).text)
    await stack.settled()

    assert (found["verdict"], found["advice"], stack.pool.killed) == ("exceeds", [], 0)
    assert stack.counted["time"] == 1


@on_stack()
async def test_the_end_tells_those_whose_plan_takes_too_long_to_come_again(stack: ServiceStack) -> None:
    stack.pool.does = never
    waiting = asyncio.create_task(stack.plan_provider.plan(JOB))
    while not stack.pool.asked:
        await asyncio.sleep(0.005)
    await stack.tracers.finish(0.05)

    with pytest.raises(WorkerLostError, match="the service is shutting down"):
        await waiting
    with pytest.raises(WorkerLostError, match="the service is shutting down"):
        await stack.plan_provider.plan(OTHER)
    assert stack.tracers.entry_count == 0
    assert stack.pool.killed == stack.pool.hired


@on_stack()
async def test_where_no_worker_starts_the_caller_hears_why(stack: ServiceStack) -> None:
    stack.pool.broken = TraceError("there is no C++ compiler")
    with pytest.raises(WorkerLostError, match=r"no tracing process can be started: there is no C\+\+ compiler"):
        await stack.plan_provider.plan(JOB)

    assert stack.pool.hired == 2
