"""Expert parallelism: transformers' own, which splits the experts and sends tokens to them by all-to-all.

transformers 5.23 (distributed/expert_parallel.py, `base_model_ep_plan` of the config): every rank holds whole experts
(`grouped_gemm`: dim 0 of their weights is split along `ep`), the pairs of token and expert are sorted, sent to the
expert's rank and back (`AllToAllEP`), weighted and summed by the sender. As there, experts have a mesh of their own:
the ranks that hold the same ones shard them along `dp_shard` and `cp`, everything else is sharded along `ep` too.
"""

from __future__ import annotations

from typing import Any

import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import fully_shard

from planner.errors import SpecError
from planner.job import schema
from planner.training import absent_peers, routing
from planner.training.device_mesh import World
from planner.training.wraps import fsdp2
from planner.upstream import versions

_PLACE = "parallel.ep.degree"
_DISPATCH = "ep_dispatch_experts"
_BY_ALL_TO_ALL = "all_to_all"


def split(model: nn.Module, spec: schema.Ep, world: World) -> None:
    """Split the experts of a transformers model over the ranks along `ep`, in place; it lies on the meta device.

    Raises SpecError for a model without experts, for one that transformers has no plan for, and for experts that do
    not divide.
    """
    found = list(routing.experts_of(model))
    if not found:
        raise SpecError(
            f"{type(model).__name__} has no experts that could be split over {spec.degree} ranks",
            allowed="the config of a transformers mixture of experts (mixtral, qwen3_moe, deepseek_v3, ...)",
            place=_PLACE,
        )
    for path, module in found:
        _check_experts(path, int(module.num_experts), spec.degree, _copies(world))
    plan = _plan(model, spec.degree)
    # transformers takes seconds to import; this model is one of its own.
    from transformers.distributed.expert_parallel import apply_expert_parallelism

    apply_expert_parallelism(model, world.expert_mesh["ep"], _mesh_of_this_rank(world), plan, _BY_ALL_TO_ALL)


def shard(model: nn.Module, spec: schema.DpShard, world: World, *, mixed: bool) -> None:
    """Shard the experts over the ranks that hold the same ones, before their blocks are sharded.

    As transformers does it (5.23, distributed/fsdp.py): gradients are summed, and divided by the number of all ranks
    that see other tokens; so is an expert that no other rank holds.
    """
    mesh = world.expert_mesh[("dp_replicate", "efsdp") if world.degree("dp_replicate") > 1 else ("efsdp",)]
    tokens = world.degree("dp_replicate") * _copies(world) * world.degree("ep")
    for _, module in routing.experts_of(model):
        sharded: Any = fully_shard(
            module,
            mesh=mesh,
            mp_policy=fsdp2.policy(spec, mixed),
            offload_policy=fsdp2.offload_policy(spec),
            reshard_after_forward=spec.reshard_after_forward is not False,
        )
        # Named so since torch 2.8 (distributed/fsdp/_fully_shard/_fully_shard.py).
        divide = "set_gradient_divide_factor" if versions.since(2, 8) else "set_reduce_scatter_divide_factor"
        getattr(sharded, divide)(float(tokens))
        if _copies(world) > 1:
            sharded.set_force_sum_reduction_for_comms(True)


def fullest(world: World) -> int:
    """The rank along `ep` that gets the most tokens: where peers are absent this one, for which the plan is made."""
    if world.degree("ep") == 1 or dist.get_backend() != absent_peers.BACKEND:
        return 0
    return world.coordinate("ep")


def _copies(world: World) -> int:
    return world.degree("dp_shard") * world.degree("cp")


def _check_experts(path: str, experts: int, ranks: int, copies: int) -> None:
    if experts % ranks:
        more = f"{experts} experts cannot be split over {ranks} ranks"
        raise SpecError(
            f"{more}: each holds whole ones" if experts < ranks else f"{more} evenly ({path})",
            allowed=f"a divisor of {experts}",
            place=_PLACE,
        )
    own = experts // ranks
    if own > copies and own % -(-own // copies):
        raise SpecError(
            f"the {own} experts of a rank do not shard evenly over the {copies} ranks that hold the same ones",
            allowed=f"dp_shard * cp that divides {own}, or that is at least {own}",
            place="parallel.dp_shard.degree",
        )


def _plan(model: Any, ranks: int) -> dict[str, str]:
    from transformers.distributed.configuration_utils import DistributedConfig

    try:
        _, plan, _ = model._resolve_parallel_plans(DistributedConfig(fsdp_size=ranks, ep_size=ranks))
    except ValueError as refusal:
        raise SpecError(f"transformers refuses to split its experts: {refusal}", place=_PLACE) from refusal
    paths = [path for path, _ in routing.experts_of(model)]
    if any(plan.get(path) != _DISPATCH for path in paths):
        raise SpecError(
            f"transformers has no plan that sends tokens to the experts of {type(model).__name__}",
            allowed=f"models whose base_model_ep_plan says {_DISPATCH}",
            place=_PLACE,
        )
    return dict(plan)


def _mesh_of_this_rank(world: World) -> DeviceMesh:
    """The mesh of this rank alone: those that share its tokens, without tensor parallelism."""
    group = dist.new_group([world.rank], use_local_synchronization=True)
    return DeviceMesh.from_group(group, world.device_type)
