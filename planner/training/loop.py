"""The training loop: micro-batches, precision, clipping, the optimizer's step, evaluation."""

from __future__ import annotations

import gc
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader

from planner.events import Phase
from planner.job import schema
from planner.training import blocks, inputs, optimizers
from planner.training.inputs import BatchesOfLengths, Feed, MicroBatch
from planner.training.loss_functions import Objective
from planner.training.phases import named_phase
from planner.training.wraps import context_parallel, fsdp2

if TYPE_CHECKING:
    from planner.training.checkpoints import CheckpointSaver

AUTOCAST_DTYPES = {"bf16_autocast": torch.bfloat16, "fp16_autocast": torch.float16}


class Precision:
    """How a job computes: plainly, or under autocast, with a scaler for fp16.

    Pure low precision is `none` with parameters of that dtype; `fsdp_mixed` is the policy of fully_shard,
    which casts by itself.
    """

    def __init__(self, name: str, device: torch.device) -> None:
        """Raises RuntimeError if torch turned the scaler off."""
        self._device_type = device.type
        self._dtype = AUTOCAST_DTYPES.get(name)
        self.scaler = torch.amp.GradScaler(device.type) if name == "fp16_autocast" else None
        # GradScaler and autocast look for their device themselves and turn off with a mere warning: a plan without them
        # would be a plan of another program.
        if self.scaler is not None and not self.scaler.is_enabled():
            raise RuntimeError(f"GradScaler turned itself off on {device.type}")

    @contextmanager
    def autocast(self) -> Iterator[None]:
        """Around forward and loss, not around backward."""
        if self._dtype is None:
            yield
            return
        with torch.autocast(self._device_type, self._dtype):
            if not torch.is_autocast_enabled(self._device_type):
                raise RuntimeError(f"autocast turned itself off on {self._device_type}")
            yield

    def scale_loss(self, loss: torch.Tensor) -> torch.Tensor:
        return loss if self.scaler is None else self.scaler.scale(loss)


@dataclass(kw_only=True)
class Loop:
    """Everything the iterations need, built and wrapped."""

    train: schema.Train
    parallel: schema.Parallel
    model: nn.Module
    bare_model: nn.Module
    optimizer: torch.optim.Optimizer
    objective: Objective
    feed: Feed
    precision: Precision
    device: torch.device
    splitting: context_parallel.Split = field(default=context_parallel.whole)
    data: BatchesOfLengths | None = None
    """Of a run whose batches differ in length."""
    steps: int = 0
    """That are run of `data`; 0: all."""

    def __post_init__(self) -> None:
        self._loaded: Iterator[dict[str, Tensor]] = iter(())

    def run(self) -> None:
        """All iterations; an evaluation after every `eval.every`, or after the last if none came before."""
        evaluation, saving, last = self.train.eval, self.train.checkpoint_save, self._iterations()
        if self.data is not None:
            self._loaded = iter(DataLoader(self.data, batch_size=None))
        with optimizers.step_in_backward(self.optimizer):
            for iteration in range(1, last + 1):
                self._iterate()
                if evaluation is not None and _is_due(iteration, evaluation.every, last):
                    self._evaluate(evaluation)
                if saving is not None and _is_due(iteration, saving.every, last):
                    self._saver.save()
                gc.collect()
            if saving is not None:
                self._saver.finish()

    def _iterations(self) -> int:
        if self.data is not None:
            return self.steps or len(self.data) // self.train.gradient_accumulation_steps
        return max(self.train.iterations, blocks.fewest_iterations(self.train.compile))

    @cached_property
    def _saver(self) -> CheckpointSaver:
        # Jobs that save alone pay for the import of torch.distributed.checkpoint.
        from planner.training.checkpoints import CheckpointSaver

        assert self.train.checkpoint_save is not None
        return CheckpointSaver(self.train.checkpoint_save, self.bare_model, self.optimizer)

    def _iterate(self) -> None:
        for micro_batch in range(1, self.train.gradient_accumulation_steps + 1):
            with self._syncing(last=micro_batch == self.train.gradient_accumulation_steps):
                self._micro_batch()
        with named_phase(Phase.OPTIMIZER_STEP):
            self._step()

    def _micro_batch(self) -> None:
        with ExitStack() as split:
            with named_phase(Phase.FORWARD):
                batch = self._batch(self.train.micro_batch_size, next(self._loaded, None))
                split.enter_context(self.splitting(batch))
                with self.precision.autocast():
                    loss = self.objective(self.model, batch)
                loss = self._scale_to_one(loss)
            with named_phase(Phase.BACKWARD):
                self._backward(loss)

    def _batch(self, samples: int, loaded: dict[str, Tensor] | None = None) -> MicroBatch:
        own_loss = self.objective.own
        tensors = loaded or inputs.make(self.feed, samples, own_loss=own_loss)
        return inputs.move(tensors, self.feed, self.device, own_loss=own_loss)

    def _scale_to_one(self, loss: Tensor) -> Tensor:
        steps = self.train.gradient_accumulation_steps
        return loss / steps if steps > 1 else loss

    def _backward(self, loss: Tensor) -> None:
        self.precision.scale_loss(loss).backward()

    def _syncing(self, *, last: bool) -> AbstractContextManager[None]:
        """What is reduced in the last micro-batch only, if the job accumulates under `no_sync`."""
        no_sync = self.parallel.dp_shard.no_sync
        fsdp2.syncs(self.model, last=last, no_sync=no_sync)
        if last or not self.parallel.dp_replicate.no_sync or not isinstance(self.model, DistributedDataParallel):
            return nullcontext()
        return self.model.no_sync()

    def _step(self) -> None:
        scaler, limit = self.precision.scaler, self.train.gradient_clipping
        if limit:
            if scaler is not None:
                scaler.unscale_(self.optimizer)
            self._clip([parameter for parameter in self.bare_model.parameters() if parameter.requires_grad], limit)
        if scaler is None:
            self.optimizer.step()
        else:
            scaler.step(self.optimizer)
            scaler.update()
        self.optimizer.zero_grad(set_to_none=self.train.zero_grad_set_to_none)

    def _clip(self, trained: Sequence[nn.Parameter], limit: float) -> None:
        optimizers.clip(trained, limit)

    def _evaluate(self, spec: schema.Eval) -> None:
        """One batch without a graph: the model in eval mode, then back to training."""
        self.model.eval()
        try:
            with named_phase(Phase.EVAL), torch.no_grad():
                batch = self._batch(spec.micro_batch_size)
                with self.precision.autocast(), self.splitting(batch):
                    self.objective(self.model, batch)
        finally:
            self.model.train()


def _is_due(iteration: int, every: int, last: int) -> bool:
    return iteration % every == 0 or (iteration == last and every > last)
