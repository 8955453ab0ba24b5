"""Post-training around a loop: before each iteration weights are sent, answers generated, scored and compared."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.fsdp import FSDPModule
from torch.distributed.tensor import DTensor

from planner.events import Category, Phase
from planner.host_events import HostCategory
from planner.job import schema
from planner.job.schema import FrozenModel, PostTraining
from planner.training import blocks, inputs, observers
from planner.training.batch_shapes import Feed, floating
from planner.training.device_mesh import World
from planner.training.host import Host, Resting
from planner.training.inputs import MicroBatch
from planner.training.loop import Loop
from planner.training.loss_functions import Objective
from planner.training.models.build import build, materialize
from planner.training.observers import ModuleFollower, Observer
from planner.training.wraps import fsdp2, tensor_parallel

# As verl hands weights over (0.6, workers/fsdp_workers.py, rollout_mode; from 0.7 on workers/rollout/.../bucketed
# weight transfer) and TRL (0.24, trainer/grpo_trainer.py, _move_model_to_vllm): each parameter is gathered with
# `DTensor.full_tensor`, cast, and given to the engine, which copies it into its own. While one is gathered the one
# before it is still held by the loop.
_NAME = "weights for the engine"


def send(model: nn.Module, dtype: torch.dtype, bucket_bytes: int, device: torch.device, observer: Observer) -> None:
    """Every parameter of the model, gathered and let go of again."""
    with torch.no_grad():
        if bucket_bytes:
            _send_in_buckets(model, dtype, bucket_bytes, device, observer)
        else:
            for tensor in _whole_tensors(model, dtype, device):
                observer.assign(tensor, Category.COMMUNICATION, _NAME)


def _send_in_buckets(
    model: nn.Module, dtype: torch.dtype, bucket_bytes: int, device: torch.device, observer: Observer
) -> None:
    """A bucket is there as long as the sync; a tensor larger than it is sent alone, by a bucket as large as it."""
    bucket = torch.empty(bucket_bytes, dtype=torch.uint8, device=device)
    observer.assign(bucket, Category.COMMUNICATION, _NAME)
    used = 0
    for tensor in _whole_tensors(model, dtype, device):
        size = tensor.numel() * tensor.element_size()
        if used + size > bucket.numel():
            used = 0
        if size > bucket.numel():
            alone = torch.empty(size, dtype=torch.uint8, device=device)
            alone.copy_(tensor.reshape(-1).view(torch.uint8))
            continue
        bucket[used : used + size].copy_(tensor.reshape(-1).view(torch.uint8))
        used += size


def _whole_tensors(model: nn.Module, dtype: torch.dtype, device: torch.device) -> Iterator[Tensor]:
    for parameter in model.parameters():
        if isinstance(parameter, DTensor):
            # Shards that rest on the host are gathered on the device.
            shard: Any = parameter.detach().to(device)
            yield shard.full_tensor().to(dtype)
        else:
            yield parameter.detach().to(device).to(dtype)


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


# The order is that of verl's hybrid engine (0.6, workers/fsdp_workers.py) and of TRL's colocate mode (0.24): the
# trainer's weights go to the engine, the engine generates while the trainer waits, the reference and the reward model
# run forward, then the trainer takes its step. What the engine itself holds is no part of these phases: see
# planner/tracing/rollout.py.
def phases_around(loop: Loop, spec: schema.Job, world: World, host: Host) -> PostTrainingPhases:
    """The phases of a job, its reference and reward models loaded. Raises SpecError for what cannot be built."""
    assert spec.post_training is not None
    frozen = {
        name: load(name, said, spec, world, loop.device, host, loop.observer)
        for name, said in (("reference", spec.post_training.reference), ("reward", spec.post_training.reward))
        if said is not None
    }
    return PostTrainingPhases(loop, spec, host, frozen)


class PostTrainingPhases:
    """What the loop is told of; see :class:`planner.training.loop.OtherPhases`."""

    def __init__(self, loop: Loop, spec: schema.Job, host: Host, frozen: dict[str, Frozen]) -> None:
        assert spec.post_training is not None
        self._loop, self._spec, self._said = loop, spec, spec.post_training
        self._frozen = frozen
        self._parameters = Resting(loop.bare_model.parameters, loop.device, host, HostCategory.PARAMETER)
        self._states = Resting(self._optimizer_states, loop.device, host, HostCategory.OPTIMIZER_STATE)
        self._dtype = floating(self._said.rollout.dtype, place="post_training.rollout.dtype")

    def __bool__(self) -> bool:
        return True

    def begin(self) -> None:
        """The engine starts when the trainer rests."""
        self._trainer_rests()

    def before(self, iteration: int) -> None:
        """Weights, answers, scores; then the trainer comes back."""
        self._loop.observer.mark(Phase.WEIGHT_SYNC, iteration)
        self._send_weights()
        self._loop.observer.mark(Phase.ROLLOUT, iteration)
        if "reference" in self._frozen:
            self._loop.observer.mark(Phase.REFERENCE_FORWARD, iteration)
            self._run_reference(self._frozen["reference"])
        if "reward" in self._frozen:
            self._loop.observer.mark(Phase.REWARD_FORWARD, iteration)
            self._run_reward(self._frozen["reward"])
        self._loop.observer.mark(Phase.FORWARD, iteration)
        self._parameters_come_back()
        self._states_come_back()

    def after(self, iteration: int) -> None:  # noqa: ARG002
        """The trainer has taken its step and gives way."""
        self._trainer_rests()

    def _trainer_rests(self) -> None:
        said: PostTraining = self._said
        if said.trainer_offload.parameters:
            self._parameters.leave()
        if said.trainer_offload.optimizer:
            self._states.leave()
        self._hand_over()

    def _hand_over(self) -> None:
        if self._said.empty_cache and self._loop.device.type == "cuda":
            torch.cuda.empty_cache()

    def _send_weights(self) -> None:
        rested = self._parameters.rests
        self._parameters_come_back()
        sync, model = self._said.weight_sync, self._loop.bare_model
        send(model, self._dtype, sync.bucket_bytes, self._loop.device, self._loop.observer)
        if rested:
            self._parameters.leave()
        self._hand_over()

    def _parameters_come_back(self) -> None:
        if self._parameters.rests:
            self._parameters.come_back()
            observers.tell_parameters(self._loop.bare_model, self._loop.observer)

    def _states_come_back(self) -> None:
        if self._states.rests:
            self._states.come_back()
            observers.tell_optimizer_state(self._loop.optimizer, self._loop.bare_model, self._loop.observer)

    def _optimizer_states(self) -> Iterator[Tensor]:
        for state in self._loop.optimizer.state.values():
            yield from (value for value in state.values() if isinstance(value, Tensor))

    def _run_reference(self, frozen: Frozen) -> None:
        """The log-probabilities of the answers are computed as the trainer's loss is."""
        loop, said = self._loop, self._said.reference
        assert said is not None
        objective = Objective(self._spec.train.loss, frozen.feed, loop.device, loop.observer)
        self._run(frozen, said.micro_batch_size, objective, own_loss=objective.own)

    def _run_reward(self, frozen: Frozen) -> None:
        said = self._said.reward
        assert said is not None

        def scores(model: nn.Module, batch: MicroBatch) -> None:
            if frozen.feed.positional:
                model(*batch.arguments.values(), **frozen.feed.constants)
            else:
                model(**batch.arguments, **frozen.feed.constants)

        self._run(frozen, said.micro_batch_size, scores, own_loss=False)

    def _run(self, frozen: Frozen, samples: int, forward: object, *, own_loss: bool) -> None:
        loop = self._loop
        assert callable(forward)
        frozen.wake(loop.observer)
        follower = loop.observer if isinstance(loop.observer, ModuleFollower) else None
        if follower is not None:
            follower.enter(frozen.name)
        with torch.no_grad(), loop.precision.autocast():
            batch = inputs.make(frozen.feed, samples, loop.device, loop.observer, own_loss=own_loss)
            forward(frozen.module, batch)
        if follower is not None:
            follower.leave()
        frozen.rest()
        del batch
        self._hand_over()
