"""Sharded data parallelism by flat parameters: PyTorch's own `FullyShardedDataParallel` (FSDP 1).

Along `dp_shard` the parameters of each block, and of the root with what is left, lie in one flat parameter that is
sharded; along `dp_replicate` the shards are replicated (HYBRID_SHARD).
"""

from __future__ import annotations

import warnings
import weakref
from collections.abc import Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import (
    BackwardPrefetch,
    CPUOffload,
    FullyShardedDataParallel,
    MixedPrecision,
    ShardingStrategy,
)
from torch.distributed.fsdp.wrap import CustomPolicy, size_based_auto_wrap_policy

from planner.errors import SpecError
from planner.job import schema
from planner.training.models.build import STANDARD_DEVIATION
from planner.training.wraps.fsdp2 import find_groups


def shard(
    model: nn.Module,
    blocks: Sequence[nn.Module],
    spec: schema.DpShard,
    mesh: DeviceMesh,
    device: torch.device,
    *,
    mixed: bool,
) -> FullyShardedDataParallel:
    """The model, which has no memory yet, in units that get theirs on `device` and are sharded one after the other.

    `mesh` has one dim, or two for HYBRID_SHARD. Raises SpecError for what torch refuses to make flat.
    """
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*NO_SHARD.*", category=FutureWarning)
        try:
            return FullyShardedDataParallel(
                model,
                device_mesh=mesh,
                sharding_strategy=_strategy(spec, mesh),
                cpu_offload=CPUOffload(offload_params=spec.offload == "cpu"),
                auto_wrap_policy=_wrap_policy(model, blocks, spec),
                backward_prefetch=None if spec.backward_prefetch == "" else BackwardPrefetch[spec.backward_prefetch],
                mixed_precision=_policy(spec) if mixed else None,
                param_init_fn=_Materializer(device),
                device_id=device,
                sync_module_states=spec.sync_module_states,
                forward_prefetch=spec.forward_prefetch,
                limit_all_gathers=spec.limit_all_gathers,
                use_orig_params=spec.use_orig_params,
            )
        except ValueError as refusal:
            takes_both = (
                "use_orig_params: true takes trained and frozen parameters in one unit, wrap_trained: true gives"
                " trained layers units of their own"
            )
            raise SpecError(
                f"FullyShardedDataParallel refuses the model: {str(refusal).partition(chr(10))[0]}",
                remedy=takes_both if "requires_grad" in str(refusal) else "",
                place="parallel.dp_shard",
            ) from refusal


def _strategy(spec: schema.DpShard, mesh: DeviceMesh) -> ShardingStrategy:
    if spec.no_shard:
        return ShardingStrategy.NO_SHARD
    if mesh.ndim > 1:
        return ShardingStrategy.HYBRID_SHARD if spec.reshard_after_forward else ShardingStrategy._HYBRID_SHARD_ZERO2
    return ShardingStrategy.FULL_SHARD if spec.reshard_after_forward else ShardingStrategy.SHARD_GRAD_OP


def _wrap_policy(model: nn.Module, blocks: Sequence[nn.Module], spec: schema.DpShard) -> Any:
    """Which modules are units: those of a size, or the blocks with the groups and, where asked for, trained leaves."""
    if spec.wrap_size:
        return partial(size_based_auto_wrap_policy, min_num_params=spec.wrap_size)
    units = list(blocks) if spec.wrap == "blocks" else []
    units += [module for module in find_groups(model, spec.groups) if isinstance(module, nn.Module)]
    if spec.wrap_trained:
        units += [module for module in model.modules() if _is_trained_leaf(module)]
    chosen = {id(module) for module in units}
    return CustomPolicy(lambda module: id(module) in chosen)


def _is_trained_leaf(module: nn.Module) -> bool:
    """As `fsdp_auto_wrap_policy` of peft 0.19 has it (utils/other.py)."""
    weight = getattr(module, "weight", None)
    return next(module.children(), None) is None and isinstance(weight, Tensor) and weight.requires_grad


def _policy(spec: schema.DpShard) -> MixedPrecision:
    """Buffers are of the dtype of gathered parameters, as accelerate, Lightning and llama-cookbook have it."""
    reduce = getattr(torch, spec.reduce_dtype)
    return MixedPrecision(param_dtype=torch.bfloat16, reduce_dtype=reduce, buffer_dtype=torch.bfloat16)


class _Materializer:
    """Gives a module's own parameters and buffers memory on the device; what is tied stays tied.

    What it made it does not hold: a unit's parameters go when they have been made flat.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._made: dict[Tensor, weakref.ref[Tensor]] = {}

    def __call__(self, module: nn.Module) -> None:
        owned: Any
        for owned in (module._parameters, module._buffers):
            for name, tensor in owned.items():
                if tensor is None or not tensor.is_meta:
                    continue
                made = self._made[tensor]() if tensor in self._made else None
                if made is None:
                    made = self._make(tensor)
                    self._made[tensor] = weakref.ref(made)
                owned[name] = made

    @torch.no_grad()
    def _make(self, tensor: Tensor) -> Tensor:
        if not isinstance(tensor, nn.Parameter):
            return torch.zeros_like(tensor, device=self._device)
        made = nn.Parameter(torch.empty_like(tensor, device=self._device), requires_grad=tensor.requires_grad)
        if made.is_floating_point():
            made.normal_(0.0, STANDARD_DEVIATION)
        return made


def flat_handles(model: nn.Module) -> list[Any]:
    """torch's handles of all flat parameters."""
    units = FullyShardedDataParallel.fsdp_modules(model)
    return [unit._handle for unit in units if unit._handle is not None]
