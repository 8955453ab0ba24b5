"""Finds the GPU that a job names."""

from __future__ import annotations

from planner.errors import SpecError
from planner.hardware import catalog
from planner.hardware.records import GpuRecord
from planner.job.nearest import did_you_mean, nearest


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


def _near(name: str) -> list[str]:
    called = [gpu.name for gpu in catalog.by_alias(name)]
    return list(dict.fromkeys(called + nearest(name, catalog.names(), count=4)))
