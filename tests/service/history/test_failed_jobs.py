"""Jobs that ended out of memory are counted once, by whose memory it was and by cause."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta

import pytest

from planner.report.statement import Plan
from planner.service.history.errors import HistoryError
from planner.service.history.job_table import OUT_OF_MEMORY, JobChange, Outcome
from planner.service.history.store import History
from planner.truth.failures.messages import Cause

START = datetime(2026, 1, 31, 12, tzinfo=UTC)
RAN_OUT = Outcome.OUT_OF_MEMORY


@pytest.fixture
def plan_id(history: History, plan: Callable[..., Plan]) -> str:
    history.plans.put(plan())
    return plan().plan_id


def counted(history: History) -> dict[tuple[str, str], float]:
    """By memory and cause."""
    totals = history.totals.figures().totals
    return {
        (dict(labels)["memory"], dict(labels)["cause"]): value
        for (name, labels), value in totals.items()
        if name == OUT_OF_MEMORY
    }


def test_a_cause_is_kept_with_the_words_that_told_it(history: History, plan_id: str) -> None:
    change = JobChange(plan_id=plan_id, outcome=RAN_OUT, cause=Cause.FRAGMENTATION, failure="CUDA out of memory")
    history.jobs.bind("slurm", "1", change)

    found = history.jobs.get("slurm", "1")
    assert found is not None
    assert (found.cause, found.failure) == (Cause.FRAGMENTATION, "CUDA out of memory")
    assert [each.cause for each in history.jobs.list(10, None)] == ["fragmentation"]


def test_each_end_is_counted_once_however_many_ranks_tell_it(history: History, plan_id: str) -> None:
    for cause in (Cause.FULL, Cause.FRAGMENTATION, Cause.FULL):
        history.jobs.bind("slurm", "1", JobChange(plan_id=plan_id, outcome=RAN_OUT, cause=cause))
    history.jobs.bind("slurm", "2", JobChange(plan_id=plan_id, outcome=RAN_OUT, cause=Cause.HOST_LIMIT))
    history.jobs.bind("slurm", "3", JobChange(plan_id=plan_id, outcome=RAN_OUT))
    history.jobs.bind("slurm", "4", JobChange(plan_id=plan_id, outcome=Outcome.FINISHED))

    assert counted(history) == {("gpu", "full"): 1, ("host", "host_limit"): 1, ("not_told", "not_told"): 1}


def test_a_job_that_runs_again_may_run_out_again(history: History, plan_id: str) -> None:
    ended = JobChange(plan_id=plan_id, started_at=START, ended_at=START + timedelta(hours=1), outcome=RAN_OUT,
                      cause=Cause.FULL)  # fmt: skip
    history.jobs.bind("slurm", "1", ended)
    again = history.jobs.bind("slurm", "1", JobChange(started_at=START + timedelta(hours=2)))
    history.jobs.bind("slurm", "1", JobChange(outcome=RAN_OUT, cause=Cause.HOST, ended_at=START + timedelta(hours=3)))

    assert (again.outcome, again.cause) == (Outcome.OPEN, None)
    assert counted(history) == {("gpu", "full"): 1, ("host", "host"): 1}


def test_a_cause_that_is_known_later_takes_the_place_of_an_unknown_one(history: History, plan_id: str) -> None:
    history.jobs.bind("slurm", "1", JobChange(plan_id=plan_id, outcome=RAN_OUT, cause=Cause.UNKNOWN))

    assert history.jobs.bind("slurm", "1", JobChange(cause=Cause.FULL)).cause is Cause.FULL


@pytest.mark.parametrize("failure", ["x" * 5000, "a\0b"])
def test_words_that_no_column_takes_are_refused(failure: str, history: History, plan_id: str) -> None:
    with pytest.raises(HistoryError, match="characters of failure"):
        history.jobs.bind("slurm", "1", JobChange(plan_id=plan_id, failure=failure))
