"""Callers may go, processes may die or take too much: whoever still waits gets an answer."""

from __future__ import annotations

import asyncio
import dataclasses
import json
from typing import Any

import pytest
from plan_makers import JOB, OTHER, House, Opening, metadata, named, never, trace_of, when

from planner.errors import TraceError
from planner.service.desk import Answered, Pending
from planner.service.faults import (
    BusyError,
    DeadlineError,
    TraceLimitError,
    WorkerLostError,
)
from planner.service.outcomes import Refused
from planner.service.workers import WorkerDiedError
from planner.spec.job import Train
from planner.units import GIB


def test_no_more_wait_than_may_wait(opened: Opening) -> None:
    async def story(house: House) -> None:
        house.floor.does = never
        sizes = [Train(sequence_length=64 * n) for n in range(1, 5)]
        waiting = [asyncio.create_task(house.desk.plan(dataclasses.replace(JOB, train=each))) for each in sizes[:3]]
        await asyncio.sleep(0.1)

        with pytest.raises(BusyError) as caught:
            await house.desk.plan(dataclasses.replace(JOB, train=sizes[3]))
        joined = asyncio.create_task(house.desk.plan(dataclasses.replace(JOB, train=sizes[0])))  # it adds no work
        await asyncio.sleep(0.05)

        assert not joined.done()
        assert caught.value.problem == "3 jobs are being planned or wait for it"
        assert 1 <= caught.value.retry_after_seconds <= 60
        assert house.tracers.state()["refused_busy_total"] == 1
        for each in [*waiting, joined]:
            each.cancel()

    opened(story, trace_queue=2)


def test_a_caller_that_goes_frees_the_worker(opened: Opening) -> None:
    async def story(house: House) -> None:
        house.floor.does = never
        caller = asyncio.create_task(house.desk.plan(JOB))
        await asyncio.sleep(0.1)
        caller.cancel()
        await house.settled()
        house.floor.does = None

        assert (house.floor.killed, house.tracers.state()["killed_abandoned_total"]) == (1, 1)
        assert not (await house.desk.plan(JOB)).from_store

    opened(story)


def test_a_caller_that_goes_takes_nothing_from_another(opened: Opening) -> None:
    async def story(house: House) -> None:
        go = asyncio.Event()
        house.floor.does = lambda _: when(go)
        gone, stays = (asyncio.create_task(house.desk.plan(named(name))) for name in ("gone", "stays"))
        await asyncio.sleep(0.1)
        gone.cancel()
        await asyncio.sleep(0.05)
        go.set()

        assert metadata(await stays) == "stays"
        assert (house.floor.killed, house.floor.asked.count("plan")) == (0, 1)

    opened(story)


def test_a_caller_is_told_when_its_time_is_over_and_the_worker_is_freed(opened: Opening) -> None:
    async def story(house: House) -> None:
        house.floor.does = never
        with pytest.raises(DeadlineError, match=r"not ready within 0\.2 s"):
            await house.desk.plan(JOB, seconds=0.2)
        await house.settled()

        assert house.floor.killed == 1

    opened(story)


def test_a_check_that_is_pending_goes_on_and_is_stored(opened: Opening) -> None:
    async def story(house: House) -> None:
        go = asyncio.Event()
        house.floor.does = lambda _: when(go)
        pending = await house.desk.check(JOB, seconds=0.05)
        still = await house.desk.check(JOB, seconds=0.05)
        go.set()
        await house.settled()
        found = await house.desk.check(JOB, seconds=0.05)

        assert isinstance(pending, Pending)
        assert still == pending
        assert isinstance(found, Answered)
        assert (found.plan_id, found.from_store) == (pending.plan_id, True)
        assert (house.floor.asked, house.floor.killed) == (["plan", "written"], 0)

    opened(story)


def test_a_refusal_that_nobody_waited_for_is_told_to_who_asks_again(opened: Opening) -> None:
    async def story(house: House) -> None:
        async def refuses(method: str) -> Any:
            await asyncio.sleep(0.1 if method == "plan" else 0)
            return Refused(TraceError("no kernel", place="layer")) if method == "plan" else None

        house.floor.does = refuses
        assert isinstance(await house.desk.check(JOB, seconds=0.02), Pending)
        await house.settled()
        with pytest.raises(TraceError, match="layer: no kernel"):
            await house.desk.check(JOB, seconds=0.02)

        assert (house.floor.asked, house.floor.killed) == (["plan"], 0)
        assert isinstance(await house.desk.check(JOB, seconds=0.02), Pending)  # told once, then tried anew

    opened(story)


