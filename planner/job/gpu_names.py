"""Finds GPUs by name, and puts a job on one."""

from __future__ import annotations

import dataclasses

from planner.errors import SpecError
from planner.hardware import catalog
from planner.hardware.records import GpuRecord
from planner.job.nearest import did_you_mean, nearest
from planner.job.schema import Gpu, Job


def look_up(name: str, *, place: str = "") -> GpuRecord:
    """The GPU of that name, in letters of either case; SpecError with the nearest names if there is none."""
    if (found := catalog.by_name(name)) is not None:
        return found
    raise SpecError(
        f"there is no GPU `{name[:80]}` in the catalog",
        allowed=", ".join(_near(name) or catalog.names()) + "; or {total_bytes: 79.1GiB, arch: sm_90}",
        remedy=did_you_mean(name, catalog.names()),
        place=place,
    )


def job_on_gpu(job: Job, name: str, *, place: str = "") -> Job:
    """The same job on the GPU of that name. Raises SpecError as :func:`look_up` does."""
    known = look_up(name, place=place)
    gpu = Gpu(name=known.name, total_bytes=known.total_bytes, arch=known.arch)
    return dataclasses.replace(job, cluster=dataclasses.replace(job.cluster, gpu=gpu))


def _near(name: str) -> list[str]:
    called = [gpu.name for gpu in catalog.by_alias(name)]
    return list(dict.fromkeys(called + nearest(name, catalog.names(), count=4)))
