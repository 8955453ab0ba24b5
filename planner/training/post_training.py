"""Post-training around a loop: before each iteration weights are sent, answers generated, scored and compared.

The order is that of verl's hybrid engine (0.6, workers/fsdp_workers.py) and of TRL's colocate mode (0.24): the
trainer's weights go to the engine, the engine generates while the trainer waits, the reference and the reward model run
forward, then the trainer takes its step. What the engine itself holds is no part of these phases: see planner/rollout.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor, nn

from planner.events import Phase
from planner.host_events import HostCategory
from planner.job import schema
from planner.job.post_training_schema import PostTraining
from planner.training import frozen_models, inputs, ownership, weight_sync
from planner.training.device_mesh import World
from planner.training.dtypes import floating
from planner.training.frozen_models import Frozen
from planner.training.host import Host
from planner.training.inputs import MicroBatch
from planner.training.loop import Loop
from planner.training.loss import Objective
from planner.training.observer import ModuleFollower
from planner.training.resting import Resting


def phases_around(loop: Loop, spec: schema.Job, world: World, host: Host) -> PostTrainingPhases:
    """The phases of a job, its reference and reward models loaded. Raises SpecError for what cannot be built."""
    assert spec.post_training is not None
    frozen = {
        name: frozen_models.load(name, said, spec, world, loop.device, host, loop.observer)
        for name, said in (("reference", spec.post_training.reference), ("reward", spec.post_training.reward))
        if said is not None
    }
    return PostTrainingPhases(loop, spec, host, frozen)


class PostTrainingPhases:
    """What the loop is told of; see :class:`planner.training.other_phases.OtherPhases`."""

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
        weight_sync.send(model, self._dtype, sync.bucket_bytes, self._loop.device, self._loop.observer)
        if rested:
            self._parameters.leave()
        self._hand_over()

    def _parameters_come_back(self) -> None:
        if self._parameters.rests:
            self._parameters.come_back()
            ownership.tell_parameters(self._loop.bare_model, self._loop.observer)

    def _states_come_back(self) -> None:
        if self._states.rests:
            self._states.come_back()
            ownership.tell_optimizer_state(self._loop.optimizer, self._loop.bare_model, self._loop.observer)

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
