"""What the cluster's jobs asked for, were predicted to take and took, and which plans matter now."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any

from planner.report.statement import Plan, Verdict
from planner.service.history.capacity import COUNTS, Capacity
from planner.service.history.job_table import JobChange, MeasuredRank, Outcome
from planner.service.history.store import History
from planner.truth.failures.messages import Cause
from planner.units import GIB


def capacity_of(team: str, gpu: str, **counts: int) -> Capacity:
    """The rest is nothing."""
    return Capacity(team=team, queue="h100", gpu=gpu, **{**dict.fromkeys(COUNTS, 0), **counts})


def test_capacity_by_team_queue_and_gpu(history: History, plan: Callable[..., Plan]) -> None:
    history.plans.put(plan(1))
    history.plans.put(plan(2, team="vision", gpu="A100-SXM-40GB", capacity_bytes=40 * GIB))
    measured = (MeasuredRank(rank=0, device_bytes=41 * GIB), MeasuredRank(rank=7, device_bytes=29 * GIB))
    history.jobs.bind("ray", "a", JobChange(plan_id=plan(1).plan_id, measured=measured))
    history.jobs.bind("ray", "b", JobChange(plan_id=plan(1).plan_id, measured=(MeasuredRank(rank=1),)))
    history.jobs.bind("slurm", "a", JobChange(plan_id=plan(2).plan_id))

    nlp, vision = history.capacity()

    assert nlp == capacity_of(
        "nlp", "H100-SXM-80GB", jobs=2, gpus=16,
        requested_bytes=2 * 8 * 80 * GIB, predicted_bytes=2 * 250 * GIB, headroom_bytes=(1280 - 500) * GIB,
        measured_bytes=70 * GIB, measured_gpus=2, predicted_of_measured_bytes=70 * GIB,
    )  # fmt: skip
    assert vision == capacity_of(
        "vision", "A100-SXM-40GB", jobs=1, gpus=8, requested_bytes=320 * GIB, predicted_bytes=250 * GIB,
        headroom_bytes=70 * GIB,
    )  # fmt: skip


def test_a_job_that_ended_takes_nothing_but_judges_its_plan(
    history: History, plan: Callable[..., Plan], clock: Any
) -> None:
    ends = [
        (Verdict.FITS, Outcome.FINISHED), (Verdict.FITS, Outcome.OUT_OF_MEMORY), (Verdict.FITS, Outcome.FAILED),
        (Verdict.TIGHT, Outcome.OUT_OF_MEMORY), (Verdict.EXCEEDS, Outcome.FINISHED),
        (Verdict.EXCEEDS, Outcome.OUT_OF_MEMORY),
    ]  # fmt: skip
    for number, (verdict, outcome) in enumerate(ends):
        history.plans.put(plan(number, verdict=verdict))
        history.jobs.bind("ray", str(number), JobChange(plan_id=plan(number).plan_id, outcome=outcome))

    assert history.capacity() == (
        capacity_of(
            "nlp",
            "H100-SXM-80GB",
            judged=5,
            wrong_verdicts=2,
            said_fits_ran_out=1,
            said_exceeds_ran=1,
            ran_out_gpu=3,
        ),
    )
    assert history.capacity(since=clock.now + timedelta(seconds=1)) == ()


def test_gpu_hours_are_those_from_the_start_of_a_job_to_its_end_or_now(
    history: History, plan: Callable[..., Plan], clock: Any
) -> None:
    history.plans.put(plan(1))
    hour, now = timedelta(hours=1), clock.now
    running = JobChange(plan_id=plan(1).plan_id, started_at=now - 3 * hour)
    over = JobChange(plan_id=plan(1).plan_id, started_at=now - 5 * hour, ended_at=now - hour, outcome=Outcome.FINISHED)
    history.jobs.bind("ray", "running", running)
    history.jobs.bind("ray", "over", over)
    history.jobs.bind("ray", "waiting", JobChange(plan_id=plan(1).plan_id))

    def gpu_hours(since: timedelta | None) -> float:
        (row,) = history.capacity(since=None if since is None else now - since)
        return row.gpu_seconds / 3600

    assert gpu_hours(None) == 8 * (3 + 4)
    assert gpu_hours(2 * hour) == 8 * (2 + 1)


def test_a_job_that_the_hosts_memory_ended_does_not_judge_the_gpus_verdict(
    history: History, plan: Callable[..., Plan]
) -> None:
    history.plans.put(plan())
    told = JobChange(plan_id=plan().plan_id, outcome=Outcome.OUT_OF_MEMORY, cause=Cause.HOST_LIMIT)
    history.jobs.bind("slurm", "1", told)

    assert history.capacity() == (capacity_of("nlp", "H100-SXM-80GB", ran_out_host=1),)


def test_sums_beyond_a_column_are_exact(history: History, plan: Callable[..., Plan]) -> None:
    history.plans.put(plan(capacity_bytes=2**58))
    for number in range(5):
        history.jobs.bind("ray", str(number), JobChange(plan_id=plan().plan_id))

    assert history.capacity()[0].requested_bytes == 5 * 8 * 2**58


def test_nothing_runs_in_an_empty_history(history: History) -> None:
    assert history.capacity() == ()
    assert (history.jobs.active_plans().plans, history.jobs.active_plans().left_out) == ((), 0)


def test_active_plans_are_bounded_and_those_of_jobs_come_first(
    history: History, plan: Callable[..., Plan], clock: Any
) -> None:
    for number in range(6):
        history.plans.put(plan(number))
        clock.passes(minutes=10)
    clock.passes(minutes=25)  # now those of numbers 0 to 2 are older than an hour
    bound = history.jobs.bind("ray", "a", JobChange(plan_id=plan(1).plan_id))
    history.jobs.bind("ray", "b", JobChange(plan_id=plan(0).plan_id, outcome=Outcome.FINISHED))

    found = history.jobs.active_plans(limit=3)

    assert [each.summary.plan_id for each in found.plans] == [plan(number).plan_id for number in (1, 5, 4)]
    assert found.left_out == 1
    assert found.plans[0].jobs == (bound,)
    assert [each.ranks for each in found.plans[1].rank_classes] == ["0", "1-7"]


def test_open_jobs_on_one_gpu_are_summed(history: History, plan: Callable[..., Plan]) -> None:
    history.plans.put(plan())
    for job, gpus in (("a", ("GPU-0", "GPU-1")), ("b", ("GPU-1",)), ("c", ("GPU-2",))):
        history.jobs.bind("ray", job, JobChange(plan_id=plan().plan_id, gpu_uuids=gpus))
    history.jobs.bind("ray", "ended", JobChange(plan_id=plan().plan_id, gpu_uuids=("GPU-2",), outcome=Outcome.FINISHED))

    (shared,) = history.read_shared_gpus()

    assert (shared.gpu_uuid, shared.gpu, shared.jobs) == ("GPU-1", "H100-SXM-80GB", ("ray/a", "ray/b"))
    assert shared.predicted_bytes == 2 * 40 * GIB > shared.total_bytes
    assert shared.verdict is not Verdict.FITS
