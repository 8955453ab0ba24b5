"""The interface in this process over a history in a file; whatever is a job waits for a plan that nobody makes."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
from filled_history import make_plan
from hostile_documents import PLAN_ID
from starlette.testclient import TestClient

from planner.service.history.store import History
from planner.service.http.dependencies import Dependencies
from planner.service.http.interface import interface
from planner.service.orders import Order
from planner.service.plan_provider import CalibrationInUse, PlanProvider
from planner.settings import Settings


class NobodyTraces:
    """Every plan is made later."""

    async def make(self, order: Order, seconds: float | None, keep: bool) -> None:  # noqa: ARG002
        return None


class NobodyMeasures:
    """Every validation waits."""

    async def start(self, asked: Any) -> dict[str, Any]:
        return {"validation_id": "va-" + "a" * 26, "plan_id": asked.plan_id, "state": "pending"}


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TestClient]:
    """With one plan in the history, of one rank."""
    database = f"sqlite:///{tmp_path_factory.mktemp('history')}/history.sqlite"
    with History.open(database) as history:
        history.plans.put(replace(make_plan(), plan_id=PLAN_ID))
        settings_ = Settings(database=database)
        plan_provider = PlanProvider(settings_, history, NobodyTraces(), CalibrationInUse(history))
        dependencies = Dependencies(
            settings=settings_, history=history, plan_provider=plan_provider, validations=NobodyMeasures()
        )
        with TestClient(interface(dependencies), raise_server_exceptions=False) as found:
            yield found
