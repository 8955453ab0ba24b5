"""Makes the optimizer of a job: plain, divided among replicas, or stepping in the backward."""

from __future__ import annotations

from functools import partial

from planner.job import schema
from planner.training import optimizers
from planner.training.device_mesh import World
from planner.training.wraps import in_backward, zero_redundancy


def optimizer_maker(spec: schema.Job, world: World) -> optimizers.OptimizerMaker:
    """How the job's optimizer is made."""
    if spec.parallel.dp_replicate.zero_redundancy_optimizer:
        return partial(zero_redundancy.divide_optimizer, group=world.group("dp_replicate"))
    return in_backward.each_alone if spec.train.optimizer_in_backward else optimizers.plain
