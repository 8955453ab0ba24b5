"""How usual a candidate is, and how long its plan takes beside others: both decide an order, and nothing else."""

from __future__ import annotations

from planner.job.axes import axis_degrees
from planner.job.schema import Job

_TRACED_MICRO_BATCHES = 3
"""Of many equal ones (planner/training/folded_accumulation.py)."""
_RECOMPUTED = {"none": 1.0, "full": 1.35, "selective": 1.2, "every": 1.2}
_DTENSOR = 1.7
"""Operators on DTensors beside those on plain ones, by FSDP2 and TP plans of a 70B model."""


def unusual_of(job: Job) -> int:
    """How far a candidate is from what most people ask for, one kind of data parallelism with settings as they are by
    default: a second kind, tensor and expert parallelism, and settings that few change, count one each, pipelines and
    context parallelism two."""
    parallel, degrees = job.parallel, axis_degrees(job.parallel)
    return sum(
        (
            degrees["dp_replicate"] > 1 and degrees["dp_shard"] > 1,
            degrees["tp"] > 1,
            degrees["ep"] > 1,
            2 * (degrees["pp"] > 1),
            2 * (degrees["cp"] > 1),
            degrees["pp"] > 1 and parallel.pp.schedule != "1F1B",
            degrees["dp_shard"] > 1 and parallel.dp_shard.reshard_after_forward is not True,
            bool(parallel.dp_shard.offload),
            job.train.recompute.mode in ("selective", "every"),
        )
    )


def effort_of(job: Job) -> float:
    """Forward and backward passes through the whole model that are traced, weighed by what slows them down."""
    parallel, train = job.parallel, job.train
    micro_batches = train.gradient_accumulation_steps
    if parallel.pp.degree == 1:
        micro_batches = min(micro_batches, _TRACED_MICRO_BATCHES)
    passes = train.iterations * micro_batches * parallel.cp.degree  # the stages of a pipeline are one model together
    slower = _DTENSOR if parallel.tp.degree > 1 or parallel.cp.degree > 1 else 1.0
    return passes * _RECOMPUTED[train.recompute.mode] * slower
