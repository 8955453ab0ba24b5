"""The whole interface over a history in a file, with a token, without Ray; nobody plans here."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from filled_history import make_plan
from starlette.testclient import TestClient
from stored import new_history

from planner.report.statement import Plan
from planner.service.history.counters import Counters
from planner.service.history.store import History
from planner.service.http.dependencies import Dependencies
from planner.service.http.interface import interface
from planner.settings import Settings

TOKENS = ("a-token-of-this-test", "another-token-of-this-test")


@pytest.fixture
def history(tmp_path: Path) -> Iterator[History]:
    with History.open(new_history(tmp_path)) as opened:
        yield opened


@pytest.fixture
def stored(history: History) -> Plan:
    """The one plan that is there; its team is nlp."""
    plan = replace(make_plan(), plan_id="pl-" + "a" * 26)
    history.plans.put(plan)
    return plan


@pytest.fixture
def tokens() -> tuple[str, ...]:
    """Those that may write."""
    return TOKENS


@pytest.fixture
def client(history: History) -> Iterator[TestClient]:
    hashes = ",".join(hashlib.sha256(token.encode()).hexdigest() for token in TOKENS)
    with Counters(history.totals) as counters:
        plan_provider: object = None
        dependencies = Dependencies(
            settings=Settings(token_sha256=hashes), history=history, plan_provider=plan_provider, counters=counters
        )  # type: ignore[arg-type]
        yield TestClient(interface(dependencies), raise_server_exceptions=False)
