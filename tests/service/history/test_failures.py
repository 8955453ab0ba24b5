"""Jobs that cannot be traced are remembered with their cause and the limits that they had."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from typing import Any

from planner.service.history.plan_table import Failure
from planner.service.history.store import History, Retention

FAILURE = Failure(
    plan_id="a" * 64,
    kind="TraceLimitError",
    problem="the job was not traced within 120 s",
    allowed="at most 120 s for a trace",
    remedy="fewer layers",
    place="job",
    trace_seconds=120.0,
    trace_memory_bytes=8 * 2**30,
)


def test_a_failure_comes_back_under_its_trace(history: History) -> None:
    history.failures.put(FAILURE)

    assert history.failures.get("a" * 64) == FAILURE
    assert history.failures.get("b" * 64) is None


def test_the_last_failure_of_a_trace_counts(history: History) -> None:
    history.failures.put(FAILURE)
    history.failures.put(replace(FAILURE, trace_seconds=600.0))

    assert history.failures.get("a" * 64) == replace(FAILURE, trace_seconds=600.0)


def test_failures_are_forgotten_by_age_since_their_last_use_and_by_number(history: History, clock: Any) -> None:
    for name in "abc":
        history.failures.put(replace(FAILURE, plan_id=name * 64))
        clock.passes(days=20)
    history.failures.get("a" * 64)
    clock.passes(days=20)

    assert history.forget(Retention(age=timedelta(days=50))) == {"failures": 1}
    assert history.failures.get("b" * 64) is None
    assert history.forget(Retention(failures=1)) == {"failures": 1}
    assert history.failures.get("a" * 64) == FAILURE
