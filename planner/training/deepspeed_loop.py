"""The loop around DeepSpeed's engine: gradients are reduced after each backward, clipped and dropped in the step."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

from torch import Tensor

from planner.events import Phase
from planner.training import ownership
from planner.training.loop import Loop
from planner.training.observer import Silent
from planner.training.wraps import deepspeed_engine
from planner.training.wraps.deepspeed_zero import DividedByDeepSpeed


class DeepSpeedLoop(Loop):
    """As `Loop`; the optimizer is a `DividedByDeepSpeed`."""

    @property
    def _engine(self) -> DividedByDeepSpeed:
        assert isinstance(self.optimizer, DividedByDeepSpeed)
        return self.optimizer

    def run(self) -> None:
        if not isinstance(self.observer, Silent):
            names = {id(parameter): name for name, parameter in self.bare_model.named_parameters()}
            self._engine.watched_by(self.observer, names)
        super().run()

    @contextmanager
    def _telling_gradients(self) -> Iterator[None]:
        """The engine tells of them: they move before others hear of them."""
        yield

    def _iterate(self, iteration: int) -> None:
        steps = self.train.gradient_accumulation_steps
        for micro_batch in range(1, steps + 1):
            self._engine.last_micro_batch = micro_batch == steps
            self._micro_batch(iteration)
            self._engine.end_micro_batch()
        self.observer.mark(Phase.OPTIMIZER_STEP, iteration)
        self._step()

    def _step(self) -> None:
        self._engine.step()
        if not isinstance(self.observer, Silent):
            ownership.tell_optimizer_state(self.optimizer, self.bare_model, self.observer)
        self._engine.zero_grad()


class EngineLoop(Loop):
    """As `Loop`; the model is DeepSpeed's own engine, which scales the loss, reduces, clips and steps by itself."""

    def _telling_gradients(self) -> AbstractContextManager[None]:
        """They have been told of since the engine was made."""
        return nullcontext()

    def _iterate(self, iteration: int) -> None:
        steps, watched = self.train.gradient_accumulation_steps, not isinstance(self.observer, Silent)
        for micro_batch in range(1, steps + 1):
            self._micro_batch(iteration)
            if watched:
                deepspeed_engine.tell_whole(self._engine, self.observer)
            if micro_batch == steps:
                self.observer.mark(Phase.OPTIMIZER_STEP, iteration)
            self._engine.step()
        if watched:
            deepspeed_engine.tell_state(self.optimizer, self.observer)

    def _of_one(self, loss: Tensor) -> Tensor:
        return loss

    def _backward(self, loss: Tensor) -> None:
        self._engine.backward(loss)

    @property
    def _engine(self) -> Any:
        return self.model
