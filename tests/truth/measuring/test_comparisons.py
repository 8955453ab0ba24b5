"""Predicted beside measured."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from planner.errors import PlannerError
from planner.events import Alloc, Category, Event, Free, Mark, Phase, Role
from planner.report.statement import (
    OutsideAllocator,
    Peak,
    PhaseStatement,
    Plan,
    Provenance,
    RankClassStatement,
    Verdict,
)
from planner.truth import plan_comparison
from planner.truth.measuring import measurement_lines
from planner.truth.measuring.measurement_lines import DeviceFacts, Measurement
from planner.truth.plan_comparison import Figure, render, to_json

Build = Callable[..., Measurement]


@pytest.fixture
def plan() -> Plan:
    peak = Peak(
        phase=Phase.FORWARD, iteration=1, allocated_bytes=303, reserved_bytes=400, device_bytes=990,
        interval_bytes=(900, 1100),
    )  # fmt: skip
    statement = RankClassStatement(
        representative=0,
        ranks="0-7",
        coordinates={"dp_replicate": 0},
        peak=peak,
        capacity_bytes=2000,
        verdict=Verdict.FITS,
        cache_releases=0,
        at_peak={},
        phases=(
            PhaseStatement(
                phase=Phase.FORWARD, iteration=1, peak_allocated_bytes=303, peak_reserved_bytes=400,
                end_allocated_bytes=250,
            ),
        ),
        outside_allocator=OutsideAllocator(cuda_context_bytes=500),
        holders=(),
    )  # fmt: skip
    provenance = Provenance(planner="0", torch="2.13.0+cpu", allocator_rules="a", catalog="b", calibration="none")
    return Plan(
        plan_id="pl-a", trace_id="t", calibrated=False, gpu="H100-SXM-80GB", nodes=1, gpus_per_node=1,
        rank_classes=(statement,), provenance=provenance,
    )  # fmt: skip


def test_the_error_is_that_of_dnnmem() -> None:
    assert Figure(name="x", predicted=90, measured=100).error_percent == 10.0
    assert Figure(name="x", predicted=110, measured=100).error_percent == 10.0
    assert Figure(name="x", predicted=5, measured=0).error_percent is None


def test_peaks_and_phases_stand_side_by_side(plan: Plan, measurement: Build) -> None:
    found = plan_comparison.with_measurement(plan, measurement(rank=3, device_bytes_by="process"))
    assert found.peak == (
        Figure(name="allocated", predicted=303, measured=300),
        Figure(name="reserved", predicted=400, measured=400),
        Figure(name="device", predicted=990, measured=900),
        Figure(name="outside", predicted=500, measured=500),
    )
    (forward,) = found.phases
    assert forward.figures[0] == Figure(name="allocated", predicted=303, measured=300)
    assert forward.figures[2] == Figure(name="allocated_at_end", predicted=250, measured=250)
    assert found.notes == ()


def test_what_other_processes_hold_is_not_taken_for_what_lives_outside(plan: Plan, measurement: Build) -> None:
    found = plan_comparison.with_measurement(plan, measurement(device_bytes_by="device"))
    assert [each.name for each in found.peak] == ["allocated", "reserved", "device"]


def test_a_rank_that_the_plan_does_not_have_is_refused(plan: Plan, measurement: Build) -> None:
    with pytest.raises(PlannerError, match="no rank 8"):
        plan_comparison.with_measurement(plan, measurement(rank=8))


def test_other_software_and_absent_peers_are_noted(plan: Plan, measurement: Build) -> None:
    notes = plan_comparison.with_measurement(
        plan, measurement(software={"torch": "2.11.0+cu130"}, peers="absent")
    ).notes
    assert notes == (
        "predicted with torch 2.13.0+cpu, measured with torch 2.11.0+cu130",
        "measured with absent peers: NCCL's own memory is not in it",
    )


def test_a_cpu_is_compared_by_what_is_kept(plan: Plan, measurement: Build) -> None:
    events: list[Event] = [
        Mark(Phase.LOAD), Alloc(0, 100), Role(0, Category.PARAMETER, "w"),
        Mark(Phase.FORWARD, 1), Alloc(1, 197), Free(1),
    ]  # fmt: skip
    on_cpu = replace(measurement(), device=DeviceFacts(kind="cpu"))
    with pytest.raises(PlannerError, match="measured on a CPU"):
        plan_comparison.with_measurement(plan, on_cpu)
    found = plan_comparison.with_measurement(plan, on_cpu, events=events)
    assert found.peak == ()
    assert found.categories == (
        Figure(name="parameter", predicted=100, measured=100),
        Figure(name="gradient", predicted=0, measured=100),
    )


def test_a_file_of_measurements_is_compared_case_by_case(plan: Plan, measurement: Build, tmp_path: Path) -> None:
    path = tmp_path / "measurements.jsonl"
    measurement_lines.append(
        path, [measurement(case="mlp"), measurement(case="other"), measurement(case="mlp", error="it failed")]
    )
    assert [each.case for each in plan_comparison.run_compare(plan, path)] == ["mlp", "other"]
    assert [each.case for each in plan_comparison.run_compare(plan, path, case="other")] == ["other"]
    with pytest.raises(PlannerError, match="no measurement of 'none'"):
        plan_comparison.run_compare(plan, path, case="none")


def test_each_rank_is_compared_with_the_events_of_its_own_class(plan: Plan, measurement: Build, tmp_path: Path) -> None:
    path = tmp_path / "measurements.jsonl"
    on_cpu = replace(measurement(), device=DeviceFacts(kind="cpu"))
    measurement_lines.append(path, [replace(on_cpu, rank=0), replace(on_cpu, rank=1)])
    predicted: dict[int, list[Event]] = {
        rank: [Mark(Phase.LOAD), Alloc(0, size), Role(0, Category.PARAMETER, "w")] for rank, size in ((0, 97), (1, 50))
    }

    found = plan_comparison.run_compare(plan, path, events_of=predicted.__getitem__)

    assert [each.categories[0] for each in found] == [
        Figure(name="parameter", predicted=97, measured=100),
        Figure(name="parameter", predicted=50, measured=100),
    ]


def test_it_reads_as_a_table_and_as_json(plan: Plan, measurement: Build) -> None:
    found = plan_comparison.with_measurement(plan, measurement())
    assert "allocated                               303 B          300 B   1.000 %" in render(found)
    document = to_json(found)
    assert document["schema"] == "planner.comparison/1"
    assert document["peak"][0] == {"name": "allocated", "predicted": 303, "measured": 300, "error_percent": 1.0}
    assert plan_comparison.format_comparisons([found], as_json=True).startswith('{\n  "schema": "planner.comparison/1"')
