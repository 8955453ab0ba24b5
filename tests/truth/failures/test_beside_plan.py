"""A failure beside the plan of its job: where the two part."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from dataclasses import replace

import pytest

from planner.events import Alloc, Category, Event, Phase
from planner.report.memory_viz import snapshot
from planner.report.statement import (
    Holder,
    OutsideAllocator,
    Peak,
    PhaseStatement,
    Plan,
    Provenance,
    RankClassStatement,
    Verdict,
)
from planner.truth.failures.explanation import Explanation, explain
from planner.units import GIB, MIB

Message = Callable[..., str]
FORWARD = [
    {"filename": "/job/model.py", "line": 34, "name": "forward"},
    {"filename": "/lib/torch/nn/modules/module.py", "line": 1784, "name": "_call_impl"},
]


@pytest.fixture
def plan() -> Plan:
    """Eight ranks on GPUs of 79 GiB: 60 GiB of tensors at the peak, 62 reserved, 1.5 outside."""
    rank_class = RankClassStatement(
        representative=0,
        ranks="0-7",
        coordinates={},
        peak=Peak(
            phase=Phase.BACKWARD, iteration=2, allocated_bytes=60 * GIB, reserved_bytes=62 * GIB,
            device_bytes=62 * GIB + 1536 * MIB, interval_bytes=(60 * GIB, 66 * GIB),
        ),
        capacity_bytes=79 * GIB,
        verdict=Verdict.FITS,
        cache_releases=0,
        at_peak={Category.PARAMETER: 60 * GIB},
        phases=(phase(Phase.LOAD, 0, 20 * GIB, 20 * GIB), phase(Phase.FORWARD, 2, 50 * GIB, 45 * GIB)),
        outside_allocator=OutsideAllocator(cuda_context_bytes=512 * MIB, nccl_bytes=GIB),
        holders=tuple(
            Holder(
                bytes=size * MIB, category=Category.PARAMETER, module="", op="", shape=(size, MIB // 4), dtype="float32"
            )
            for size in (100, 200, 300)
        ),
    )  # fmt: skip
    return Plan(
        plan_id="pl-a", trace_id="t", calibrated=False, gpu="H100-SXM-80GB", nodes=1, gpus_per_node=1,
        rank_classes=(rank_class,),
        provenance=Provenance(planner="1", torch="2.13.0", allocator_rules="r", catalog="c", calibration="none"),
    )  # fmt: skip


def phase(name: Phase, iteration: int, peak: int, end: int) -> PhaseStatement:
    return PhaseStatement(
        phase=name,
        iteration=iteration,
        peak_allocated_bytes=peak,
        peak_reserved_bytes=peak + GIB,
        end_allocated_bytes=end,
    )


def kinds(found: Explanation) -> list[str]:
    return [each.kind for each in found.partings]


def as_planned(message: Message, **facts: object) -> str:
    """A failure in which PyTorch held no more than its plan."""
    given = {"allocated": "55.00 GiB", "unallocated": "1.00 GiB", "tried": "2.00 GiB", "free": "1.00 GiB", **facts}
    return message(**given)


def test_another_process_is_what_the_plan_did_not_know(plan: Plan, message: Message) -> None:
    found = explain(as_planned(message, this="57.00 GiB", others=[(9, "21.00 GiB")]), plan=plan)

    assert kinds(found) == ["other_process"]
    assert found.partings[0].found_bytes == 21 * GIB


def test_more_outside_of_the_allocator_than_planned_is_said(plan: Plan, message: Message) -> None:
    found = explain(as_planned(message, this="78.00 GiB"), plan=plan)

    assert kinds(found) == ["outside_allocator"]
    assert (found.partings[0].planned_bytes, found.partings[0].found_bytes) == (1536 * MIB, 22 * GIB)


def test_another_gpu_than_planned_is_said(plan: Plan, message: Message) -> None:
    assert "other_gpu" in kinds(explain(as_planned(message, total="39.39 GiB"), plan=plan))


def test_a_rank_that_the_plan_does_not_have_means_another_world_size(plan: Plan, message: Message) -> None:
    found = explain(f"[rank12]: {as_planned(message, this='57.00 GiB')}", plan=plan)

    assert kinds(found)[0] == "other_world"
    assert "rank 12 failed, and the plan has 8 ranks" in found.partings[0].sentence


def test_more_in_tensors_than_the_planned_peak_is_said(plan: Plan, message: Message) -> None:
    found = explain(message(this="78.00 GiB"), plan=plan)

    (parting,) = [each for each in found.partings if each.kind == "allocated"]
    assert (parting.planned_bytes, parting.found_bytes) == (60 * GIB, 78 * GIB)


def test_where_nothing_differs_it_says_so(plan: Plan, message: Message) -> None:
    found = explain(as_planned(message, this="57.50 GiB", free="21.00 GiB"), plan=plan)

    assert kinds(found) == ["none"]
    assert found.partings[0].sentence == "nothing that is told differs from the plan, which says fits"


def test_the_first_phase_that_holds_more_than_planned_is_named(plan: Plan) -> None:
    found = explain(snapshot=held_in_forward(GIB * 20, GIB * 35), plan=plan)

    (parting,) = [each for each in found.partings if each.kind == "phase"]
    assert (parting.planned_bytes, parting.found_bytes) == (50 * GIB, 55 * GIB)
    assert "forward is the first phase" in parting.sentence


def test_twice_the_planned_states_before_the_forward_are_those_of_half_the_ranks(plan: Plan) -> None:
    found = explain(snapshot=held_in_forward(40 * GIB, GIB), plan=plan)

    (parting,) = [each for each in found.partings if each.kind == "other_world"]
    assert (parting.planned_bytes, parting.found_bytes) == (20 * GIB, 40 * GIB)


def test_a_snapshot_of_another_job_is_said_to_be_one(plan: Plan) -> None:
    of_this = [Alloc(0, 200 * MIB), Alloc(1, 7 * MIB)]

    assert "another_job" in kinds(explain(snapshot=held_in_forward(20 * GIB, GIB), plan=plan))
    assert "another_job" not in kinds(explain(snapshot=pickle.dumps(snapshot(of_this)), plan=plan))


def test_a_rank_that_one_asks_for_and_the_plan_does_not_have_is_said(plan: Plan, message: Message) -> None:
    found = explain(as_planned(message), plan=plan, rank=99)

    assert kinds(found)[0] == "other_world"


def test_a_plan_without_shapes_says_nothing_of_another_job(plan: Plan) -> None:
    bare = replace(plan, rank_classes=(replace(plan.rank_classes[0], holders=()),))

    assert "another_job" not in kinds(explain(snapshot=held_in_forward(20 * GIB, GIB), plan=bare))


def held_in_forward(before_bytes: int, more_bytes: int) -> bytes:
    """A snapshot of a run that loads so much, and then takes more in its forward."""
    events: list[Event] = [Alloc(0, before_bytes), Alloc(1, more_bytes)]
    content = snapshot(events)
    loaded, forward = [each for each in content["device_traces"][0] if each["action"] == "alloc"]
    loaded["frames"], forward["frames"] = [], FORWARD
    return pickle.dumps(content)
