"""Jobs whose end somebody means to tell, and does not live to: they count until their lease is over."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest

from planner.report.statement import Plan
from planner.service.history.errors import HistoryError
from planner.service.history.job_table import JobChange, Outcome
from planner.service.history.store import History, Retention


def counted(history: History) -> int:
    return sum(row.jobs for row in history.capacity())


@pytest.fixture
def leased(history: History, plan: Callable[..., Plan]) -> History:
    """With one job of the system `launcher` whose lease is five minutes."""
    history.plans.put(plan())
    history.jobs.bind("launcher", "a", JobChange(plan_id=plan().plan_id, lease_seconds=300))
    return history


def test_a_job_whose_lease_is_over_counts_nowhere(leased: History, clock: Any) -> None:
    assert counted(leased) == 1
    clock.passes(seconds=300)

    assert counted(leased) == 0
    assert leased.jobs.open() == ()
    assert leased.jobs.active_plans().plans[0].jobs == ()
    assert leased.read_needs() == ((), 0)


def test_a_lease_that_is_renewed_goes_on(leased: History, clock: Any) -> None:
    for _ in range(3):
        clock.passes(seconds=200)
        renewed = leased.jobs.bind("launcher", "a", JobChange(lease_seconds=300))
        assert renewed.lapses_at == clock.now + timedelta(seconds=300)
    assert counted(leased) == 1


def test_of_two_leases_the_longer_stands(leased: History, clock: Any) -> None:
    assert leased.jobs.bind("launcher", "a", JobChange(lease_seconds=10)).lapses_at == clock.now + timedelta(
        seconds=300
    )


def test_an_end_that_is_told_needs_no_lease(leased: History, clock: Any) -> None:
    ended = leased.jobs.bind("launcher", "a", JobChange(ended_at=clock.now))

    assert (ended.ended_at, ended.lapses_at, counted(leased)) == (clock.now, None, 0)


def test_a_job_without_a_lease_runs_until_somebody_tells(
    history: History, plan: Callable[..., Plan], clock: Any
) -> None:
    history.plans.put(plan())
    history.jobs.bind("slurm", "a", JobChange(plan_id=plan().plan_id))
    clock.passes(days=30)

    assert counted(history) == 1


def test_a_lease_of_a_job_that_ended_says_that_it_runs_again(leased: History, clock: Any) -> None:
    """As where a second node's launcher goes on when the first one's has ended."""
    leased.jobs.bind("launcher", "a", JobChange(ended_at=clock.now, outcome=Outcome.FAILED))
    clock.passes(seconds=60)
    again = leased.jobs.bind("launcher", "a", JobChange(lease_seconds=300))

    assert (again.ended_at, again.outcome, counted(leased)) == (None, Outcome.OPEN, 1)


def test_a_lapsed_job_is_listed_among_those_that_ended_since(leased: History, clock: Any) -> None:
    began = clock.now
    clock.passes(seconds=400)

    assert [need.job_id for need in leased.read_needs(since=began)[0]] == ["a"]
    assert leased.read_needs(since=began + timedelta(seconds=301)) == ((), 0)


def test_the_plan_of_a_lapsed_job_may_be_forgotten(leased: History, clock: Any, plan: Callable[..., Plan]) -> None:
    keep = Retention(plans=0)
    assert leased.forget(keep) == {}
    clock.passes(seconds=300)

    assert leased.forget(keep)["jobs"] == 1
    assert leased.plans.text(plan().plan_id) is None


@pytest.mark.parametrize("seconds", [0, -1, 24 * 60 * 60 + 1])
def test_a_lease_is_no_more_than_a_day(leased: History, seconds: float) -> None:
    with pytest.raises(HistoryError, match="a lease of"):
        leased.jobs.bind("launcher", "a", JobChange(lease_seconds=seconds))
