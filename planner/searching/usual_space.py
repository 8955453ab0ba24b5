"""The space that a search looks through: the usual axes, and those that somebody wrote in their place."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from planner.job.axes import AXES
from planner.job.schema import Job
from planner.searching.axes import Axis, axis_of
from planner.searching.space import Space, usual_axes


def space_of(
    job: Job,
    *,
    gpus: int,
    per_node: int,
    global_batch: int,
    fixed: Mapping[str, Sequence[int]] = {},
    gpu_names: Sequence[str] = (),
    written: Sequence[Axis] = (),
) -> Space:
    """The candidates of a job on so many GPUs. `fixed` are degrees that were said; several `gpu_names` are compared.

    A written axis of parallelism restricts the layouts, `gradient_accumulation_steps` lets the global batch vary.
    Raises SpecError for degrees that no layout has, and for unknown GPUs.
    """
    degrees = {axis.name: [change[f"parallel.{axis.name}.degree"] for change in axis.values]
               for axis in written if axis.name in AXES}  # fmt: skip
    axes = {axis.name: axis for axis in usual_axes(job, gpus, per_node, global_batch, {**fixed, **degrees})}
    if len(gpu_names) > 1:
        axes["gpu"] = axis_of("gpu", list(gpu_names), "--gpu")
    axes |= {axis.name: axis for axis in written if axis.name not in AXES}
    batch = 0 if "gradient_accumulation_steps" in axes else global_batch
    return Space(base=job, axes=tuple(axes.values()), global_batch=batch)
