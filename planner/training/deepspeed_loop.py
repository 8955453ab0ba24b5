"""The loop around DeepSpeed's engine, which scales the loss, reduces, clips and steps by itself."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import Any

from torch import Tensor

from planner.events import Phase
from planner.training.loop import Loop
from planner.training.observer import NullObserver
from planner.training.wraps import deepspeed_engine, deepspeed_roles


class EngineLoop(Loop):
    """As `Loop`; the model is DeepSpeed's own engine."""

    def optimizer_parts(self) -> tuple[int, ...]:
        return deepspeed_engine.parts(self._engine)

    def _telling_gradients(self) -> AbstractContextManager[None]:
        """They have been told of since the engine was made."""
        return nullcontext()

    def _iterate(self, iteration: int) -> None:
        steps, watched = self.train.gradient_accumulation_steps, not isinstance(self.observer, NullObserver)
        for micro_batch in self._micro_batches(iteration):
            self._micro_batch(iteration)
            if watched:
                deepspeed_roles.tell_whole(self._engine, self.observer)
            if micro_batch == steps:
                self.observer.mark(Phase.OPTIMIZER_STEP, iteration)
            self._engine.step()
        if watched:
            deepspeed_roles.tell_state(self._engine, self.observer)

    def _leave_out(self, micro_batches: int) -> None:
        """The engine counts them, and steps after the last."""
        self._engine.micro_steps += micro_batches

    def _of_one(self, loss: Tensor) -> Tensor:
        return loss

    def _backward(self, loss: Tensor) -> None:
        self._engine.backward(loss)

    @property
    def _engine(self) -> Any:
        return self.model
