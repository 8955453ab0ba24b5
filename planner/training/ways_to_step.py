"""What an optimizer is more than its class: divided among replicas, or stepping in the backward."""

from __future__ import annotations

from functools import partial

import torch

from planner.spec import job
from planner.training import optimizers
from planner.training.worlds import World
from planner.training.wraps import deepspeed_zero, in_backward, zero_redundancy


def chosen(spec: job.Job, world: World) -> optimizers.Made:
    """How the job's optimizer is made."""
    if spec.parallel.deepspeed is not None:
        group = world.group("dp_replicate") if world.degree("dp_replicate") > 1 else None
        return partial(deepspeed_zero.DividedByDeepSpeed, spec=spec, group=group, rank=world.rank)
    if spec.parallel.dp_replicate.zero_redundancy_optimizer:
        return partial(zero_redundancy.divided, group=world.group("dp_replicate"))
    return in_backward.each_alone if spec.train.optimizer_in_backward else optimizers.plain


def parts(optimizer: torch.optim.Optimizer) -> tuple[int, ...]:
    """For each replica the number of the part of a divided optimizer that it has; empty where each has all of it."""
    return deepspeed_zero.parts(optimizer) or zero_redundancy.parts(optimizer)