def test_a_worker_that_dies_is_replaced_and_its_work_done_again(opened: Opening) -> None:
    async def story(house: House) -> None:
        async def dies_once(method: str) -> None:
            if method == "plan" and house.floor.asked.count("plan") == 1:
                raise WorkerDiedError("killed")

        house.floor.does = dies_once
        found = await house.desk.plan(JOB)

        assert (found.stored, house.floor.asked.count("plan"), house.tracers.state()["retried_total"]) == (True, 2, 1)

    opened(story)


def test_work_that_kills_two_workers_is_given_up_and_the_next_is_done(opened: Opening) -> None:
    async def story(house: House) -> None:
        async def dies(method: str) -> None:
            if method == "plan" and house.floor.asked.count("plan") <= 2:
                raise WorkerDiedError("killed")

        house.floor.does = dies
        with pytest.raises(WorkerLostError):
            await house.desk.plan(JOB)

        assert (await house.desk.plan(OTHER)).stored
        assert house.floor.hired == 3

    opened(story)


def test_a_worker_that_dies_idle_is_replaced(opened: Opening) -> None:
    async def story(house: House) -> None:
        await house.desk.plan(JOB)
        await house.settled()
        house.floor.workers[0].grown.set_exception(WorkerDiedError("its node went"))
        await asyncio.sleep(0.05)

        assert (house.floor.hired, house.tracers.state()["workers"]) == (2, 1)

    opened(story)


def test_a_worker_that_keeps_much_memory_is_replaced_before_the_next_job(opened: Opening) -> None:
    async def story(house: House) -> None:
        house.floor.kept_bytes = 2 * GIB
        await house.desk.plan(JOB)
        await house.settled()

        assert (house.floor.hired, house.floor.killed) == (2, 1)

    opened(story)


def test_a_trace_that_takes_too_long_is_ended(opened: Opening) -> None:
    async def story(house: House) -> None:
        house.floor.does = never
        with pytest.raises(TraceLimitError, match=r"not traced within 0\.1 s"):
            await house.desk.plan(JOB)
        house.floor.does = None

        assert (await house.desk.plan(OTHER)).stored
        assert house.tracers.state()["killed_time_total"] == 1

    opened(story, trace_seconds=0.1)


def test_a_trace_that_takes_too_much_memory_is_ended(opened: Opening) -> None:
    async def story(house: House) -> None:
        async def grows(method: str) -> None:
            if method == "plan":
                house.floor.workers[-1].grown.set_result(9 * GIB)
                await never(method)

        house.floor.does = grows
        with pytest.raises(TraceLimitError, match=r"takes 9\.00 GiB of this machine's memory"):
            await house.desk.plan(JOB)

        assert house.tracers.state()["killed_memory_total"] == 1

    opened(story)


def test_a_plan_whose_advice_takes_too_long_goes_without(opened: Opening) -> None:
    async def story(house: House) -> None:
        async def slow(method: str) -> None:
            if method == "advise":
                await never(method)

        house.floor.does, house.floor.size = slow, 200 * GIB
        found = json.loads((await house.desk.plan(JOB)).text)
        await house.settled()

        assert (found["verdict"], found["advice"], house.floor.killed) == ("exceeds", [], 1)

    opened(story, trace_seconds=0.2)


def test_the_end_waits_for_what_is_being_made(opened: Opening) -> None:
    async def story(house: House) -> None:
        async def slow(method: str) -> None:
            await asyncio.sleep(0.1 if method == "plan" else 0)

        house.floor.does = slow
        pending = await house.desk.check(JOB, seconds=0.01)
        await house.tracers.finish()

        assert house.history.plans.text(pending.plan_id) is not None
        assert house.history.traces.get(pending.trace_id) == {0: trace_of(0)}

    opened(story)


def test_where_no_worker_starts_the_caller_hears_why(opened: Opening) -> None:
    async def story(house: House) -> None:
        house.floor.broken = TraceError("there is no C++ compiler")
        with pytest.raises(WorkerLostError, match=r"no tracing process can be started: there is no C\+\+ compiler"):
            await house.desk.plan(JOB)

    opened(story)
