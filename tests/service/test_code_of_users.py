"""Code that a job brings is run only where the operator lets it, and each time."""

from __future__ import annotations

import asyncio
import dataclasses
from pathlib import Path

import pytest
from plan_makers import CODE, House, Opening

from planner.service.desk import Answered, Pending
from planner.service.faults import (
    FactoryNotAllowedError,
)


def test_code_is_refused_unless_the_operator_allows_it(opened: Opening) -> None:
    async def story(house: House) -> None:
        with pytest.raises(FactoryNotAllowedError, match="this service runs no code of its users"):
            await house.desk.plan(CODE)

        assert house.floor.asked == []

    opened(story)


def test_code_lies_where_the_operator_says(opened: Opening, tmp_path: Path) -> None:
    async def story(house: House) -> None:
        for path, allowed in ((tmp_path / "a" / "b", True), (tmp_path / "a" / ".." / "b", False), (Path("/"), False)):
            job = dataclasses.replace(CODE, model=dataclasses.replace(CODE.model, factory_path=str(path)))
            if allowed:
                assert (await house.desk.plan(job)).stored
                continue
            with pytest.raises(FactoryNotAllowedError, match="is no folder in which this service looks for code"):
                await house.desk.plan(job)

    opened(story, allow_factories=True, factory_folder=str(tmp_path / "a"))


def test_code_is_run_each_time(opened: Opening) -> None:
    async def story(house: House) -> None:
        first, second = await house.desk.plan(CODE), await house.desk.plan(CODE)

        assert (first.from_store, second.from_store, house.floor.asked) == (False, False, ["plan", "plan"])
        assert house.history.plans.text(first.plan_id) == second.text
        assert house.history.traces.get(first.trace_id) == {}

    opened(story, allow_factories=True)


def test_what_code_made_for_a_check_that_went_is_told_once(opened: Opening) -> None:
    async def story(house: House) -> None:
        async def slow(method: str) -> None:
            await asyncio.sleep(0.1 if method == "plan" else 0)

        house.floor.does = slow
        assert isinstance(await house.desk.check(CODE, seconds=0.02), Pending)
        await house.settled()
        assert isinstance(await house.desk.check(CODE, seconds=0.02), Answered)
        assert house.floor.asked == ["plan"]
        assert isinstance(await house.desk.check(CODE, seconds=0.02), Pending)

    opened(story, allow_factories=True)
