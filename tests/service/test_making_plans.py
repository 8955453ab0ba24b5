"""Plans are made once, stored, and answered with the words of whoever asks."""

from __future__ import annotations

import asyncio
import dataclasses
import json
from typing import Any

import pytest
from plan_makers import (
    JOB,
    STAGES,
    UNEVEN_STAGES,
    ServiceStack,
    StackRunner,
    metadata,
    named,
    on_stack,
    trace_of,
    when,
)
from sqlalchemy import text as sql
from stored import get_traces

from planner.errors import PlannerError, TraceError
from planner.job.bound.lower_bound import lower_bound
from planner.job.schema import Allocator, Cluster, Job
from planner.service.history.errors import HistoryUnavailableError
from planner.service.metrics import JOBS_JOINED
from planner.service.orders import PlanRefused
from planner.truth.calibration import interval
from planner.truth.calibration.interval import Calibration, Correction, Estimate
from planner.units import GIB


@on_stack()
async def test_metadata_are_those_of_whoever_asks_and_no_part_of_the_names(stack: ServiceStack) -> None:
    first = await stack.plan_provider.plan(named("mine"))
    other = await stack.plan_provider.plan(named('yours "metadata":{} ü'))

    assert (metadata(first), metadata(other)) == ("mine", 'yours "metadata":{} ü')
    assert (first.plan_id, first.trace_id) == (other.plan_id, other.trace_id)
    assert other.from_store


@on_stack()
async def test_a_bound_is_by_the_calibration_in_use(stack: ServiceStack) -> None:
    table = lower_bound(JOB)
    few = Estimate(residual=-0.9, median=-0.9, spread=0.01, measurements=1000)
    learnt = Calibration(
        id="by hand", reserved_error=0.01,
        corrections=(Correction(gpu="H100-SXM-80GB", torch="2.13", reserved=few, context=few, nccl=few),),
    )  # fmt: skip
    learnt = dataclasses.replace(learnt, id=interval.digest(learnt))
    assert stack.plan_provider.bound(JOB) == table
    stack.calibrate(learnt)

    assert stack.plan_provider.bound(JOB).outside_bytes < table.outside_bytes


@on_stack()
async def test_equal_jobs_in_flight_are_traced_once(stack: ServiceStack) -> None:
    go = asyncio.Event()
    stack.pool.does = lambda _: when(go)
    asked = asyncio.gather(*(stack.plan_provider.plan(named(str(n))) for n in range(20)))
    await stack.waited_for_by(20)
    go.set()
    found = await asked

    assert stack.pool.asked.count("plan") == 1
    assert [metadata(each) for each in found] == [str(n) for n in range(20)]
    assert stack.counted[JOBS_JOINED] == 19


@on_stack()
async def test_a_new_calibration_makes_a_new_plan_from_the_stored_trace(stack: ServiceStack) -> None:
    before = await stack.plan_provider.plan(JOB)
    await stack.settled()
    stack.calibrate(Calibration(id="by hand", reserved_error=0.01))
    after = await stack.plan_provider.plan(JOB)

    assert stack.pool.asked == ["plan", "judge"]
    assert (after.trace_id, after.plan_id != before.plan_id) == (before.trace_id, True)
    assert json.loads(after.text)["provenance"]["calibration"] == "by hand"


@pytest.mark.parametrize(
    "job",
    [
        dataclasses.replace(JOB, allocator=Allocator(conf="expandable_segments:True")),
        dataclasses.replace(JOB, cluster=dataclasses.replace(JOB.cluster, host_memory=GIB)),
    ],
    ids=["allocator", "host's memory"],
)
@on_stack()
async def test_a_job_that_differs_in_what_no_trace_depends_on_is_planned_from_the_stored_trace(
    stack: ServiceStack, job: Job
) -> None:
    first = await stack.plan_provider.plan(JOB)
    await stack.settled()
    other = await stack.plan_provider.plan(job)

    assert stack.pool.asked == ["plan", "judge"]
    assert other.plan_id != first.plan_id
    assert other.trace_id == first.trace_id


@on_stack()
async def test_a_calibration_that_cannot_be_read_leaves_the_last_one_in_use(stack: ServiceStack) -> None:
    stack.history.calibrations.put("broken", {"schema": "planner.calibration/1"})
    found = await stack.plan_provider.plan(JOB)

    assert json.loads(found.text)["provenance"]["calibration"] == "none"


