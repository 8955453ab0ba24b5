"""Predicted beside measured: what is told, which error, and whether it can teach."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import pytest

from planner.errors import MeasureError
from planner.events import Alloc, Category, Event, Mark, Phase, Role
from planner.job.layout import Mesh, rank_classes
from planner.job.overhead import outside_of
from planner.job.schema import Job
from planner.planning.judging import RankTrace
from planner.planning.plan import plan_from_traces
from planner.service.validation.validation_run import RankComparison, compare_ranks
from planner.tracing.rank_trace import Trace
from planner.truth.measuring.measurement_lines import (
    DeviceFacts,
    Levels,
    MeasuredPhase,
    Measurement,
    OutOfMemory,
    Truth,
)
from planner.units import MIB

MakeJob = Callable[..., Job]
EVENTS: tuple[Event, ...] = (
    Mark(Phase.LOAD, 0),
    Alloc(0, 40 * MIB, 0, None),
    Role(0, Category.PARAMETER, "weight"),
    Mark(Phase.FORWARD, 1),
    Alloc(1, 10 * MIB, 0, None),
)
GPU = DeviceFacts(kind="cuda", name="NVIDIA H100 80GB HBM3", total_bytes=81089 * MIB, arch="sm_90", multiprocessors=132)
SOFTWARE = {"torch": "2.13.0+cu130", "cuda": "13.0"}


def levels(requested: int, reserved: int = 0) -> Levels:
    allocated = requested if reserved else 0
    return Levels(requested_bytes=requested, allocated_bytes=allocated, active_bytes=allocated, reserved_bytes=reserved)


def measured(device: DeviceFacts = GPU, **more: Any) -> Measurement:
    """40 MiB after the load, 50 at the peak; a GPU reserved 60, and the process held 600 more."""
    reserved = 60 * MIB if device.kind == "cuda" else 0
    load = MeasuredPhase(
        phase=Phase.LOAD, iteration=0, peak=levels(40 * MIB, 40 * MIB if reserved else 0),
        end=levels(40 * MIB, 40 * MIB if reserved else 0),
    )  # fmt: skip
    forward = MeasuredPhase(
        phase=Phase.FORWARD, iteration=1, peak=levels(50 * MIB, reserved), end=levels(50 * MIB, reserved),
        device_bytes=660 * MIB if reserved else 0,
    )  # fmt: skip
    about = Measurement(
        case="small", job={}, device=device, software=SOFTWARE, date="2026-01-02T03:04:05+00:00",
        phases=(load, forward), categories={"parameter": 40 * MIB},
        device_bytes_by="process" if reserved else "",
    )  # fmt: skip
    return dataclasses.replace(about, **more)


def beside(job: Job, measurement: Measurement) -> RankComparison:
    (first,) = rank_classes(Mesh.of(job.parallel))
    trace = RankTrace(first, Trace(events=EVENTS))
    return RankComparison(
        plan=plan_from_traces(job, [trace]).plan,
        events=EVENTS,
        measurement=measurement,
        outside=outside_of(job),
        gpu=job.cluster.gpu,
    )


def test_on_a_gpu_the_error_is_that_of_the_reserved_bytes(job: MakeJob) -> None:
    result = compare_ranks([beside(job(), measured())], "absent_peers")
    assert (result.error_percent, result.out_of_memory, result.torch, result.problem) == (
        pytest.approx(16.6667), False, "2.13.0+cu130", "",
    )  # fmt: skip
    document = result.document
    assert (document["mode"], document["error_of"]) == ("absent_peers", "reserved")
    assert document["device"]["name"] == "NVIDIA H100 80GB HBM3"
    (rank,) = document["ranks"]
    figures = {each["name"]: (each["predicted"], each["measured"]) for each in rank["comparison"]["peak"]}
    assert figures["allocated"] == (50 * MIB, 50 * MIB)
    assert figures["reserved"] == (50 * MIB, 60 * MIB)
    assert figures["device"][1] == 660 * MIB
    assert figures["outside"][1] == 600 * MIB
    phases = {each["phase"]: each["figures"][0] for each in rank["comparison"]["phases"]}
    assert phases["load"] == {"name": "allocated", "predicted": 40 * MIB, "measured": 40 * MIB, "error_percent": 0.0}
    assert rank["comparison"]["categories"] == [
        {"name": "parameter", "predicted": 40 * MIB, "measured": 40 * MIB, "error_percent": 0.0}
    ]
    assert (rank["predicted_verdict"], rank["out_of_memory"]) == ("fits", None)


def test_a_gpu_teaches_with_figures_of_an_uncalibrated_plan(job: MakeJob) -> None:
    document = compare_ranks([beside(job(), measured())], "absent_peers").document
    learnt = document["ranks"][0]["observation"]
    outside = outside_of(job())
    assert learnt["gpu"] == "H100-SXM-80GB"
    assert (learnt["predicted_reserved_bytes"], learnt["measured_reserved_bytes"]) == (50 * MIB, 60 * MIB)
    assert (learnt["predicted_context_bytes"], learnt["measured_context_bytes"]) == (
        outside.cuda_context_bytes, 600 * MIB,
    )  # fmt: skip
    assert (learnt["predicted_nccl_bytes"], learnt["measured_nccl_bytes"]) == (0, None)


def test_a_processor_is_compared_by_what_is_kept_and_teaches_nothing(job: MakeJob) -> None:
    truth = Truth(runs=2, agreeing=2, net_bytes=0, live_bytes=0)
    cpu = measured(DeviceFacts(kind="cpu", name="x86_64"), truth=truth)
    result = compare_ranks([beside(job(), cpu)], "absent_peers")
    assert (result.error_percent, result.document["error_of"]) == (0.0, "kept")
    assert result.document["ranks"][0]["observation"] is None
    assert result.document["ranks"][0]["predicted_verdict"] == ""


def test_the_worst_rank_is_the_error_of_all(job: MakeJob) -> None:
    worse = measured(rank=1, world_size=2, peers="present")
    worse = dataclasses.replace(
        worse, phases=tuple(dataclasses.replace(each, peak=levels(50 * MIB, 100 * MIB)) for each in worse.phases)
    )
    pair = [beside(job(ranks=2), measured(world_size=2, peers="present")), beside(job(ranks=2), worse)]
    result = compare_ranks(pair, "real_peers")
    assert result.error_percent == 50.0
    assert [each["rank"] for each in result.document["ranks"]] == [0, 1]


def test_running_out_of_memory_is_a_result_without_an_error(job: MakeJob) -> None:
    out = OutOfMemory(phase=Phase.BACKWARD, iteration=1, message="CUDA out of memory. Tried to allocate 2.00 GiB.")
    result = compare_ranks([beside(job(), measured(out_of_memory=out))], "absent_peers")
    assert (result.error_percent, result.out_of_memory, result.problem) == (None, True, "")
    assert result.document["ranks"][0]["out_of_memory"] == {
        "phase": "backward", "iteration": 1, "message": "CUDA out of memory. Tried to allocate 2.00 GiB.",
    }  # fmt: skip


def test_a_measurement_that_cannot_be_believed_has_no_error(job: MakeJob) -> None:
    doubtful = Truth(runs=8, agreeing=1, net_bytes=0, live_bytes=0)
    cpu = measured(DeviceFacts(kind="cpu", name="x86_64"), truth=doubtful)
    result = compare_ranks([beside(job(), cpu)], "absent_peers")
    assert result.error_percent is None
    assert result.problem == (
        "the measurement of rank 0 cannot be believed: its runs disagree, or the profiler missed something"
    )


@pytest.mark.parametrize(
    "other",
    [dataclasses.replace(GPU, total_bytes=39 * 2**30), dataclasses.replace(GPU, arch="sm_80")],
    ids=["less memory", "another architecture"],
)
def test_another_gpu_than_the_jobs_is_no_truth_about_it(other: DeviceFacts, job: MakeJob) -> None:
    with pytest.raises(MeasureError, match="the GPU that Ray gave is not the job's: it was NVIDIA H100"):
        compare_ranks([beside(job(), measured(other))], "absent_peers")


def test_the_same_gpu_under_another_driver_is_the_jobs(job: MakeJob) -> None:
    other = dataclasses.replace(GPU, total_bytes=80880 * MIB)
    assert compare_ranks([beside(job(), measured(other))], "absent_peers").error_percent is not None
