"""Sharded data parallelism: PyTorch's own `fully_shard` (FSDP2) of every block and of the root.

Along `dp_shard` parameters are sharded (with `cp` and `ep`, whose ranks see other tokens), along `dp_replicate` the
shards are replicated (HSDP).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import CPUOffloadPolicy, FSDPModule, MixedPrecisionPolicy, OffloadPolicy, fully_shard

from planner.errors import SpecError
from planner.job import schema
from planner.upstream import torch_releases


def shard(
    model: nn.Module, blocks: Sequence[nn.Module], spec: schema.DpShard, mesh: DeviceMesh, *, mixed: bool
) -> FSDPModule:
    """Shard each block, then what is left with the root, in place; `mesh` has one dim, or two for HSDP.

    `mixed`: the policy that precision `fsdp_mixed` stands for.
    """
    _refuse_scalars(model)
    policy_of_parts, offload = policy(spec, mixed), offload_policy(spec)
    parts: list[nn.Module | list[nn.Module]] = [*blocks, *find_groups(model, spec.groups)]
    for part in parts:
        reshard = spec.reshard_after_forward and not (spec.keep_last and part is parts[-1])
        after = spec.reshard_after_forward if reshard else False
        modules = part if isinstance(part, list) else [part]
        if len({parameter.dtype for module in modules for parameter in module.parameters()}) > 1:
            torch_releases.require(
                "frozen parameters of a dtype of their own in fully_shard", place="parallel.dp_shard"
            )
        fully_shard(part, mesh=mesh, mp_policy=policy_of_parts, offload_policy=offload, reshard_after_forward=after)
    # The root's own parameters are needed again at once when the backward begins: fully_shard keeps them unless told.
    # Since torch 2.8 that is what None stands for, before it is so whatever the root is told.
    usual = None if torch_releases.since(2, 8) else True
    kept = False if spec.reshard_after_forward is False else usual
    return fully_shard(model, mesh=mesh, mp_policy=policy_of_parts, offload_policy=offload, reshard_after_forward=kept)


def sharded_params(model: nn.Module) -> Iterator[Any]:
    """What fully_shard keeps of each parameter that it shards."""
    for module in model.modules():
        if isinstance(module, FSDPModule):
            for group in parameter_groups(module._get_fsdp_state()):
                yield from group.fsdp_params


def syncs(model: nn.Module, *, last: bool, no_sync: bool) -> None:
    """Before each micro-batch of an accumulation: what its backward does with the gradients.

    `set_is_last_backward` is left alone, as torchtitan and accelerate leave it.
    """
    if not no_sync:
        return
    for module in model.modules():
        if isinstance(module, FSDPModule):
            module.set_requires_gradient_sync(last, recurse=False)


def find_groups(model: nn.Module, groups: Sequence[str]) -> Iterator[nn.Module | list[nn.Module]]:
    """The modules of each group; SpecError for a path that leads nowhere."""
    modules = dict(model.named_modules())
    for group in groups:
        for path in group.split():
            if path not in modules:
                raise SpecError(
                    f"{type(model).__name__} has no module {path!r}",
                    allowed=", ".join(name for name, _ in model.named_children()),
                    place="parallel.dp_shard.groups",
                )
        members = [modules[path] for path in group.split()]
        yield members[0] if len(members) == 1 else members


def _refuse_scalars(model: nn.Module) -> None:
    """SpecError for what fully_shard refuses (torch 2.13, fsdp/_fully_shard/_fsdp_init.py)."""
    scalars = [name for name, parameter in model.named_parameters() if parameter.ndim == 0]
    if scalars:
        raise SpecError(
            f"fully_shard takes no parameter without dims, and {type(model).__name__} has {', '.join(scalars[:3])}",
            allowed="parameters of one dim and more",
            remedy="give it the shape [1], or replicate the model (dp_replicate)",
            place="parallel.dp_shard",
        )


def policy(spec: schema.DpShard, mixed: bool) -> MixedPrecisionPolicy:
    """The dtypes of gathered parameters and of reduced gradients."""
    if not mixed:
        return MixedPrecisionPolicy()
    reduce = getattr(torch, spec.reduce_dtype)
    return MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=reduce)


def offload_policy(spec: schema.DpShard) -> OffloadPolicy:
    return CPUOffloadPolicy() if spec.offload == "cpu" else OffloadPolicy()


def parameter_groups(state: Any) -> Sequence[Any]:
    """One group of parameters to a module, or several (torch 2.13)."""
    several = getattr(state, "_fsdp_param_groups", None)
    if several is not None:
        return tuple(several)
    return () if state._fsdp_param_group is None else (state._fsdp_param_group,)
