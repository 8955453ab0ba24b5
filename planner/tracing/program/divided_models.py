"""How models and optimizers of a program are divided over its ranks, and what of them no event says."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.optim.optimizer import Optimizer

from planner.training import optimizers
from planner.training.models.adapters import trained_elements
from planner.training.wraps import deepspeed_engine, fsdp2
from planner.training.wraps.ddp import leave_out_clock


def describe_division(roots: Sequence[nn.Module], stepped: Optimizer) -> dict[str, Any]:
    """Fields of a trace. `roots` are the outermost modules that were called, `stepped` an optimizer that has stepped.

    What there is nothing of is left out.
    """
    modules = [module for root in roots for module in root.modules()]
    replicas = (module for module in modules if isinstance(module, DistributedDataParallel))
    division = {
        "buckets": leave_out_clock(next(map(_account_of, replicas), {})),
        "sharded_dims": tuple(sorted({size for root in roots for size in fsdp2.sharded_dims(root)})),
        "parts": optimizers.parts(stepped) or next(filter(None, map(deepspeed_engine.parts, modules)), ()),
        "adapted": next(filter(None, map(trained_elements, roots)), {}),
        "unified_bytes": optimizers.unified_bytes(stepped),
    }
    return {name: value for name, value in division.items() if value}


def _account_of(model: DistributedDataParallel) -> dict[str, Any]:
    return dict(model._get_ddp_logging_data())
