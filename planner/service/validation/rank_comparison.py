"""Compares each rank's measurement with its plan."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from planner.errors import MeasureError
from planner.events import Event
from planner.job.overhead import OutsideEstimate
from planner.job.rank_sets import RankSet
from planner.job.schema import Gpu
from planner.report.statement import Plan, Verdict
from planner.truth.calibration.observation import make_observation
from planner.truth.measuring.measurement_lines import DeviceFacts, Measurement
from planner.truth.plan_comparison import Comparison, to_json, with_measurement
from planner.units import show_bytes

ALIKE = 0.03
"""By how much the memory of two GPUs of one kind differs, relative: 200 MiB between drivers (hardware/gpus.py), and
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


def compare_ranks(ranks: Sequence[RankComparison], mode: str) -> Result:
    """The result of all ranks that were asked for, at least one: its error is that of the worst rank.

    Raises MeasureError if they were measured on a GPU that is not the job's.
    """
    for rank in ranks:
        _refuse_other_gpu(rank.gpu, rank.measurement.device)
    compared = tuple(with_measurement(rank.plan, rank.measurement, events=rank.events) for rank in ranks)
    doubted = [
        str(rank.measurement.rank)
        for rank in ranks
        if rank.measurement.truth is not None and not rank.measurement.truth.believed
    ]
    out_of_memory = any(rank.measurement.out_of_memory is not None for rank in ranks)
    first = ranks[0].measurement
    on_cpu = first.device.kind == "cpu"
    error_of = "kept" if on_cpu else "reserved"  # parameters, gradients, buckets and optimizer state
    errors = [
        figure.error_percent
        for comparison in compared
        for figure in (comparison.categories if on_cpu else comparison.peak)
        if (on_cpu or figure.name == error_of) and figure.error_percent is not None
    ]
    error = round(max(errors), 4) if errors and not doubted and not out_of_memory else None
    document = {
        "mode": mode,
        "device": dataclasses.asdict(first.device),
        "software": dict(first.software),
        "error_percent": error,
        "error_of": error_of,
        "out_of_memory": out_of_memory,
        "ranks": [_rank(rank, comparison) for rank, comparison in zip(ranks, compared, strict=True)],
    }
    doubt = (
        f"the measurement of rank {', '.join(doubted)} cannot be believed: its runs disagree, or the profiler missed "
        "something"
    )
    return Result(
        document=document,
        error_percent=error,
        out_of_memory=out_of_memory,
        torch=first.software.get("torch", ""),
        problem=doubt if doubted else "",
        comparisons=compared,
    )


def _refuse_other_gpu(gpu: Gpu, device: DeviceFacts) -> None:
    """By architecture or by memory; a CPU is anybody's."""
    other_arch = gpu.arch.startswith("sm_") and device.arch != gpu.arch
    other_memory = abs(device.total_bytes - gpu.total_bytes) > ALIKE * gpu.total_bytes
    if device.kind != "cpu" and (other_arch or other_memory):
        there = f"it was {device.name} with {show_bytes(device.total_bytes)} ({device.arch})"
        raise MeasureError(
            f"the GPU that Ray gave is not the job's: {there}",
            allowed=f"{gpu.name or gpu.arch}, {show_bytes(gpu.total_bytes)}",
            remedy="give the nodes a label ray.io/accelerator-type that tells these GPUs apart, or name the GPU there",
        )


def _rank(rank: RankComparison, comparison: Comparison) -> dict[str, Any]:
    measured = rank.measurement
    on_cpu, out = measured.device.kind == "cpu", measured.out_of_memory
    statement = next(ranks for ranks in rank.plan.rank_classes if measured.rank in RankSet.parse(ranks.ranks))
    observation = None
    if not on_cpu and rank.gpu.name:  # else the comparison can teach nothing
        observation = make_observation(
            gpu=rank.gpu.name,
            torch=measured.software.get("torch", ""),
            cuda=measured.software.get("cuda", ""),
            world_size=measured.world_size,
            case=measured.case or rank.plan.plan_id,
            reserved_bytes=(statement.peak.reserved_bytes, measured.peak.reserved_bytes),
            predicted_context_bytes=rank.outside.cuda_context_bytes,
            predicted_nccl_bytes=rank.outside.nccl_bytes if measured.peers == "present" else 0,
            device_bytes=max((phase.device_bytes for phase in measured.phases), default=0),
            device_bytes_by=measured.device_bytes_by,
            device_total_bytes=measured.device.total_bytes,
            peers=measured.peers,
            predicted_out_of_memory=statement.verdict is Verdict.EXCEEDS,
            measured_out_of_memory=out is not None,
            date=measured.date,
        )
    return {
        "rank": measured.rank,
        "peers": measured.peers,
        "seconds": measured.seconds,
        "comparison": to_json(comparison),
        "predicted_verdict": "" if on_cpu else statement.verdict.value,
        "out_of_memory": dataclasses.asdict(out) if out is not None else None,
        "device_bytes_by": measured.device_bytes_by,
        "context_bytes": measured.context_bytes,
        "observation": dataclasses.asdict(observation) if observation is not None else None,
    }
