"""A history and its clock, and the programs that read metrics."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from fastapi.testclient import TestClient
from filled_history import fill_history, make_plan
from stopped_clock import Clock
from stored import new_history

from planner.report.statement import Plan
from planner.service.history.counters import Counters
from planner.service.history.store import History
from planner.service.http.dependencies import Dependencies
from planner.service.http.interface import interface
from planner.settings import Settings


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def url(tmp_path: Path) -> str:
    return new_history(tmp_path)


@pytest.fixture
def history(url: str, clock: Clock) -> Iterator[History]:
    with History.open(url, clock) as opened:
        yield opened


@pytest.fixture
def client(history: History) -> TestClient:
    """The whole interface; nobody plans here."""
    plan_provider: Any = None
    return TestClient(interface(Dependencies(settings=Settings(), history=history, plan_provider=plan_provider)))


@pytest.fixture
def plan() -> Callable[..., Plan]:
    return make_plan


@pytest.fixture(scope="session")
def fill() -> Callable[[History], Counters]:
    return fill_history
