"""Plans are made once, stored, and answered with the words of whoever asks."""

from __future__ import annotations

import asyncio
import dataclasses
import json
from typing import Any

import pytest
from plan_makers import JOB, STAGES, UNEVEN, UNEVEN_STAGES, House, Opening, metadata, named, trace_of
from sqlalchemy import text as sql

from planner.calibration import document
from planner.calibration.interval import Calibration
from planner.errors import PlannerError, TraceError
from planner.history.faults import HistoryUnavailableError
from planner.service.calibration_in_use import LOOK_SECONDS
from planner.service.outcomes import Refused
from planner.spec.job import Cluster
from planner.units import GIB


def test_a_plan_is_made_once_and_then_found(opened: Opening) -> None:
    async def story(house: House) -> None:
        first = await house.desk.plan(JOB)
        await house.settled()
        again = await house.desk.plan(JOB)

        assert (first.from_store, again.from_store, first.stored) == (False, True, True)
        assert again.text == first.text == house.history.plans.text(first.plan_id)
        assert house.floor.asked == ["plan", "written"]
        assert house.history.traces.get(first.trace_id) == {0: trace_of(0)}

    opened(story)


def test_metadata_are_those_of_whoever_asks_and_no_part_of_the_names(opened: Opening) -> None:
    async def story(house: House) -> None:
        first = await house.desk.plan(named("mine"))
        other = await house.desk.plan(named('yours "metadata":{} ü'))

        assert (metadata(first), metadata(other)) == ("mine", 'yours "metadata":{} ü')
        assert (first.plan_id, first.trace_id) == (other.plan_id, other.trace_id)
        assert other.from_store

    opened(story)


def test_equal_jobs_in_flight_are_traced_once(opened: Opening) -> None:
    async def story(house: House) -> None:
        found = await asyncio.gather(*(house.desk.plan(named(str(n))) for n in range(20)))

        assert house.floor.asked.count("plan") == 1
        assert [metadata(each) for each in found] == [str(n) for n in range(20)]
        assert house.tracers.state()["deduplicated_total"] == 19

    opened(story)


def test_a_new_calibration_makes_a_new_plan_from_the_stored_trace(opened: Opening) -> None:
    async def story(house: House) -> None:
        before = await house.desk.plan(JOB)
        await house.settled()
        learnt = Calibration(id="by hand", reserved_error=0.01)
        house.history.calibrations.put(learnt.id, document.to_json(learnt))
        house.clock[0] += LOOK_SECONDS
        after = await house.desk.plan(JOB)

        assert house.floor.asked == ["plan", "written", "judge"]
        assert (after.trace_id, after.plan_id != before.plan_id) == (before.trace_id, True)
        assert json.loads(after.text)["provenance"]["calibration"] == "by hand"

    opened(story)


def test_two_calibrations_of_a_job_in_flight_trace_it_once(opened: Opening) -> None:
    async def story(house: House) -> None:
        first = asyncio.create_task(house.desk.plan(JOB))
        await asyncio.sleep(0.05)
        learnt = Calibration(id="by hand", reserved_error=0.01)
        house.history.calibrations.put(learnt.id, document.to_json(learnt))
        house.clock[0] += LOOK_SECONDS
        second = await house.desk.plan(JOB)

        assert second.plan_id != (await first).plan_id
        assert house.floor.asked == ["plan", "written", "judge"]

    opened(story)


def test_a_calibration_that_cannot_be_read_leaves_the_last_one_in_use(opened: Opening) -> None:
    async def story(house: House) -> None:
        house.history.calibrations.put("broken", {"schema": "planner.calibration/1"})
        found = await house.desk.plan(JOB)

        assert json.loads(found.text)["provenance"]["calibration"] == "none"

    opened(story)


def test_a_plan_that_exceeds_comes_with_advice(opened: Opening) -> None:
    async def story(house: House) -> None:
        house.floor.size = 200 * GIB
        found = await house.desk.plan(JOB)
        await house.settled()

        assert json.loads(found.text)["advice"] != []
        assert house.history.plans.text(found.plan_id) == found.text
        assert house.floor.asked == ["plan", "advise", "written"]

    opened(story)


