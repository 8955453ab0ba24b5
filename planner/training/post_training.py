"""Post-training around a loop: before each iteration weights are sent, answers generated, scored and compared."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.fsdp import FSDPModule
from torch.distributed.tensor import DTensor

from planner.events import Phase
from planner.host_events import HostCategory
from planner.job import schema
from planner.job.schema import FrozenModel
from planner.training import blocks, inputs
from planner.training.device_mesh import World
from planner.training.host import Resting
from planner.training.inputs import MicroBatch
from planner.training.loop import Loop
from planner.training.loss_functions import Objective
from planner.training.models.build import build, materialize
from planner.training.phases import named_phase
from planner.training.wraps import fsdp2, tensor_parallel


# As verl hands weights over (0.6, workers/fsdp_workers.py, rollout_mode; from 0.7 on workers/rollout/.../bucketed
# weight transfer) and TRL (0.24, trainer/grpo_trainer.py, _move_model_to_vllm): each parameter is gathered with
# `DTensor.full_tensor`, cast, and given to the engine, which copies it into its own. While one is gathered the one
# before it is still held by the loop.
@torch.no_grad()
def _send(model: nn.Module, dtype: torch.dtype, bucket_bytes: int, device: torch.device) -> None:
    """Every parameter of the model, gathered and let go of again: one by one, or by way of a bucket."""
    if not bucket_bytes:
        for _whole in _whole_tensors(model, dtype, device):
            pass
        return
    # A bucket is there as long as the sync; a tensor larger than it is sent alone, by a bucket as large as it.
    bucket = torch.empty(bucket_bytes, dtype=torch.uint8, device=device)
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


class _FrozenModel:
    """A model without gradients, on the device or at rest. Raises SpecError for a config without a model."""

    def __init__(self, name: str, section: FrozenModel, loop: Loop, spec: schema.Job, world: World) -> None:
        self.samples = section.micro_batch_size
        model = _model_section(section, spec.model, is_reward=name == "reward")
        self.module = module = build(model, torch.device("meta"))
        self.feed = inputs.find_feed(module, replace(spec, model=model))
        if world.degree("tp") > 1:
            tensor_parallel.split(module, replace(spec.parallel.tp, loss_parallel=False), world.device_mesh["tp"])
        module.requires_grad_(False)
        if world.shards:
            shard = replace(spec.parallel.dp_shard, offload="cpu" if section.offload else "", prefetch=0)
            repeated = blocks.find_blocks(module, model.blocks)
            mixed = spec.train.precision == "fsdp_mixed"
            fsdp2.shard(module, repeated, shard, world.sharding_mesh(), mixed=mixed)
        materialize(module, loop.device, offloaded=world.shards and section.offload)
        module.eval()
        self._resting: Resting | None = None
        """None where it stays on the device, or its shards come and go one by one."""
        if section.offload and not world.shards:
            self._resting = Resting(module.parameters, loop.device, HostCategory.PARAMETER)
            self._resting.leave()

    def wake(self) -> None:
        if self._resting is not None:
            self._resting.come_back()

    def rest(self) -> None:
        """It gives back what its forward left, and the device's memory if it rests as a whole."""
        if isinstance(self.module, FSDPModule):
            self.module.reshard()  # without a backward the root keeps what it gathered
        if self._resting is not None:
            self._resting.leave()


def _model_section(section: FrozenModel, policy: schema.Model, *, is_reward: bool) -> schema.Model:
    base = policy if section.config is None else schema.Model(hf_config=section.config, attention=policy.attention)
    head = section.head or (REWARD_HEAD if is_reward and base.hf_config is not None else base.head)
    return replace(base, head=head, parameter_dtype=section.dtype)


# The order is that of verl's hybrid engine (0.6, workers/fsdp_workers.py) and of TRL's colocate mode (0.24): the
# trainer's weights go to the engine, the engine generates while the trainer waits, the reference and the reward model
# run forward, then the trainer takes its step. What the engine itself holds is not part of these phases: see
# planner/tracing/rollout.py.
class PostTrainingPhases:
    """The phases between the iterations of a job's loop, which calls them."""

    def __init__(self, loop: Loop, spec: schema.Job, world: World) -> None:
        """Loads the reference and the reward model. Raises SpecError for what cannot be built."""
        assert spec.post_training is not None
        self._loop, self._spec, self._section = loop, spec, spec.post_training
        sections = {"reference": self._section.reference, "reward": self._section.reward}
        self._frozen = {
            name: _FrozenModel(name, section, loop, spec, world)
            for name, section in sections.items()
            if section is not None
        }
        self._parameters = Resting(loop.bare_model.parameters, loop.device, HostCategory.PARAMETER)
        self._states = Resting(self._optimizer_states, loop.device, HostCategory.OPTIMIZER_STATE)
        self._dtype = getattr(torch, self._section.rollout.dtype)

    def begin(self) -> None:
        """Everything is loaded: the engine starts when the trainer rests."""
        self._rest_trainer()

    def before(self) -> None:
        """Weights, answers, scores; then the trainer comes back."""
        with named_phase(Phase.WEIGHT_SYNC):
            self._send_weights()
        with named_phase(Phase.ROLLOUT):
            pass
        if "reference" in self._frozen:
            with named_phase(Phase.REFERENCE_FORWARD):
                self._run_reference(self._frozen["reference"])
        if "reward" in self._frozen:
            with named_phase(Phase.REWARD_FORWARD):
                self._run_reward(self._frozen["reward"])
        with named_phase(Phase.FORWARD):
            self._parameters.come_back()
            self._states.come_back()

    def after(self) -> None:
        self._rest_trainer()

    def _rest_trainer(self) -> None:
        if self._section.trainer_offload.parameters:
            self._parameters.leave()
        if self._section.trainer_offload.optimizer:
            self._states.leave()
        self._hand_over()

    def _hand_over(self) -> None:
        if self._section.empty_cache and self._loop.device.type == "cuda":
            torch.cuda.empty_cache()

    def _send_weights(self) -> None:
        loop, rested = self._loop, self._parameters.rests
        self._parameters.come_back()
        _send(loop.bare_model, self._dtype, self._section.weight_sync.bucket_bytes, loop.device)
        if rested:
            self._parameters.leave()
        self._hand_over()

    def _optimizer_states(self) -> Iterator[Tensor]:
        for state in self._loop.optimizer.state.values():
            yield from (value for value in state.values() if isinstance(value, Tensor))

    def _run_reference(self, frozen: _FrozenModel) -> None:
        """The log-probabilities of the answers are computed as the trainer's loss is."""
        objective = Objective(self._spec.train.loss, frozen.feed, self._loop.device)
        self._run(frozen, objective, own_loss=objective.own)

    def _run_reward(self, frozen: _FrozenModel) -> None:
        def score(model: nn.Module, batch: MicroBatch) -> None:
            if frozen.feed.positional:
                model(*batch.arguments.values(), **frozen.feed.constants)
            else:
                model(**batch.arguments, **frozen.feed.constants)

        self._run(frozen, score, own_loss=False)

    def _run(self, frozen: _FrozenModel, forward: Callable[[nn.Module, MicroBatch], object], *, own_loss: bool) -> None:
        loop = self._loop
        frozen.wake()
        with torch.no_grad(), loop.precision.autocast():
            batch = inputs.make(frozen.feed, frozen.samples, loop.device, own_loss=own_loss)
            forward(frozen.module, batch)
        frozen.rest()
        del batch
        self._hand_over()
