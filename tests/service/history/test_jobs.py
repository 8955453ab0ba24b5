"""A plan is bound to the job that runs; what is told of the job later is merged."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from planner.report.statement import Plan
from planner.service.history.errors import HistoryError
from planner.service.history.job_table import BoundJob, JobChange, MeasuredRank, Outcome
from planner.service.history.store import History
from planner.units import GIB

START = datetime(2026, 1, 31, 12, tzinfo=UTC)


@pytest.fixture
def plan_id(history: History, plan: Callable[..., Plan]) -> str:
    history.plans.put(plan())
    return plan().plan_id


def test_a_job_is_bound_and_found_again(history: History, plan_id: str) -> None:
    change = JobChange(
        plan_id=plan_id, team="vision", queue="a100", hosts=("node-1",), gpu_uuids=("GPU-0", "GPU-1"),
        started_at=START, measured=(MeasuredRank(rank=0, host="node-1", device_bytes=41 * GIB),),
    )  # fmt: skip

    bound = history.jobs.bind("slurm", "4711_3", change)

    assert bound == BoundJob(
        system="slurm", job_id="4711_3", plan_id=plan_id, team="vision", queue="a100", hosts=("node-1",),
        gpu_uuids=("GPU-0", "GPU-1"), started_at=START, ended_at=None, outcome=Outcome.OPEN,
        measured=(MeasuredRank(rank=0, host="node-1", device_bytes=41 * GIB),),
    )  # fmt: skip
    assert history.jobs.get("slurm", "4711_3") == bound
    assert history.jobs.open() == (bound,)
    assert history.jobs.get("slurm", "4711") is None


@pytest.mark.parametrize(
    "moment",
    [
        "0001-01-01T00:00:00+14:00",
        "1999-12-31T23:59:59+00:00",
        "2200-01-01T00:00:01+00:00",
        "9999-12-31T23:59:59-14:00",
    ],
)
@pytest.mark.parametrize("name", ["started_at", "ended_at"])
def test_a_moment_at_which_nothing_ran_is_refused(history: History, plan_id: str, name: str, moment: str) -> None:
    """One outside of the years of a calendar could be stored, and never be read again."""
    with pytest.raises(HistoryError, match="nothing ran at"):
        history.jobs.bind("ray", "a", JobChange(plan_id=plan_id, **{name: datetime.fromisoformat(moment)}))

    assert history.jobs.open() == ()


def test_telling_the_same_again_changes_nothing(history: History, plan_id: str) -> None:
    change = JobChange(plan_id=plan_id, hosts=("node-1",), measured=(MeasuredRank(rank=3, reserved_bytes=5),))

    assert history.jobs.bind("ray", "a", change) == history.jobs.bind("ray", "a", change)
    assert len(history.jobs.open()) == 1


def test_a_later_change_leaves_what_it_does_not_name(history: History, plan_id: str) -> None:
    first = history.jobs.bind("ray", "a", JobChange(plan_id=plan_id, hosts=("node-1",), started_at=START))

    second = history.jobs.bind("ray", "a", JobChange(ended_at=START + timedelta(hours=2), outcome=Outcome.FINISHED))

    assert (second.plan_id, second.hosts, second.started_at) == (plan_id, ("node-1",), first.started_at)
    assert (second.ended_at, second.outcome) == (START + timedelta(hours=2), Outcome.FINISHED)
    assert history.jobs.open() == ()


def test_team_and_queue_are_the_plans_unless_told(history: History, plan_id: str) -> None:
    assert history.jobs.bind("ray", "a", JobChange(plan_id=plan_id)).team == "nlp"
    told = history.jobs.bind("ray", "a", JobChange(team=""))

    assert (told.team, told.queue) == ("", "h100")


def test_an_outcome_without_an_end_ends_the_job_now(history: History, plan_id: str, clock: Any) -> None:
    history.jobs.bind("ray", "a", JobChange(plan_id=plan_id))
    end = clock.passes(hours=1)

    assert history.jobs.bind("ray", "a", JobChange(outcome=Outcome.OUT_OF_MEMORY)).ended_at == end
    clock.passes(hours=1)
    assert history.jobs.bind("ray", "a", JobChange(outcome=Outcome.OUT_OF_MEMORY)).ended_at == end


def test_ranks_tell_their_peaks_in_any_order_and_the_higher_one_stands(history: History, plan_id: str) -> None:
    late = MeasuredRank(rank=1, allocated_bytes=10, device_bytes=30)
    early = MeasuredRank(rank=1, gpu_uuid="GPU-1", allocated_bytes=12, reserved_bytes=20)
    other = MeasuredRank(rank=0, allocated_bytes=1)
    history.jobs.bind("ray", "a", JobChange(plan_id=plan_id))

    for measured in (late, early, other):
        told = history.jobs.bind("ray", "a", JobChange(measured=(measured,)))

    both = MeasuredRank(rank=1, gpu_uuid="GPU-1", allocated_bytes=12, reserved_bytes=20, device_bytes=30)
    assert told.measured == (other,)
    bound = history.jobs.get("ray", "a")
    assert bound is not None
    assert bound.measured == (other, both)


def test_every_rank_tells_of_itself_and_all_of_it_is_known(history: History, plan_id: str) -> None:
    history.jobs.bind("ray", "a", JobChange(plan_id=plan_id))
    for rank in (2, 0, 1):
        outcome = Outcome.OUT_OF_MEMORY if rank == 0 else Outcome.FAILED
        moment = START + timedelta(seconds=rank)
        change = JobChange(
            hosts=("node-1",), gpu_uuids=(f"GPU-{rank}",), started_at=moment, ended_at=moment + timedelta(hours=1),
            outcome=outcome, reports={rank: {"steps": rank}},
        )  # fmt: skip
        bound = history.jobs.bind("ray", "a", change)

    assert (bound.hosts, bound.gpu_uuids) == (("node-1",), ("GPU-2", "GPU-0", "GPU-1"))
    assert (bound.started_at, bound.ended_at) == (START, START + timedelta(hours=1, seconds=2))
    assert bound.outcome is Outcome.OUT_OF_MEMORY
    assert history.jobs.reports("ray", "a") == {0: {"steps": 0}, 1: {"steps": 1}, 2: {"steps": 2}}


def test_whoever_tells_all_hosts_says_their_order(history: History, plan_id: str) -> None:
    history.jobs.bind("ray", "a", JobChange(plan_id=plan_id, hosts=("b",)))
    history.jobs.bind("ray", "a", JobChange(hosts=("a", "b")))

    assert history.jobs.bind("ray", "a", JobChange(hosts=("b",))).hosts == ("a", "b")


def test_a_job_on_more_gpus_than_it_has_ranks_has_moved(history: History, plan_id: str) -> None:
    before, after = (tuple(f"GPU-{number}" for number in range(first, first + 8)) for first in (0, 8))
    history.jobs.bind("ray", "a", JobChange(plan_id=plan_id, gpu_uuids=before))

    assert history.jobs.bind("ray", "a", JobChange(gpu_uuids=after)).gpu_uuids == after


def test_a_start_after_the_end_says_that_the_job_runs_again(history: History, plan_id: str) -> None:
    end, again = START + timedelta(hours=1), START + timedelta(hours=2)
    first = JobChange(plan_id=plan_id, started_at=START, ended_at=end, outcome=Outcome.FAILED)
    history.jobs.bind("slurm", "a", first)

    bound = history.jobs.bind("slurm", "a", JobChange(started_at=again))

    assert (bound.started_at, bound.ended_at, bound.outcome) == (again, None, Outcome.OPEN)
    assert history.jobs.open() == (bound,)


def test_a_rank_that_is_told_twice_at_once_keeps_the_higher_peak(history: History, plan_id: str) -> None:
    measured = (MeasuredRank(rank=0, device_bytes=2), MeasuredRank(rank=0, device_bytes=1, host="a"))

    bound = history.jobs.bind("ray", "a", JobChange(plan_id=plan_id, measured=measured))

    assert bound.measured == (MeasuredRank(rank=0, device_bytes=2, host="a"),)


def test_a_report_is_json(history: History, plan_id: str) -> None:
    with pytest.raises(HistoryError, match="this is not a JSON value"):
        history.jobs.bind("ray", "a", JobChange(plan_id=plan_id, reports={0: {"loss": float("nan")}}))

    assert history.jobs.open() == ()


def test_a_report_stays_until_the_rank_tells_another(history: History, plan_id: str) -> None:
    history.jobs.bind("ray", "a", JobChange(plan_id=plan_id, reports={0: {"steps": 1}}))
    history.jobs.bind("ray", "a", JobChange(measured=(MeasuredRank(rank=0, device_bytes=1),)))
    assert history.jobs.reports("ray", "a") == {0: {"steps": 1}}

    history.jobs.bind("ray", "a", JobChange(reports={0: {"steps": 2}}))

    assert history.jobs.reports("ray", "a") == {0: {"steps": 2}}
    assert history.jobs.reports("ray", "b") == {}


def test_a_job_can_be_bound_to_another_plan(history: History, plan_id: str, plan: Callable[..., Plan]) -> None:
    history.plans.put(plan(2, device_bytes=(50 * GIB, 50 * GIB)))
    history.jobs.bind("ray", "a", JobChange(plan_id=plan_id, measured=(MeasuredRank(rank=0, device_bytes=49 * GIB),)))

    bound = history.jobs.bind("ray", "a", JobChange(plan_id=plan(2).plan_id))

    assert bound.plan_id == plan(2).plan_id
    assert [row.predicted_of_measured_bytes for row in history.capacity()] == [50 * GIB]


def test_the_first_change_names_the_plan(history: History) -> None:
    with pytest.raises(HistoryError, match="job a of ray is bound to no plan yet"):
        history.jobs.bind("ray", "a", JobChange(team="nlp"))
    with pytest.raises(HistoryError, match="there is no plan 'pl-unheard-of'"):
        history.jobs.bind("ray", "a", JobChange(plan_id="pl-unheard-of"))
    assert history.jobs.open() == ()


NAIVE = START.replace(tzinfo=None)


@pytest.mark.parametrize(
    ("change", "place"),
    [
        (JobChange(started_at=START, ended_at=START - timedelta(seconds=1)), "ended_at"),
        (JobChange(started_at=NAIVE), "started_at"),
        (JobChange(plan_id="pl-\0"), "plan_id"),
        (JobChange(team="nl\0p"), "team"),
        (JobChange(queue="q" * 254), "queue"),
        (JobChange(hosts=("",)), "hosts"),
        (JobChange(hosts=("host",) * 9), "hosts"),
        (JobChange(gpu_uuids=("GPU\n",)), "gpu_uuids"),
        (JobChange(gpu_uuids=("GPU",) * 9), "gpu_uuids"),
        (JobChange(measured=(MeasuredRank(rank=8),)), "measured.rank"),
        (JobChange(measured=(MeasuredRank(rank=-1),)), "measured.rank"),
        (JobChange(measured=(MeasuredRank(rank=0, device_bytes=-1),)), "measured.device_bytes"),
        (JobChange(measured=(MeasuredRank(rank=0, allocated_bytes=2**63),)), "measured.allocated_bytes"),
        (JobChange(reports={9: {}}), "measured.rank"),
        (JobChange(reports={0: {"text": "a" * 2**18}}), "measured.report"),
        (JobChange(measured=(MeasuredRank(rank=0, host="\ud800"),)), "measured.host"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_what_cannot_be_is_refused_and_leaves_the_job_as_it_was(
    history: History, plan_id: str, change: JobChange, place: str
) -> None:
    before = history.jobs.bind("ray", "a", JobChange(plan_id=plan_id, team="nlp"))

    with pytest.raises(HistoryError) as refused:
        history.jobs.bind("ray", "a", change)

    assert refused.value.place == place
    assert history.jobs.get("ray", "a") == before


@pytest.mark.parametrize(("system", "job_id"), [("", "a"), ("Slurm!", "a"), ("ray", ""), ("ray", "a\0")])
def test_a_job_has_a_name_in_a_system(history: History, plan_id: str, system: str, job_id: str) -> None:
    with pytest.raises(HistoryError):
        history.jobs.bind(system, job_id, JobChange(plan_id=plan_id))


def test_many_jobs_are_listed_with_their_peaks(history: History, plan_id: str) -> None:
    for number in range(12):
        change = JobChange(plan_id=plan_id, measured=(MeasuredRank(rank=0, device_bytes=number),))
        history.jobs.bind("ray", f"job-{number:02d}", change)

    found = history.jobs.open(limit=10)

    assert len(found) == 10
    assert all(job.measured[0].device_bytes == int(job.job_id[-2:]) for job in found)


def test_jobs_are_listed_with_what_the_fullest_rank_was_predicted_and_measured(
    history: History, plan: Callable[..., Plan]
) -> None:
    made = plan(1)
    history.plans.put(made)
    predicted = made.rank_classes[1].peak.device_bytes  # that of rank 2
    ranks = tuple(MeasuredRank(rank=rank, device_bytes=40 * GIB + rank) for rank in (0, 2, 1))
    history.jobs.bind("slurm", "a", JobChange(plan_id=made.plan_id, measured=(*ranks, MeasuredRank(rank=3))))
    history.jobs.bind("ray", "b", JobChange(plan_id=made.plan_id))

    found = {each.job_id: each for each in history.jobs.list(10)}
    assert {job: (each.measured_ranks, each.measured_bytes, each.predicted_bytes) for job, each in found.items()} == {
        "a": (3, 40 * GIB + 2, predicted),
        "b": (0, None, None),
    }
    assert (found["a"].name, found["a"].verdict) == (made.job["metadata"]["name"], made.verdict)
    assert len(history.jobs.list(1)) == 1
    assert history.jobs.list(10, plan_id="pl-another") == ()