def test_rank_classes_are_traced_at_once_and_judged_together(opened: Opening) -> None:
    async def story(house: House) -> None:
        at_once = 0

        async def both(method: str) -> None:
            nonlocal at_once
            if method == "trace":
                at_once = max(at_once, house.tracers.state()["busy"])
                await asyncio.sleep(0.05)

        house.floor.does = both
        found = await house.desk.plan(STAGES)
        await house.settled()

        assert at_once == 2
        assert house.floor.asked == ["trace", "trace", "judge"]
        assert [each["representative"] for each in json.loads(found.text)["rank_classes"]] == [0, 1]
        assert house.history.traces.get(found.trace_id) == {0: trace_of(0), 1: trace_of(1)}

    opened(story, trace_workers=2)


def test_ranks_whose_shards_are_of_another_size_are_traced_besides(opened: Opening) -> None:
    async def story(house: House) -> None:
        found = await house.desk.plan(UNEVEN_STAGES)
        await house.settled()

        assert house.floor.asked == ["trace"] * 4 + ["judge"]
        assert [each["ranks"] for each in json.loads(found.text)["rank_classes"]] == ["0-2", "3", "4-6", "7"]
        assert house.history.traces.get(found.trace_id) == {rank: trace_of(rank, dims=(10,)) for rank in (0, 3, 4, 7)}

    opened(story, trace_workers=2)


def test_stored_traces_of_uneven_shards_make_a_plan_under_another_calibration(opened: Opening) -> None:
    async def story(house: House) -> None:
        first = await house.desk.plan(UNEVEN)
        await house.settled()
        learnt = Calibration(id="by hand", reserved_error=0.01)
        house.history.calibrations.put(learnt.id, document.to_json(learnt))
        house.clock[0] += LOOK_SECONDS
        second = await house.desk.plan(UNEVEN)

        assert first.plan_id != second.plan_id
        assert house.floor.asked == ["plan", "written", "judge"]
        assert [each["ranks"] for each in json.loads(second.text)["rank_classes"]] == ["0-2", "3"]

    opened(story)


def test_a_rank_that_cannot_be_traced_refuses_the_job(opened: Opening) -> None:
    async def story(house: House) -> None:
        async def refuses(method: str) -> Any:
            return Refused(TraceError("no kernel")) if method == "trace" else None

        house.floor.does = refuses
        with pytest.raises(TraceError, match="no kernel"):
            await house.desk.plan(STAGES)
        await house.settled()

        assert (house.floor.asked, house.floor.killed) == (["trace"], 0)

    opened(story)


def test_a_plan_is_answered_although_it_cannot_be_stored(opened: Opening, monkeypatch: pytest.MonkeyPatch) -> None:
    async def story(house: House) -> None:
        def fails(*_: Any) -> None:
            raise HistoryUnavailableError("its disk is full")

        monkeypatch.setattr(house.history.plans, "put", fails)
        found = await house.desk.plan(JOB)
        monkeypatch.undo()
        await house.settled()
        again = await house.desk.plan(JOB)

        assert (found.stored, again.stored) == (False, True)
        assert house.history.plans.text(found.plan_id) == again.text

    opened(story)


@pytest.mark.parametrize(
    "damage", ["UPDATE plan_documents SET document = x'00'", "UPDATE plan_documents SET document = x'789c030000000001'"]
)
def test_a_stored_plan_that_is_damaged_is_made_anew(opened: Opening, damage: str) -> None:
    async def breaks(house: House) -> None:
        await house.desk.plan(JOB)

    async def mends(house: House) -> None:
        with house.history._database.writing() as connection:
            connection.execute(sql(damage))
        found = await house.desk.plan(JOB)

        assert not found.from_store
        assert house.history.plans.text(found.plan_id) == found.text

    opened(breaks)
    opened(mends)


def test_a_stored_trace_that_is_damaged_is_traced_anew(opened: Opening) -> None:
    async def story(house: House) -> None:
        first = await house.desk.plan(JOB)
        await house.settled()
        house.history.traces.put_texts(first.trace_id, {0: "{"})
        learnt = Calibration(id="by hand", reserved_error=0.01)
        house.history.calibrations.put(learnt.id, document.to_json(learnt))
        house.clock[0] += LOOK_SECONDS
        await house.desk.plan(JOB)
        await house.settled()

        assert house.floor.asked == ["plan", "written", "judge", "plan", "written"]
        assert house.history.traces.get(first.trace_id) == {0: trace_of(0)}

    opened(story)


def test_what_cannot_be_planned_is_said_before_any_work(opened: Opening) -> None:
    async def story(house: House) -> None:
        with pytest.raises(PlannerError, match="the job names no GPU"):
            await house.desk.plan(dataclasses.replace(JOB, cluster=Cluster()))

        assert house.floor.asked == []

    opened(story)
