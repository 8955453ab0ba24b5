"""The verdict on a job on every GPU of the catalog, or on those that are named; and the smallest that is enough."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from planner.errors import SpecError
from planner.hardware import catalog
from planner.hardware.gpus import GpuRecord
from planner.job import named_gpus
from planner.job.layout import Mesh
from planner.job.schema import Job
from planner.report.style import Style, size
from planner.searching.axes import axis_of
from planner.searching.exact_plans import Plans
from planner.searching.space import Space
from planner.searching.sweeping import Point, sweep

ALL = "all"
SCHEMA = "planner.gpus/1"


@dataclass(frozen=True, slots=True)
class OnGpu:
    """One GPU, and what was said of the job on it."""

    gpu: GpuRecord
    point: Point


@dataclass(frozen=True, slots=True)
class EveryGpu:
    """All of them, the one with the least memory first. `stopped`: `time` or `interrupted`."""

    rows: tuple[OnGpu, ...]
    slices_left_out: bool
    """NCCL does not join the ranks of slices."""
    stopped: str = ""

    @property
    def smallest(self) -> GpuRecord | None:
        """The smallest on which the job fits, not only just; of equals that with fewer multiprocessors."""
        return next((row.gpu for row in self.rows if row.point.verdict == "fits"), None)


def plan_on(
    job: Job,
    written: str,
    plans: Plans,
    progress: Callable[[str], None] = lambda _: None,
    decided: Callable[[OnGpu], None] = lambda _: None,
) -> EveryGpu:
    """The job on the GPUs that a word names: `all`, or names behind commas; `decided` is told each as soon as its
    verdict is known. One trace for each architecture; a MIG slice is judged by that of the whole GPU, of which some
    kernels take more scratch memory. Raises SpecError."""
    alone = Mesh.of(job.parallel).world_size == 1
    records = sorted(_named(written, alone=alone), key=lambda gpu: (gpu.total_bytes, gpu.multiprocessors, gpu.name))
    space = Space(base=job, axes=(axis_of("gpu", [gpu.name for gpu in records]),))
    result = sweep(space, plans, progress, lambda point: decided(OnGpu(records[point.number], point)))
    rows = tuple(OnGpu(gpu, point) for gpu, point in zip(records, result.points, strict=True))
    return EveryGpu(rows, slices_left_out=written == ALL and not alone, stopped=result.stopped)


def _named(written: str, *, alone: bool) -> list[GpuRecord]:
    if written != ALL:
        named = [named_gpus.look_up(name.strip(), place="--on") for name in written.split(",") if name.strip()]
        if not named:
            raise SpecError("no GPU is named", allowed=f"{ALL}, or names behind commas", place="--on")
        return list({gpu.name: gpu for gpu in named}.values())
    slices = [part for parts in catalog.slices().values() for part in parts] if alone else []
    return [*catalog.gpus().values(), *slices]


def gpus_to_json(found: EveryGpu) -> dict[str, Any]:
    """The document `planner.gpus/1`."""
    smallest = found.smallest
    return {
        "schema": SCHEMA,
        "smallest": smallest.name if smallest else None,
        "gpus": [_row_to_json(row) for row in found.rows],
        "stopped": found.stopped or None,
    }


def _row_to_json(row: OnGpu) -> dict[str, Any]:
    exact = row.point.exact
    return {
        "gpu": row.gpu.name,
        "arch": row.gpu.arch,
        "total_bytes": row.gpu.total_bytes,
        "verdict": row.point.verdict,
        "device_bytes": exact.device_bytes if exact else None,
        "headroom_bytes": exact.headroom_bytes if exact else None,
        "least_bytes": row.point.least_bytes or None,
        "refused": row.point.refused or None,
    }


_NAME = 24
"""Characters of the longest name of the catalog."""
_COLORS = {"fits": "green", "tight": "yellow", "exceeds": "red"}


def gpu_line(row: OnGpu, style: Style) -> str:
    """The GPU with its verdict, as a line of the table."""
    exact, least = row.point.exact, row.point.least_bytes
    needs = size(exact.device_bytes) if exact else f"> {size(least)}" if least else "-"
    headroom = size(exact.headroom_bytes) if exact else "-"
    verdict = style.paint(row.point.verdict, _COLORS.get(row.point.verdict, "dim"))
    return f"{row.gpu.name:<{_NAME}}{size(row.gpu.total_bytes):>13}{needs:>14}{headroom:>13}  {verdict}"


def render_gpus(found: EveryGpu, style: Style) -> str:
    """One table for a terminal, and the smallest that is enough."""
    return "\n".join(_lines(found, style)) + "\n"


def _lines(found: EveryGpu, style: Style) -> Iterator[str]:
    yield style.paint(f"{'GPU':<{_NAME}}{'memory':>13}{'needs':>14}{'headroom':>13}  verdict", "bold")
    yield from (gpu_line(row, style) for row in found.rows)
    yield ""
    smallest = found.smallest
    yield f"The smallest on which it fits: {smallest.name if smallest else 'none of these'}."
    for why in dict.fromkeys(row.point.refused for row in found.rows if row.point.refused):
        yield f"Not planned: {why}."
    if found.slices_left_out:
        yield "MIG slices are left out: NCCL does not join the ranks of several (NVIDIA/nccl#1716)."
    if found.stopped:
        yield "It was stopped before all were planned."
