"""How models and optimizers of a program are divided over its ranks, and what of them no event says."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.optim.optimizer import Optimizer

from planner.training import optimizers
from planner.training.models.adapters import trained_elements
from planner.training.wraps import fsdp2


def describe_division(roots: Sequence[nn.Module], stepped: Optimizer) -> dict[str, Any]:
    """Fields of a trace. `roots` are the outermost modules that were called, `stepped` an optimizer that has stepped.

    What there is nothing of is left out.
    """
    modules = (module for root in roots for module in root.modules())
    replicas = (module for module in modules if isinstance(module, DistributedDataParallel))
    division = {
        "buckets": next(map(_account_of, replicas), {}),
        "sharded_dims": _sharded_dims(roots),
        "parts": optimizers.parts(stepped),
        "adapted": next(filter(None, map(trained_elements, roots)), {}),
        "unified_bytes": optimizers.unified_bytes(stepped),
    }
    return {name: value for name, value in division.items() if value}


def _account_of(model: DistributedDataParallel) -> dict[str, Any]:
    """The reducer's account of its buckets as it is at any time: a trace of the same job is the same."""
    account = model._get_ddp_logging_data()
    return {
        name: value
        for name, value in account.items()
        if isinstance(value, str | int | float | bool) and "_time" not in name
    }


def _sharded_dims(roots: Sequence[nn.Module]) -> tuple[int, ...]:
    """The sizes of the dims that are split over the ranks, each once: where they do not divide, ranks differ."""
    params = (param for root in roots for param in fsdp2.sharded_params(root))
    return tuple(sorted({param._orig_size[param.fsdp_placement.dim] for param in params}))
