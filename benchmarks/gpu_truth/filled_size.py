"""Chooses on paper the micro-batch with which a case of the matrix fills a device: a child of the campaign."""

from __future__ import annotations

import datetime
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from gpu_truth.matrix import cases
from planner.errors import MeasureError
from planner.job.schema import Gpu, Job, Software
from planner.planning import identity
from planner.planning.gpu_truth import gpu_of
from planner.runtime.messages import AnswerWriter
from planner.searching.exact_plans import Exact, PlansHere, Refused
from planner.searching.extremes import with_size
from planner.truth.measuring import measurement_lines
from planner.truth.measuring.measurement_lines import DeviceFacts, Measurement

_FILLED = 0.92
"""Of the capacity: nothing was measured there yet, and a step that runs out of memory shows less than one that ends."""
_REHEARSED = Gpu(total_bytes=1 << 30, arch="sm_90")
"""What a rehearsal on a CPU fills: a GPU of one GiB, most of which its context takes."""
_LOW, _HIGH = 1, 4
_LESS = 0.95
_MOST = 4096


def choose_one(asked: Mapping[str, Any], _: AnswerWriter) -> None:
    """The child's side: a line with the size goes into the file of the case."""
    case = next(each for each in cases(small=asked["small"]) if each.name == asked["of"])
    assert case.job is not None
    size = choose_size(case.job, _device_of(asked))
    line = Measurement(
        case=asked["name"],
        job={},
        device=DeviceFacts(kind="paper"),
        software=dict(identity.software()),
        date=datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        operator={"micro_batch_size": size, "of": case.name},
    )
    measurement_lines.append(Path(asked["out"]) / f"{asked['name']}.jsonl", [line])


def choose_size(job: Job, gpu: Gpu) -> int:
    """A micro-batch whose step fills 92 % of the GPU: on the line through two small ones, then less until it fits.

    Not the largest, which `planner max` finds with more plans. Raises MeasureError if not even one fits.
    """
    room = replace(gpu, total_bytes=round(gpu.total_bytes * _FILLED))
    software = Software(torch=identity.installed_torch(), cuda=job.software.cuda)
    placed = replace(job, cluster=replace(job.cluster, gpu=room), software=software)
    smallest, second = _plan(placed, _LOW), _plan(placed, _HIGH)
    growth = (second.allocated_bytes - smallest.allocated_bytes) / (_HIGH - _LOW)
    size = _LOW + int((room.total_bytes - smallest.allocated_bytes) / max(growth, 1.0))
    size = min(size, _MOST)
    while size > 1 and not _plan(placed, size).fits:
        size = int(size * _LESS)
    if size < 1 or (size == 1 and not smallest.fits):
        raise MeasureError(f"not even a micro-batch of one fits in {room.total_bytes:,} bytes")
    return size


def _plan(job: Job, size: int) -> Exact:
    (found,) = PlansHere().submit([with_size(job, "micro_batch_size", size)]).result()
    if isinstance(found, Refused):
        raise MeasureError(f"a micro-batch of {size} cannot be planned: {found.reason}")
    return found


def _device_of(asked: Mapping[str, Any]) -> Gpu:
    facts = asked["device_facts"]
    if facts:
        return gpu_of(DeviceFacts(**facts))
    if asked["device"] == "cpu":
        return _REHEARSED
    raise MeasureError(
        "no case has said yet what the device is, so nothing says how much fills it",
        remedy="measure a case of another group first: device-bytes-lazy takes seconds",
    )
