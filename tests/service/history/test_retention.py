"""What is old or too much is forgotten, but not the plan of a job that has not ended."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from stored import get_traces, put_traces

from planner.report.statement import Plan
from planner.service.history.counters import SharedFigures
from planner.service.history.job_table import JobChange, MeasuredRank, Outcome
from planner.service.history.records import Check, Validation, ValidationState
from planner.service.history.store import History, Retention
from planner.tracing.rank_trace import Trace


def remembered(history: History) -> set[str]:
    return {each.plan_id for each in history.plans.newest()}


def test_plans_are_forgotten_by_age_since_their_last_use(
    history: History, plan: Callable[..., Plan], clock: Any
) -> None:
    history.plans.put(plan(1))
    history.plans.put(plan(2))
    clock.passes(days=20)
    history.plans.get(plan(2).plan_id)
    clock.passes(days=20)

    assert history.forget(Retention(age=timedelta(days=30))) == {"plans": 1}
    assert remembered(history) == {plan(2).plan_id}
    assert history.plans.text(plan(1).plan_id) is None
    assert history.plans.rank_classes(plan(1).plan_id) == ()


def test_plans_are_forgotten_by_number_the_longest_unused_first(
    history: History, plan: Callable[..., Plan], clock: Any
) -> None:
    for number in range(5):
        history.plans.put(plan(number))
        clock.passes(minutes=1)

    assert history.forget(Retention(plans=2)) == {"plans": 3}
    assert remembered(history) == {plan(3).plan_id, plan(4).plan_id}
    assert history.forget(Retention(plans=2)) == {}
    assert history.forget(Retention(plans=0)) == {"plans": 2}


def test_more_than_fit_into_one_transaction_are_forgotten(
    history: History, plan: Callable[..., Plan], clock: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("planner.service.history.store._AT_ONCE", 2)
    for number in range(7):
        history.plans.put(plan(number))
        history.checks.put(Check(check_id=str(number), plan_id="pl-1", asked_at=clock.passes(seconds=1)))

    assert history.forget(Retention(plans=1, checks=2)) == {"plans": 6, "checks": 5}


def test_a_plan_stays_while_a_job_runs_and_goes_with_it_afterwards(
    history: History, plan: Callable[..., Plan], clock: Any
) -> None:
    history.plans.put(plan())
    measured = (MeasuredRank(rank=0, device_bytes=1),)
    history.jobs.bind("ray", "ended", JobChange(plan_id=plan().plan_id, outcome=Outcome.FINISHED, measured=measured))
    history.jobs.bind("ray", "runs", JobChange(plan_id=plan().plan_id))
    clock.passes(days=365)

    assert history.forget(Retention(plans=0)) == {}
    assert remembered(history) == {plan().plan_id}

    history.jobs.bind("ray", "runs", JobChange(outcome=Outcome.FINISHED))

    assert history.forget(Retention(plans=0)) == {"plans": 1, "jobs": 2}
    assert history.jobs.get("ray", "ended") is None


def test_traces_go_whole(history: History, clock: Any) -> None:
    for number in range(3):
        put_traces(history, str(number), {0: Trace(events=()), 1: Trace(events=())})
        clock.passes(hours=2)
    get_traces(history, "0")
    clock.passes(hours=1)

    assert history.forget(Retention(traces=2)) == {"traces": 4}
    assert [list(get_traces(history, str(number))) for number in range(3)] == [[0, 1], [], []]


def test_results_are_forgotten_by_age_and_calibrations_by_number(history: History, clock: Any) -> None:
    history.checks.put(Check(check_id="c", plan_id="pl-1", asked_at=clock.now))
    history.validations.put(
        Validation(
            validation_id="v", plan_id="pl-1", state=ValidationState.REFUSED, asked_at=clock.now, problem="no GPU"
        )
    )
    for name in "abc":
        history.calibrations.put(name, {})
        clock.passes(days=1)
    clock.passes(days=365)

    found = history.forget(Retention(calibrations=2))

    assert found == {"checks": 1, "validations": 1, "calibrations": 1}
    assert [each.calibration_id for each in history.calibrations.newest()] == ["c", "b"]


def test_who_was_silent_for_a_day_is_forgotten_and_what_it_counted_stays(history: History, clock: Any) -> None:
    history.totals.add("gone", 1, {("asked", ()): 3}, {("busy", ()): 2})
    clock.passes(hours=20)
    history.totals.add("lives", 1, {("asked", ()): 4}, {("busy", ()): 1})
    clock.passes(hours=5)

    assert history.forget(Retention()) == {"writers": 1}

    clock.passes(days=400)
    history.totals.add("lives", 2, {}, {("busy", ()): 5})

    assert history.forget(Retention()) == {}
    assert history.totals.figures() == SharedFigures(totals={("asked", ()): 7}, levels={("busy", ()): 5}, writers=1)
