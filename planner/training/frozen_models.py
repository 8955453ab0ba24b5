"""Models that only run forward beside the one that is trained: built, sharded and put to rest as the trainer's is."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import nn
from torch.distributed.fsdp import FSDPModule

from planner.events import Category
from planner.host_events import HostCategory
from planner.job import schema
from planner.job.post_training_schema import FrozenModel
from planner.training import blocks, inputs
from planner.training.device_mesh import World
from planner.training.feed import Feed
from planner.training.host import Host
from planner.training.materialize import materialize
from planner.training.models.build import build
from planner.training.observer import Observer
from planner.training.resting import Resting
from planner.training.wraps import fsdp2, tensor_parallel

REWARD_HEAD = "sequence_classification"


@dataclass(slots=True)
class Frozen:
    """One such model; `resting` is None where it stays on the device, or its shards come and go one by one."""

    name: str
    module: nn.Module
    feed: Feed
    resting: Resting | None

    def wake(self, observer: Observer) -> None:
        """It comes to the device if it rested as a whole."""
        if self.resting is not None:
            self.resting.come_back()
            tell(self.name, self.module, observer)

    def rest(self) -> None:
        """It gives back what its forward left, and the device's memory if it rests as a whole."""
        if isinstance(self.module, FSDPModule):
            self.module.reshard()  # without a backward the root keeps what it gathered
        if self.resting is not None:
            self.resting.leave()


def load(
    name: str, said: FrozenModel, spec: schema.Job, world: World, device: torch.device, host: Host, observer: Observer
) -> Frozen:
    """The model, without gradients, on the device or at rest. Raises SpecError for a config that is no model."""
    model = model_of(said, spec.model, is_reward=name == "reward")
    module = build(model, torch.device("meta"))
    feed = inputs.feed_of(module, replace(spec, model=model))
    if world.degree("tp") > 1:
        tensor_parallel.split(module, replace(spec.parallel.tp, loss_parallel=False), world.device_mesh["tp"])
    module.requires_grad_(False)
    shards = world.shards
    if shards:
        shard = replace(spec.parallel.dp_shard, offload="cpu" if said.offload else "", prefetch=0)
        found = [block for _, block in blocks.find(module, model.blocks)]
        mixed = spec.train.precision == "fsdp_mixed"
        fsdp2.shard(module, found, shard, world.sharding_mesh(), mixed=mixed)
    materialize(module, device, host, offloaded=shards and said.offload)
    module.eval()
    tell(name, module, observer)
    resting = Resting(module.parameters, device, host, HostCategory.PARAMETER) if said.offload and not shards else None
    if resting is not None:
        resting.leave()
    return Frozen(name, module, feed, resting)


def model_of(said: FrozenModel, policy: schema.Model, *, is_reward: bool) -> schema.Model:
    """The model section that it stands for: its own config, or the policy's."""
    of_policy = said.config is None
    base = policy if of_policy else schema.Model(hf_config=said.config, attention=policy.attention)
    head = said.head or (REWARD_HEAD if is_reward and base.hf_config is not None else base.head)
    return replace(base, head=head, parameter_dtype=said.dtype)


def tell(name: str, module: nn.Module, observer: Observer) -> None:
    """Its parameters and buffers are parameters of this model's name."""
    for path, tensor in (*module.named_parameters(), *module.named_buffers()):
        observer.assign(tensor, Category.PARAMETER, f"{name}.{path}")