@on_stack()
async def test_a_plan_that_exceeds_comes_with_advice(stack: ServiceStack) -> None:
    stack.pool.size = 200 * GIB
    found = await stack.plan_provider.plan(JOB)
    await stack.settled()

    assert json.loads(found.text)["advice"] != []
    assert stack.history.plans.text(found.plan_id) == found.text
    assert stack.pool.asked == ["plan"]


@on_stack(trace_workers=2)
async def test_rank_classes_are_traced_at_once_and_judged_together(stack: ServiceStack) -> None:
    async def neither_without_the_other(method: str) -> None:
        while method == "trace" and stack.pool.asked.count("trace") < 2:
            await asyncio.sleep(0.005)

    stack.pool.does = neither_without_the_other
    found = await stack.plan_provider.plan(STAGES)
    await stack.settled()

    assert stack.pool.asked == ["trace", "trace", "judge"]
    assert [each["representative"] for each in json.loads(found.text)["rank_classes"]] == [0, 1]
    assert get_traces(stack.history, found.trace_id) == {0: trace_of(0), 1: trace_of(1)}


@on_stack(trace_workers=2)
async def test_ranks_whose_shards_are_of_another_size_are_traced_besides(stack: ServiceStack) -> None:
    found = await stack.plan_provider.plan(UNEVEN_STAGES)
    await stack.settled()

    assert stack.pool.asked == ["trace"] * 4 + ["judge"]
    assert [each["ranks"] for each in json.loads(found.text)["rank_classes"]] == ["0-2", "3", "4-6", "7"]
    assert get_traces(stack.history, found.trace_id) == {rank: trace_of(rank, dims=(10,)) for rank in (0, 3, 4, 7)}


@on_stack()
async def test_a_rank_that_cannot_be_traced_refuses_the_job(stack: ServiceStack) -> None:
    async def refuses(method: str) -> Any:
        return PlanRefused(TraceError("no kernel")) if method == "trace" else None

    stack.pool.does = refuses
    with pytest.raises(TraceError, match="no kernel"):
        await stack.plan_provider.plan(STAGES)
    await stack.settled()

    assert (stack.pool.asked, stack.pool.killed) == (["trace"], 0)


@on_stack()
async def test_a_plan_is_answered_although_it_cannot_be_stored(
    stack: ServiceStack, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*_: Any) -> None:
        raise HistoryUnavailableError("its disk is full")

    monkeypatch.setattr(stack.history.plans, "put", fails)
    found = await stack.plan_provider.plan(JOB)
    monkeypatch.undo()
    await stack.settled()
    again = await stack.plan_provider.plan(JOB)

    assert (found.stored, again.stored) == (False, True)
    assert stack.history.plans.text(found.plan_id) == again.text


@pytest.mark.parametrize(
    "damage", ["UPDATE plan_documents SET document = x'00'", "UPDATE plan_documents SET document = x'789c030000000001'"]
)
def test_a_stored_plan_that_is_damaged_is_made_anew(run_stack: StackRunner, damage: str) -> None:
    async def breaks(stack: ServiceStack) -> None:
        await stack.plan_provider.plan(JOB)

    async def mends(stack: ServiceStack) -> None:
        with stack.history._database.writing() as connection:
            connection.execute(sql(damage))
        found = await stack.plan_provider.plan(JOB)

        assert not found.from_store
        assert stack.history.plans.text(found.plan_id) == found.text

    run_stack(breaks)
    run_stack(mends)


@on_stack()
async def test_a_stored_trace_that_is_damaged_is_traced_anew(stack: ServiceStack) -> None:
    first = await stack.plan_provider.plan(JOB)
    await stack.settled()
    stack.history.traces.put(first.trace_id, {0: "{"})
    stack.calibrate(Calibration(id="by hand", reserved_error=0.01))
    await stack.plan_provider.plan(JOB)
    await stack.settled()

    assert stack.pool.asked == ["plan", "judge", "plan"]
    assert get_traces(stack.history, first.trace_id) == {0: trace_of(0)}


@on_stack()
async def test_what_cannot_be_planned_is_said_before_any_work(stack: ServiceStack) -> None:
    with pytest.raises(PlannerError, match="the job names no GPU"):
        await stack.plan_provider.plan(dataclasses.replace(JOB, cluster=Cluster()))

    assert stack.pool.asked == []
