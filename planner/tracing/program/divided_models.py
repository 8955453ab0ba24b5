"""How models and optimizers of a program are divided over its ranks, and what of them no event says."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
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
    modules = [module for root in roots for module in root.modules()]
    replicas = (module for module in modules if isinstance(module, DistributedDataParallel))
    division = {
        "buckets": next(map(_account_of, replicas), {}),
        "sharded_dims": _sharded_dims(roots),
        "parts": optimizers.parts(stepped) or next(filter(None, map(_parts, modules)), ()),
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


def _parts(engine: Any) -> tuple[int, ...]:
    """For each rank the kind of its partition under DeepSpeed's stages 1 and 2; none under 3, whose are alike."""
    groups = getattr(getattr(engine, "optimizer", None), "bit16_groups", None)
    if groups is None or len(groups) > 1:
        return ()
    (group,) = groups
    ranks = torch.distributed.get_world_size(engine.optimizer.dp_process_group)
    return Partitions(tuple(parameter.numel() for parameter in group), ranks).kinds()


_START_ALIGNMENT = 2
"""Elements, so that a partition of 16-bit numbers starts at 4 bytes."""
_MOST_KINDS = 8


@dataclass(frozen=True)
class Partitions:
    """How DeepSpeed's stages 1 and 2 divide parameters; `sizes` are their elements, in the order of the optimizer."""

    sizes: tuple[int, ...]
    ranks: int

    @property
    def total(self) -> int:
        """Elements of the flat buffer, padding included."""
        alignment = _START_ALIGNMENT * self.ranks
        return -(-sum(self.sizes) // alignment) * alignment

    @property
    def size(self) -> int:
        """Elements of each partition."""
        return self.total // self.ranks

    @cached_property
    def shares(self) -> list[list[tuple[int, int]]]:
        """For each rank, of each parameter in its partition: the elements of the whole, and those that are in it."""
        shares: list[list[tuple[int, int]]] = [[] for _ in range(self.ranks)]
        start = 0
        for size in self.sizes:
            end = start + size
            while start < end:
                rank = start // self.size
                stop = min(end, (rank + 1) * self.size)
                shares[rank].append((size, stop - start))
                start = stop
        return shares

    def kinds(self) -> tuple[int, ...]:
        """For each rank a number, equal where two hold gradients of the same sizes.

        Where there are more than eight kinds, three are left, so that a plan does not grow with the world: the ranks
        that hold most, those that hold least, and all others, whose sizes lie in between.
        """
        shapes = [(sum(whole for whole, _ in share), tuple(sorted(share))) for share in self.shares]
        ordered = sorted(set(shapes))
        if len(ordered) > _MOST_KINDS:
            return tuple(0 if shape == ordered[-1] else 1 if shape == ordered[0] else 2 for shape in shapes)
        return tuple(map(ordered.index, shapes))
