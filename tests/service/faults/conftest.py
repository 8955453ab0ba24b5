"""A service as a supervisor runs it: processes that a test may kill, over stores that a test may fill or stop."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from planner_serve import Job, Service, serving, session, until
from postgresql_server import postgresql as postgresql

from planner.service.http.openapi import EXAMPLE_JOB


def job(layers: int = 2, **train: Any) -> Job:
    """The small example with so many layers, trained in another way."""
    found = copy.deepcopy(EXAMPLE_JOB)
    found["model"]["decoder"]["layers"] = layers
    found["train"].update(train)
    return found


_BATCHES = iter(range(3, 10**6))


def _new_job(layers: int = 2, **train: Any) -> Job:
    """One that nobody has asked for."""
    return job(layers, micro_batch_size=next(_BATCHES), **train)


@pytest.fixture(scope="session")
def new_job() -> Callable[..., Job]:
    return _new_job


@pytest.fixture(scope="module")
def planner_serve() -> Callable[..., Any]:
    return serving


@pytest.fixture(scope="module")
def session_of() -> Callable[..., Any]:
    return session


@pytest.fixture(scope="session")
def service(postgresql: Any) -> Iterator[Service]:
    """One for all modules whose tests leave it ready; the last of them ends it. A start takes half a minute."""
    with serving(postgresql.new_database(), trace_workers=2, token="a token of a tenant") as found:
        yield found


@pytest.fixture(scope="session")
def eventually() -> Callable[..., Any]:
    return until
