"""What stored jobs need of a GPU, in every database."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any

from planner.report.statement import Plan
from planner.service.history.job_table import JobChange, MeasuredRank, Outcome
from planner.service.history.store import History
from planner.units import GIB


def test_jobs_that_run_wait_or_ended_lately(history: History, plan: Callable[..., Plan], clock: Any) -> None:
    made = plan(1)
    history.plans.put(made)
    history.jobs.bind("ray", "old", JobChange(plan_id=made.plan_id, outcome=Outcome.FINISHED))
    since = clock.passes(minutes=1)
    history.jobs.bind("ray", "ended", JobChange(plan_id=made.plan_id, outcome=Outcome.FINISHED))
    clock.passes(minutes=1)
    history.jobs.bind("ray", "waits", JobChange(plan_id=made.plan_id))
    clock.passes(minutes=1)
    told = (MeasuredRank(rank=0, device_bytes=70 * GIB),)
    history.jobs.bind("ray", "runs", JobChange(plan_id=made.plan_id, started_at=clock.now, measured=told))

    lately, left_out = history.read_needs(since)

    assert ([(need.job_id, need.waits) for need in lately], left_out) == (
        [("ended", False), ("waits", True), ("runs", False)], 0,
    )  # fmt: skip
    assert [need.job_id for need in history.read_needs()[0]] == ["waits", "runs"]
    fullest = made.rank_classes[0].peak
    outside = fullest.device_bytes - fullest.reserved_bytes
    ended, _, runs = lately
    assert (ended.least_bytes, ended.device_bytes) == (fullest.allocated_bytes + outside, fullest.device_bytes)
    assert (ended.highest_bytes, runs.highest_bytes) == (fullest.interval_bytes[1], 70 * GIB)


def test_it_is_bounded_and_says_so(history: History, plan: Callable[..., Plan], clock: Any) -> None:
    history.plans.put(plan(1))
    for number in range(5):
        history.jobs.bind("ray", str(number), JobChange(plan_id=plan(1).plan_id))
        clock.passes(seconds=1)

    found, left_out = history.read_needs(since=clock.now - timedelta(days=1), limit=3)

    assert ([need.job_id for need in found], left_out) == (["0", "1", "2"], 2)
