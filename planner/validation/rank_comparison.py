"""Compares each rank's measurement with its plan: the result of a validation, with one error over all."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from planner.calibration.observation import Observation, make_observation
from planner.comparing.comparison import Comparison, Figure, to_json
from planner.comparing.plan_comparison import with_measurement
from planner.errors import MeasureError
from planner.events import Event
from planner.job.schema import Gpu
from planner.layout.rank_sets import RankSet
from planner.measuring.measurement import DeviceFacts, Measurement
from planner.overhead.estimate import OutsideEstimate
from planner.report.statement import Plan, RankClassStatement, Verdict
from planner.units import show_bytes

ALIKE = 0.03
"""By how much the memory of two GPUs of one kind differs, relative: 200 MiB between drivers (hardware/records.py), and
ECC; 40 GB from 80 GB it tells in any case."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RankComparison:
    """One rank, predicted without a calibration and measured. `outside` is the prediction's, of what really ran."""

    plan: Plan
    events: Sequence[Event]
    measurement: Measurement
    outside: OutsideEstimate
    gpu: Gpu


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """What a validation found. `problem` says why it cannot be believed, if it cannot."""

    document: Mapping[str, Any]
    error_percent: float | None
    out_of_memory: bool
    torch: str
    problem: str = ""
    comparisons: tuple[Comparison, ...] = ()
    """Those of the ranks, as values."""


def compare_ranks(ranks: Sequence[RankComparison], mode: str) -> Result:
    """The result of all ranks that were asked for, at least one.

    Raises MeasureError if they were measured on a GPU that is not the job's.
    """
    for each in ranks:
        check_device(each.gpu, each.measurement.device)
    compared = [with_measurement(each.plan, each.measurement, events=each.events) for each in ranks]
    doubted = [each for each in ranks if each.measurement.truth is not None and not each.measurement.truth.believed]
    out_of_memory = any(each.measurement.out_of_memory is not None for each in ranks)
    error = None if doubted or out_of_memory else _error(ranks, compared)
    first = ranks[0].measurement
    document = {
        "mode": mode,
        "device": dataclasses.asdict(first.device),
        "software": dict(first.software),
        "error_percent": error,
        "error_of": error_of(first),
        "out_of_memory": out_of_memory,
        "ranks": [_rank(each, comparison) for each, comparison in zip(ranks, compared, strict=True)],
    }
    return Result(
        document=document,
        error_percent=error,
        out_of_memory=out_of_memory,
        torch=first.software.get("torch", ""),
        problem=_doubt([each.measurement.rank for each in doubted]) if doubted else "",
        comparisons=tuple(compared),
    )


def error_of(measurement: Measurement) -> str:
    """Of which figure the error is told: a CPU has nothing but requested bytes."""
    return "requested" if measurement.device.kind == "cpu" else "reserved"


def check_device(gpu: Gpu, device: DeviceFacts) -> None:
    """Raises MeasureError for a GPU that is not the job's, by architecture or by memory; a CPU is anybody's."""
    if device.kind == "cpu":
        return
    wanted = f"{gpu.name or gpu.arch}, {show_bytes(gpu.total_bytes)}"
    there = f"it was {device.name} with {show_bytes(device.total_bytes)} ({device.arch})"
    other_arch = gpu.arch.startswith("sm_") and device.arch != gpu.arch
    if other_arch or abs(device.total_bytes - gpu.total_bytes) > ALIKE * gpu.total_bytes:
        raise MeasureError(
            f"the GPU that Ray gave is not the job's: {there}",
            allowed=wanted,
            remedy="give the nodes a label ray.io/accelerator-type that tells these GPUs apart, or name the GPU there",
        )


def observation_of(beside: RankComparison) -> Observation | None:
    """What the comparison can teach; None for a CPU, and for a GPU that has no name."""
    measured = beside.measurement
    if measured.device.kind == "cpu" or not beside.gpu.name:
        return None
    statement = _statement(beside.plan, measured.rank)
    present = measured.peers == "present"
    return make_observation(
        gpu=beside.gpu.name,
        torch=measured.software.get("torch", ""),
        cuda=measured.software.get("cuda", ""),
        world_size=measured.world_size,
        case=measured.case or beside.plan.plan_id,
        reserved_bytes=(statement.peak.reserved_bytes, measured.peak.reserved_bytes),
        predicted_context_bytes=beside.outside.cuda_context_bytes,
        predicted_nccl_bytes=beside.outside.nccl_bytes if present else 0,
        device_bytes=_device_bytes(measured),
        device_bytes_by=measured.device_bytes_by,
        device_total_bytes=measured.device.total_bytes,
        peers=measured.peers,
        predicted_out_of_memory=statement.verdict is Verdict.EXCEEDS,
        measured_out_of_memory=measured.out_of_memory is not None,
        date=measured.date,
    )


def _rank(beside: RankComparison, comparison: Comparison) -> dict[str, Any]:
    measured, statement = beside.measurement, _statement(beside.plan, beside.measurement.rank)
    learnt = observation_of(beside)
    out = measured.out_of_memory
    return {
        "rank": measured.rank,
        "peers": measured.peers,
        "seconds": measured.seconds,
        "comparison": to_json(comparison),
        "predicted_verdict": "" if measured.device.kind == "cpu" else statement.verdict.value,
        "out_of_memory": dataclasses.asdict(out) if out is not None else None,
        "device_bytes_by": measured.device_bytes_by,
        "context_bytes": measured.context_bytes,
        "observation": dataclasses.asdict(learnt) if learnt is not None else None,
    }


def _error(ranks: Sequence[RankComparison], compared: Sequence[Comparison]) -> float | None:
    """That of the worst rank."""
    found = [_of(comparison.peak, error_of(each.measurement)) for each, comparison in zip(ranks, compared, strict=True)]
    known = [each for each in found if each is not None]
    return round(max(known), 4) if known else None


def _of(figures: Sequence[Figure], name: str) -> float | None:
    return next((figure.error_percent for figure in figures if figure.name == name), None)


def _device_bytes(measured: Measurement) -> int:
    return max((each.device_bytes for each in measured.phases), default=0)


def _statement(plan: Plan, rank: int) -> RankClassStatement:
    return next(each for each in plan.rank_classes if rank in RankSet.parse(each.ranks))


def _doubt(ranks: Sequence[int]) -> str:
    whose = ", ".join(map(str, ranks))
    return f"the measurement of rank {whose} cannot be believed: its runs disagree, or the profiler missed something"
