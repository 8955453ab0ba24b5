"""Histories in every database that is supported, a clock that tests set, and plans to fill them with."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from filled_history import make_plan, make_rank_class
from postgresql_server import postgresql as postgresql
from stopped_clock import Clock
from stored import new_history

from planner.report.statement import (
    Advice,
    Plan,
    Verdict,
)
from planner.service.history import schema
from planner.service.history.store import History
from planner.units import GIB

MakePlan = Callable[..., Plan]


@pytest.fixture(params=["sqlite file", "postgresql"])
def shared_url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """The URL of an empty database that several processes can open."""
    if request.param == "postgresql":
        return str(request.getfixturevalue("postgresql").new_database())
    return f"sqlite:///{tmp_path}/history.db"


@pytest.fixture(params=["sqlite file", "sqlite in memory", "postgresql"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """The URL of a database with the tables of a history."""
    if request.param == "postgresql":
        return _emptied(request.getfixturevalue("postgresql_history"))
    return "sqlite://" if request.param == "sqlite in memory" else new_history(tmp_path)


@pytest.fixture(scope="session")
def postgresql_history(postgresql: Any) -> str:
    """The URL of a PostgreSQL database that one test after the other has: a new one for each is gigabytes in all."""
    url = str(postgresql.new_database())
    with History.open(url):
        return url


def _emptied(url: str) -> str:
    with History.open(url) as history, history._database.writing() as connection:
        connection.exec_driver_sql(f"TRUNCATE {', '.join(set(schema.METADATA.tables) - {schema.KEYS.name})}")
    return url


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def history(url: str, clock: Clock) -> Iterator[History]:
    with History.open(url, clock) as opened:
        yield opened


def _plan(
    number: int = 1,
    *,
    verdict: Verdict = Verdict.FITS,
    name: str = "llama-8b-sft",
    queue: str = "h100",
    device_bytes: tuple[int, int] = (40 * GIB, 30 * GIB),
    capacity_bytes: int = 80 * GIB,
    **more: str,
) -> Plan:
    """A plan of two rank classes: ranks 0 and 1-7."""
    made = make_plan(number, verdict=verdict, name=name, queue=queue, **more)
    gpu = {**made.job["cluster"]["gpu"], "total_bytes": capacity_bytes}
    classes = tuple(
        make_rank_class(ranks, device, verdict, capacity_bytes)
        for ranks, device in zip(("0", "1-7"), device_bytes, strict=True)
    )
    job = {**made.job, "cluster": {"nodes": 1, "gpus_per_node": 8, "gpu": gpu}}
    return replace(made, job=job, rank_classes=classes, host=None)


@pytest.fixture
def plan() -> MakePlan:
    return _plan


@pytest.fixture
def advised() -> Callable[[Plan], Plan]:
    """The same plan with a piece of advice."""
    advice = Advice(change={"train.micro_batch_size": 1}, device_bytes=36 * GIB, verdict=Verdict.FITS)
    return lambda plan: replace(plan, advice=(advice,))
