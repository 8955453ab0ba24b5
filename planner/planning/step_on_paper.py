"""One step on paper, as a line that stands beside the measured one: a child of `planner gpu-truth`."""

from __future__ import annotations

import datetime
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from planner.calibration.interval import Calibration
from planner.hardware import catalog
from planner.job import bundle
from planner.job.loading import load_bundle
from planner.job.schema import Gpu, Job, Software
from planner.layout.rank_sets import RankSet
from planner.measuring import store
from planner.measuring.event_phases import phases_of
from planner.measuring.measurement import DeviceFacts, Levels, MeasuredPhase, Measurement
from planner.planning import identity, pipeline
from planner.report.statement import RankClassStatement
from planner.runtime.channel import AnswerWriter
from planner.units import GIB

_USUAL_ARCH = "sm_90"
_ROOMY_BYTES = 1024 * GIB
"""Of a GPU that nobody named: what a step takes is asked for, not whether it fits."""


def plan_one(asked: Mapping[str, Any], _: AnswerWriter) -> None:
    """The child's side: one line more in the file `out`. `job` is a bundle; `gpu` the name of a device that has run it,
    else `device` is `paper:sm_90`, say."""
    arch = asked["device"].partition(":")[2] or _USUAL_ARCH
    job = load_bundle(asked["job"], asked["name"])
    named = catalog.by_any_name(asked.get("gpu") or "")
    gpu = _gpu_named(asked["gpu"]) if named else Gpu(total_bytes=_ROOMY_BYTES, arch=arch)
    line = on_paper(job, gpu, rank=asked.get("rank", 0), case=asked["name"])
    store.append(Path(asked["out"]), [line])


def on_paper(job: Job, gpu: Gpu, *, rank: int = 0, case: str = "") -> Measurement:
    """What the step of one rank takes on paper, phase by phase, with the torch that is installed and no calibration."""
    software = Software(torch=identity.installed_torch(), cuda=job.software.cuda)
    placed = replace(job, cluster=replace(job.cluster, gpu=gpu), software=software)
    found = pipeline.plan_with_traces(placed, Calibration.none())
    statement = next(each for each in found.plan.rank_classes if rank in RankSet.parse(each.ranks))
    return Measurement(
        case=case or job.metadata.name,
        job=bundle.bundle(placed),
        device=DeviceFacts(kind="paper", name=gpu.name, total_bytes=gpu.total_bytes, arch=gpu.arch),
        software=dict(identity.software()),
        date=datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        phases=_phases(statement, phases_of(found.events_of(rank))),
        rank=rank,
        peers="absent" if len(found.plan.rank_classes) > 1 else "none",
        allocator_conf=job.allocator.conf,
        seconds=found.plan.seconds.total,
    )


def gpu_of(device: DeviceFacts) -> Gpu:
    """The GPU of a measurement: by the catalog's name where it has one, with the memory that the driver says."""
    known = _gpu_named(device.name)
    return replace(known, total_bytes=device.total_bytes or known.total_bytes, arch=device.arch or known.arch)


def _gpu_named(name: str) -> Gpu:
    found = catalog.by_any_name(name)
    if len(found) != 1:
        return Gpu(total_bytes=0, arch="")
    return Gpu(name=found[0].name, total_bytes=found[0].total_bytes, arch=found[0].arch)


def _phases(statement: RankClassStatement, requested: tuple[MeasuredPhase, ...]) -> tuple[MeasuredPhase, ...]:
    asked = {(each.phase, each.iteration): each for each in requested}
    nothing = Levels()
    return tuple(
        MeasuredPhase(
            phase=each.phase,
            iteration=each.iteration,
            peak=Levels(
                requested_bytes=here.peak.requested_bytes if here else nothing.requested_bytes,
                allocated_bytes=each.peak_allocated_bytes,
                active_bytes=each.peak_allocated_bytes,
                reserved_bytes=each.peak_reserved_bytes,
            ),
            end=Levels(
                requested_bytes=here.end.requested_bytes if here else nothing.requested_bytes,
                allocated_bytes=each.end_allocated_bytes,
            ),
        )
        for each in statement.phases
        for here in (asked.get((each.phase, each.iteration)),)
    )
