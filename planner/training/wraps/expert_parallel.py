"""Expert parallelism as transformers has it, and the fixed rule by which tokens are routed to experts."""

from __future__ import annotations

import math
from collections.abc import Iterator
from functools import lru_cache, partial
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import fully_shard

from planner.errors import SpecError
from planner.job import schema
from planner.training import absent_peers
from planner.training.device_mesh import World
from planner.training.wraps import fsdp2
from planner.upstream import torch_releases

_IMBALANCE = "parallel.ep.imbalance"
_CHOICE = "top_k_index"
"""What the forward of transformers' experts calls the router's choice (5.23, integrations/moe.py)."""


def find_experts(model: nn.Module) -> Iterator[tuple[str, Any]]:
    """Paths and modules of transformers' experts (`use_experts_implementation`, 5.23)."""
    for path, module in model.named_modules():
        if hasattr(module, "_is_expert_parallel") and hasattr(module, "num_experts"):
            yield path, module


def force(model: nn.Module, spec: schema.Ep, fullest: int = 0) -> None:
    """From now on the model's experts get the tokens that the rule gives them; `fullest` is the fullest rank.

    Raises SpecError for an imbalance that was asked for a model without experts; the forward raises it for one that
    cannot be: a token goes to an expert only once.
    """
    modules = list(find_experts(model))
    if not modules and spec.imbalance != 1.0:
        raise SpecError(
            f"{type(model).__name__} has no experts that tokens could be routed to",
            allowed="1, or the config of a transformers mixture of experts",
            place=_IMBALANCE,
        )

    def route(experts: int, _module: nn.Module, arguments: tuple[Any, ...], named: dict[str, Any]) -> None:
        chosen: Tensor = named[_CHOICE] if _CHOICE in named else arguments[1]
        # Not through autograd: the backward of topk may keep the tensor, whose values are not differentiated.
        chosen.data.copy_(choices(*chosen.shape, experts, spec, fullest))

    for _, module in modules:
        # Split experts count their own only.
        experts = int(module.num_experts) * (spec.degree if module._is_expert_parallel else 1)
        module.register_forward_pre_hook(partial(route, experts), with_kwargs=True)


@lru_cache(maxsize=4)
def choices(tokens: int, each: int, experts: int, spec: schema.Ep, fullest: int = 0) -> Tensor:
    """The experts of every token, on the host, of shape (tokens, each): by the rule, whatever the values are."""
    counts = shares(tokens, each, experts, spec, fullest)
    one_after_another = torch.repeat_interleave(torch.arange(experts), torch.tensor(counts))
    # An expert's run is no longer than the tokens: wrapped around them it never meets the same token again.
    return one_after_another.view(each, tokens).t().contiguous()


def shares(tokens: int, each: int, experts: int, spec: schema.Ep, fullest: int = 0) -> list[int]:
    """How many tokens each expert gets. Raises SpecError if the fullest would get more than there can be."""
    pairs, parts = tokens * each, spec.degree if spec.degree > 1 else experts
    per_part = experts // parts
    full = min(math.ceil(spec.imbalance * pairs / parts), pairs)
    most = min(pairs, per_part * tokens)
    if full > most:
        part_of_all = "rank" if spec.degree > 1 else "expert"
        raise SpecError(
            f"of {pairs} pairs of token and expert the fullest {part_of_all} would get {full} at an imbalance of "
            f"{spec.imbalance:g}, and a token goes to an expert only once",
            allowed=f"1 to {most * parts / pairs:g}",
            place=_IMBALANCE,
        )
    rest = iter(_split_evenly(pairs - full, parts - 1))
    of_parts = [full if part == fullest else next(rest) for part in range(parts)]
    return [share for part in of_parts for share in _split_evenly(part, per_part)]


def _split_evenly(total: int, parts: int) -> list[int]:
    return [total // parts + (part < total % parts) for part in range(parts)]


# transformers 5.23 (distributed/expert_parallel.py, `base_model_ep_plan` of the config): every rank holds whole
# experts (`grouped_gemm`: dim 0 of their weights is split along `ep`), the pairs of token and expert are sorted, sent
# to the expert's rank and back (`AllToAllEP`), weighted and summed by the sender. As there, experts have a mesh of
# their own: the ranks that hold the same ones shard them along `dp_shard` and `cp`, everything else is sharded along
# `ep` too.
_PLACE = "parallel.ep.degree"
_DISPATCH = "ep_dispatch_experts"
_BY_ALL_TO_ALL = "all_to_all"


def split(model: nn.Module, spec: schema.Ep, world: World) -> None:
    """Split the experts of a transformers model over the ranks along `ep`, in place; it lies on the meta device.

    Raises SpecError for a model without experts, for one that transformers has no plan for, and for experts that do
    not divide.
    """
    modules = list(find_experts(model))
    if not modules:
        raise SpecError(
            f"{type(model).__name__} has no experts that could be split over {spec.degree} ranks",
            allowed="the config of a transformers mixture of experts (mixtral, qwen3_moe, deepseek_v3, ...)",
            place=_PLACE,
        )
    for path, module in modules:
        _check_experts(path, int(module.num_experts), spec.degree, _copies(world))
    plan = _plan(model, spec.degree)
    # transformers takes seconds to import; this model is one of its own.
    from transformers.distributed.expert_parallel import apply_expert_parallelism

    # The ranks that share this rank's tokens, without tensor parallelism: itself.
    group = dist.new_group([world.rank], use_local_synchronization=True)
    alone = DeviceMesh.from_group(group, world.device_type)
    apply_expert_parallelism(model, world.expert_mesh["ep"], alone, plan, _BY_ALL_TO_ALL)


def shard(model: nn.Module, spec: schema.DpShard, world: World, *, mixed: bool) -> None:
    """Shard the experts over the ranks that hold the same ones, before their blocks are sharded.

    As transformers does it (5.23, distributed/fsdp.py): gradients are summed, and divided by the number of all ranks
    that see other tokens; so is an expert that no other rank holds.
    """
    if _copies(world) > 1:
        torch_releases.require("experts that several ranks hold", place="parallel.ep")
    mesh = world.expert_mesh[("dp_replicate", "efsdp") if world.degree("dp_replicate") > 1 else ("efsdp",)]
    tokens = world.degree("dp_replicate") * _copies(world) * world.degree("ep")
    for _, module in find_experts(model):
        sharded: Any = fully_shard(
            module,
            mesh=mesh,
            mp_policy=fsdp2.policy(spec, mixed),
            offload_policy=fsdp2.offload_policy(spec),
            reshard_after_forward=spec.reshard_after_forward is not False,
        )
        # Named so since torch 2.8 (distributed/fsdp/_fully_shard/_fully_shard.py).
        divide = "set_gradient_divide_factor" if torch_releases.since(2, 8) else "set_reduce_scatter_divide_factor"
        getattr(sharded, divide)(float(tokens))
        if _copies(world) > 1:
            sharded.set_force_sum_reduction_for_comms(True)


def fullest(world: World) -> int:
    """The rank along `ep` that gets the most tokens: where peers are absent this one, for which the plan is made."""
    if world.degree("ep") == 1 or not absent_peers.are_here():
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
    paths = [path for path, _ in find_experts(model)]
    if any(plan.get(path) != _DISPATCH for path in paths):
        raise SpecError(
            f"transformers has no plan that sends tokens to the experts of {type(model).__name__}",
            allowed=f"models whose base_model_ep_plan says {_DISPATCH}",
            place=_PLACE,
        )
    return dict(plan)
