"""A plan made by several processes is the plan that one makes."""

from __future__ import annotations

import dataclasses

import pytest

from planner import planning, side_by_side
from planner.errors import SpecError
from planner.planning import Planned
from planner.report.statement import Seconds
from planner.spec.job import Cluster, Decoder, Gpu, Job, Model, Parallel, Pp, Train

JOB = Job(
    model=Model(decoder=Decoder(layers=8, hidden=64, heads=4, kv_heads=2, ffn=128, vocab=300)),
    train=Train(micro_batch_size=1, sequence_length=32, gradient_accumulation_steps=4),
    parallel=Parallel(pp=Pp(degree=4)),
    cluster=Cluster(gpus_per_node=4, gpu=Gpu(total_bytes=80 << 30, arch="sm_90")),
)


@pytest.fixture(scope="module")
def alone() -> Planned:
    return planning.planned(JOB)


def _without_seconds(planned: Planned) -> object:
    assert planned.plan.seconds.total > 0
    return dataclasses.replace(planned.plan, seconds=Seconds(trace=0, replay=0, total=0))


def test_two_make_the_same_plan(alone: Planned) -> None:
    found = side_by_side.planned(JOB, processes=2, keep_traces=False)

    assert _without_seconds(found) == _without_seconds(alone)
    assert found.notes == alone.notes
    assert (found.traces, found.timelines) == ((), ())


def test_with_the_traces_if_they_are_kept(alone: Planned) -> None:
    found = side_by_side.planned(JOB, processes=2)

    assert [each.rank_class for each in found.traces] == [each.rank_class for each in alone.traces]
    assert [each.trace.events for each in found.traces] == [each.trace.events for each in alone.traces]
    assert [each.allocated_bytes for each in found.timelines] == [each.allocated_bytes for each in alone.timelines]


FAILING = "raise SystemExit(3)"
CHATTING = "print('no result')"
TAKING_ONE = """
import os, pickle, sys
sys.path.append(sys.argv[1])
os.read(pickle.load(sys.stdin.buffer).queue, 2)
"""


@pytest.mark.parametrize("child", [FAILING, CHATTING, TAKING_ONE])
def test_what_a_child_leaves_is_done_here(alone: Planned, child: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(side_by_side, "_CHILD", child)

    assert _without_seconds(side_by_side.planned(JOB, processes=3)) == _without_seconds(alone)


def test_few_rank_classes_are_planned_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(side_by_side, "_CHILD", "import never_started")
    monkeypatch.setattr(side_by_side, "_Children", None)
    small = dataclasses.replace(JOB, parallel=Parallel(), cluster=dataclasses.replace(JOB.cluster, gpus_per_node=1))

    assert len(side_by_side.planned(small, processes=8).traces) == 1


def test_what_is_wrong_with_the_job_is_said_as_ever() -> None:
    few = Model(decoder=Decoder(layers=4, hidden=64, heads=4, kv_heads=2, ffn=128, vocab=300))
    wrong = dataclasses.replace(JOB, model=few)

    with pytest.raises(SpecError, match="4 layers cannot be split"):
        side_by_side.planned(wrong, processes=2)
