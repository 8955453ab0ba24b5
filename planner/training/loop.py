"""The training loop: micro-batches, clipping, the optimizer's step, evaluation.

What lives how long is that of transformers' Trainer and of torchtitan: the model's output ends with the computation of
the loss, before the backward; the micro-batch and its loss live until the backward has ended.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import chain
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from planner.events import Category, Phase
from planner.job import schema
from planner.job.length_draws import Steps, draw_steps
from planner.training import clipping, compiling, folding, inputs, ownership
from planner.training.evaluation import Evaluation, Generation
from planner.training.feed import Feed
from planner.training.folded_accumulation import accumulation_folder_of
from planner.training.host import Host
from planner.training.loss import Objective
from planner.training.observer import NullObserver, Observer
from planner.training.other_phases import NO_OTHER_PHASES, OtherPhases
from planner.training.precision import Precision
from planner.training.wraps import context_parallel, fsdp2, in_backward, zero_redundancy
from planner.training.wraps.ddp import ObservedDdp, fewest_iterations

if TYPE_CHECKING:
    from planner.training.checkpoint_saving import CheckpointSaver

_FEWEST_GROWING = 7
"""Iterations of a step that keeps something: so many show what one keeps."""


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
    observer: Observer
    host: Host
    splitting: context_parallel.Split = field(default=context_parallel.whole)
    compiled: Sequence[nn.Module] = ()
    """Modules whose forward is compiled."""
    others: OtherPhases = NO_OTHER_PHASES
    """What happens between iterations: another model's forwards, a rollout."""
    feeds: Mapping[int, Feed] = field(default_factory=dict)
    """Batches by their length, of a run in which it differs."""

    def __post_init__(self) -> None:
        self._losses: list[Tensor] = []
        if self.train.retains == "output":
            self.objective.outputs = []
        self._folder = accumulation_folder_of(self.observer, self.bare_model, self.train, self.parallel)

    @cached_property
    def _steps(self) -> Steps:
        """The lengths of each step's micro-batches, where they differ."""
        return draw_steps(self.train) if self.train.lengths is not None else ()

    @cached_property
    def _coming(self) -> Iterator[int]:
        return chain.from_iterable(self._steps)

    def run(self) -> None:
        """All iterations; an evaluation after every `eval.every`, or after the last if none came before."""
        with self._telling_gradients(), in_backward.stepping(self.optimizer, self._tell_state):
            folder = None if self.others else folding.folder_of(self.observer)
            self.others.begin()
            for iteration in range(1, self._iterations() + 1):
                began = folder.place() if folder else 0
                known = compiling.graphs_so_far()
                self.others.before(iteration)
                self._iterate(iteration)
                if self._evaluates(iteration):
                    self._evaluate(iteration)
                if self._saves(iteration):
                    self.saver.save(iteration)
                gc.collect()
                self.others.after(iteration)
                if self.train.empty_cache_every and iteration % self.train.empty_cache_every == 0:
                    self._empty_cache()
                settled = iteration > 1 and compiling.graphs_so_far() == known
                if folder and settled and folding.iterations_are_alike(self.train, self.parallel):
                    folder.repeat(began, folder.place(), self._iterations() - iteration)
                    break
            if self.train.checkpoint_save is not None:
                self.saver.finish()

    def optimizer_parts(self) -> tuple[int, ...]:
        """For each replica the number of the part of the optimizer that it has; empty where each has all of it."""
        return zero_redundancy.parts(self.optimizer)

    def _telling_gradients(self) -> AbstractContextManager[None]:
        views = self.parallel.dp_replicate.gradient_as_bucket_view and self.parallel.dp_replicate.degree > 1
        return ownership.telling_gradients(self.bare_model, self.observer, bucket_views=views)

    def _tell_state(self, optimizer: torch.optim.Optimizer) -> None:
        ownership.tell_optimizer_state(optimizer, self.bare_model, self.observer)

    def _iterate(self, iteration: int) -> None:
        steps = self.train.gradient_accumulation_steps
        for micro_batch in self._micro_batches(iteration):
            with self._syncing(last=micro_batch == steps):
                self._micro_batch(iteration)
        self.observer.mark(Phase.OPTIMIZER_STEP, iteration)
        self._step()

    def _micro_batches(self, iteration: int) -> Iterator[int]:
        """Those of an accumulation that have to be run, counted from 1; of the others the observer is told."""
        steps, folder, micro_batch = self.train.gradient_accumulation_steps, self._folder, 1
        while micro_batch <= steps:
            told = folder.tell(iteration, micro_batch) if folder else 0
            if told:
                self._leave_out(told)
            else:
                with folder.watch(iteration, micro_batch) if folder else nullcontext():
                    yield micro_batch
            micro_batch += told or 1

    def _leave_out(self, micro_batches: int) -> None:
        """So many micro-batches are not run."""

    def _micro_batch(self, iteration: int) -> None:
        self.observer.mark(Phase.FORWARD, iteration)
        feed = self.feeds[next(self._coming)] if self._steps else self.feed
        batch = inputs.make(feed, self.train.micro_batch_size, self.device, self.observer, own_loss=self.objective.own)
        self.host.take_batch(batch.tensors())
        with self.splitting(batch):
            with self.precision.autocast():
                loss = self.objective(self.model, batch)
            loss = self._of_one(loss)
            self.observer.mark(Phase.BACKWARD, iteration)
            self._backward(loss)
        if self.train.retains == "loss":
            self._losses.append(loss)
        self._tell_communication()
        ownership.tell_gradients(self.bare_model, self.observer)

    def _of_one(self, loss: Tensor) -> Tensor:
        """What one micro-batch has of the loss."""
        steps = self.train.gradient_accumulation_steps
        return loss / steps if steps > 1 else loss

    def _backward(self, loss: Tensor) -> None:
        with compiling.compiled_backward(self.train.compile):
            self.precision.scale_loss(loss).backward()

    def _step(self) -> None:
        scaler, limit = self.precision.scaler, self.train.gradient_clipping
        if limit:
            if scaler is not None:
                scaler.unscale_(self.optimizer)
            self._clip(limit)
        if scaler is None:
            self.optimizer.step()
        else:
            scaler.step(self.optimizer)
            scaler.update()
        if not isinstance(self.observer, NullObserver):
            self._tell_state(self.optimizer)
        self.optimizer.zero_grad(set_to_none=self.train.zero_grad_set_to_none)

    def _clip(self, limit: float) -> None:
        clipping.clip(self.host.select_clipped(self._trained_parameters()), limit)

    def _empty_cache(self) -> None:
        if self.device.type == "cuda":
            torch.cuda.empty_cache()

    def _trained_parameters(self) -> Iterator[nn.Parameter]:
        return (parameter for parameter in self.bare_model.parameters() if parameter.requires_grad)

    def _syncing(self, *, last: bool) -> AbstractContextManager[None]:
        """What is reduced in the last micro-batch only, if the job accumulates under `no_sync`."""
        fsdp2.syncs(self.model, last=last, no_sync=self.parallel.dp_shard.no_sync)
        if last or not self.parallel.dp_replicate.no_sync or not isinstance(self.model, DistributedDataParallel):
            return nullcontext()
        return self.model.no_sync()

    def _tell_communication(self) -> None:
        if isinstance(self.observer, NullObserver) or not isinstance(self.model, ObservedDdp):
            return
        for name, tensor in self.model.communication_tensors():
            self.observer.assign(tensor, Category.COMMUNICATION, name)

    def _iterations(self) -> int:
        if self._steps:
            return len(self._steps)
        fewest = max(fewest_iterations(self.parallel.dp_replicate), compiling.fewest_iterations(self.train.compile))
        return max(self.train.iterations, fewest, _FEWEST_GROWING if self.train.retains else 0)

    def _evaluates(self, iteration: int) -> bool:
        if self.train.eval is None:
            return False
        return _is_due(iteration, self.train.eval.every, self._iterations())

    def _saves(self, iteration: int) -> bool:
        if self.train.checkpoint_save is None:
            return False
        return _is_due(iteration, self.train.checkpoint_save.every, self._iterations())

    @cached_property
    def saver(self) -> CheckpointSaver:
        """What saves checkpoints, where the job does."""
        # Jobs that save alone pay for the import of torch.distributed.checkpoint.
        from planner.training.checkpoint_saving import CheckpointSaver

        assert self.train.checkpoint_save is not None
        return CheckpointSaver(self.train.checkpoint_save, self.bare_model, self.optimizer, self.observer, self.host)

    def _evaluate(self, iteration: int) -> None:
        """Without a graph: the model in eval mode, as the job evaluates, then back to training."""
        spec = self.train.eval
        assert spec is not None
        shortened = folding.folder_of(self.observer) is not None
        steps = Evaluation(
            spec=spec,
            objective=self.objective,
            batch=lambda: self._evaluation_batch(spec),
            mark=lambda phase: self.observer.mark(phase, iteration),
            around=self._splitting_and_autocast,
            to_host=self.host.take_result,
            free=self._empty_cache,
        )
        with _evaluating(self.model):
            steps.run(self.model, shortened=shortened)
            if spec.generate is not None:
                self._generate(spec.generate, iteration, shortened=shortened)

    def _evaluation_batch(self, spec: schema.Eval) -> inputs.MicroBatch:
        own = self.objective.own
        batch = inputs.make(self.feed, spec.micro_batch_size, self.device, self.observer, own_loss=own)
        self.host.take_batch(batch.tensors())
        return batch

    def _generate(self, spec: schema.Generate, iteration: int, *, shortened: bool) -> None:
        generation = Generation(
            spec=replace(spec, prompt_tokens=spec.prompt_tokens or self.train.sequence_length),
            feed=self.feed,
            prompt=lambda tokens: inputs.prompts(self.feed, spec.batch, tokens, self.device, self.observer),
            mark=lambda: self.observer.mark(Phase.GENERATE, iteration),
            autocast=self.precision.autocast,
        )
        generation.run(self.bare_model, shortened=shortened)

    @contextmanager
    def _splitting_and_autocast(self, batch: inputs.MicroBatch) -> Iterator[None]:
        with self.precision.autocast(), self.splitting(batch):
            yield


def _is_due(iteration: int, every: int, last: int) -> bool:
    """After every so many iterations, or after the last if none came before."""
    return iteration % every == 0 or (iteration == last and every > last)


@contextmanager
def _evaluating(model: nn.Module) -> Iterator[None]:
    model.eval()
    try:
        yield
    finally:
        model.train()
