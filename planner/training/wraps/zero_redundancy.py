"""ZeRO stage 1 as torch has it: `torch.distributed.optim.ZeroRedundancyOptimizer` beside DistributedDataParallel.

Every replica keeps the optimizer's state of its own part of the parameters, updates them, and sends them to the others.
The parts are whole parameters, given largest first to whoever has the least so far (torch 2.13,
torch/distributed/optim/zero_redundancy_optimizer.py): they differ in size.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.optim.optimizer import Optimizer


def divide_optimizer(
    kind: type[Optimizer], trained: Sequence[nn.Parameter], arguments: dict[str, Any], group: dist.ProcessGroup | None
) -> Optimizer:
    """An optimizer of this kind over this replica's part; `group` are the replicas (None: the whole world)."""
    # Jobs that ask for it alone pay for the import.
    from torch.distributed.optim import ZeroRedundancyOptimizer

    return ZeroRedundancyOptimizer(trained, kind, process_group=group, **arguments)


def parts(optimizer: Optimizer) -> tuple[int, ...]:
    """For each replica the number of the part it has: equal where two have parameters of the same shapes.

    Empty for an optimizer that is not divided.
    """
    partition = getattr(optimizer, "_partition_parameters", None)
    if partition is None:
        return ()
    numbers: dict[Any, int] = {}
    shapes = (tuple(_kinds(groups)) for groups in partition())
    return tuple(numbers.setdefault(each, len(numbers)) for each in shapes)


def _kinds(groups: Sequence[dict[str, Any]]) -> list[tuple[torch.Size, torch.dtype]]:
    return [(parameter.shape, parameter.dtype) for group in groups for parameter in group["params"]]
