"""A plan made by several processes is the plan that one makes."""

from __future__ import annotations

import dataclasses
import sys
from types import SimpleNamespace

import pytest

from planner.errors import SpecError
from planner.job.schema import Cluster, Decoder, Gpu, Job, Model, Parallel, Pp, Train
from planner.planning import planned_classes
from planner.planning.plan import PlanningResult, plan_job
from planner.report.statement import Seconds
from planner.runtime import messages, running
from planner.runtime.fork_server import ForkServer
from planner.runtime.limits import UNLIMITED, Limits
from planner.runtime.messages import Answer, AnswerWriter, Task
from planner.searching.plan_advice import add_advice

JOB = Job(
    model=Model(decoder=Decoder(layers=8, hidden=64, heads=4, kv_heads=2, ffn=128, vocab=300)),
    train=Train(micro_batch_size=1, sequence_length=32, gradient_accumulation_steps=4),
    parallel=Parallel(pp=Pp(degree=4)),
    cluster=Cluster(gpus_per_node=4, gpu=Gpu(total_bytes=80 << 30, arch="sm_90")),
)


@pytest.fixture(scope="module")
def alone() -> PlanningResult:
    return plan_job(JOB)


def planned(job: Job, processes: int, *, keep_traces: bool = True) -> PlanningResult:
    return plan_job(job, processes=processes, keep_traces=keep_traces)


def _without_seconds(planned: PlanningResult) -> object:
    assert planned.plan.seconds.total > 0
    return dataclasses.replace(planned.plan, seconds=Seconds(trace=0, replay=0, total=0))


def test_two_make_the_same_plan(alone: PlanningResult) -> None:
    found = planned(JOB, 2, keep_traces=False)

    assert _without_seconds(found) == _without_seconds(alone)
    assert found.plan.notes == alone.plan.notes
    assert (found.traces, found.timelines) == ((), ())


def test_with_the_traces_if_they_are_kept(alone: PlanningResult) -> None:
    found = planned(JOB, 2)

    assert [each.rank_class for each in found.traces] == [each.rank_class for each in alone.traces]
    assert [each.trace.events for each in found.traces] == [each.trace.events for each in alone.traces]
    assert [each.allocated_bytes for each in found.timelines] == [each.allocated_bytes for each in alone.timelines]


def imported_late(job: Job, answer: AnswerWriter) -> None:
    """In a child: which modules of planner itself a plan imports that the server has not loaded before."""
    before = set(sys.modules)
    add_advice(plan_job(job), seconds=600.0)
    answer.write("late", "\n".join(sorted(set(sys.modules) - before)).encode())


def test_a_child_finds_everything_of_planner_loaded(server: ForkServer) -> None:
    answer = running.run(Task(f"{__name__}:imported_late", JOB), UNLIMITED, server=server)

    messages.raise_failure(answer)
    late = answer.parts["late"].decode().split("\n")
    assert [name for name in late if name.partition(".")[0] in ("planner", "transformers")] == []


def killed(_: Task, __: Limits, *, server: ForkServer) -> Answer:  # noqa: ARG001
    return Answer(exit_code=-9)


def killed_after_one(task: Task, _: Limits, *, server: ForkServer) -> Answer:
    whole = running.run(task, server=server)
    first = min(whole.parts)
    return Answer(parts={first: whole.parts[first]}, whole=False, exit_code=-9)


@pytest.mark.parametrize("child", [killed, killed_after_one])
def test_what_a_child_leaves_is_done_here(
    alone: PlanningResult, child: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(planned_classes, "running", SimpleNamespace(run=child))

    assert _without_seconds(planned(JOB, 3)) == _without_seconds(alone)


def test_few_rank_classes_are_planned_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(planned_classes, "_plan_in_children", None)
    small = dataclasses.replace(JOB, parallel=Parallel(), cluster=dataclasses.replace(JOB.cluster, gpus_per_node=1))

    assert len(planned(small, 8).traces) == 1


def test_what_is_wrong_with_the_job_is_said_as_ever() -> None:
    few = Model(decoder=Decoder(layers=4, hidden=64, heads=4, kv_heads=2, ffn=128, vocab=300))
    wrong = dataclasses.replace(JOB, model=few)

    with pytest.raises(SpecError, match="every stage needs a layer"):
        planned(wrong, 2)
