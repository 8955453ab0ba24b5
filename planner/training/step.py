"""The whole step of a job on one device: load, then iterations of micro-batches, then what is evaluated."""

from __future__ import annotations

import gc
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn

from planner.errors import SpecError
from planner.events import Phase
from planner.spec import job
from planner.training import checkpoints, inputs, optimizers, ownership, recompute, scopes
from planner.training.loop import Loop
from planner.training.loss import Objective
from planner.training.models.build import build
from planner.training.observer import ModuleFollower, Observer, Silent
from planner.training.precision import Precision
from planner.training.wraps.ddp import Replicated


@dataclass(slots=True)
class Outcome:
    """What is left after the step, for whoever looks into it."""

    model: nn.Module
    """The model as it was wrapped."""
    optimizer: torch.optim.Optimizer
    recomputed: list[str]
    """Paths of the blocks that recompute."""
    ddp: Mapping[str, Any] = field(default_factory=dict)
    """The reducer's own account of itself (`_get_ddp_logging_data`): bucket sizes, rebuilt or not."""
    kept: tuple[Any, ...] = ()
    """What else lives as long as the training: the loop with its scaler, a checkpoint whose reference is kept."""


def run(spec: job.Job, device: torch.device, observer: Observer | None = None, *, rank: int = 0) -> Outcome:
    """One job's training step on this device, all phases in order.

    With a world larger than one the caller has initialised torch.distributed. Cyclic garbage is collected at the end
    of `load` and of each iteration only, so that frees come at the same places in every run; random numbers start from
    a seed that depends on nothing but the rank. Raises SpecError for whatever of the job cannot be used.
    """
    watching = Silent() if observer is None else observer
    _refuse_other_parallelism(spec.parallel)
    torch.manual_seed(rank)
    with _collecting_by_hand(), ExitStack() as following:
        watching.mark(Phase.LOAD, 0)
        loop, recomputed = _load(spec, device, watching)
        if isinstance(watching, ModuleFollower) and watching.follows_modules:
            following.enter_context(scopes.follow(loop.bare_model, watching.enter, watching.leave))
        gc.collect()
        kept = None
        if spec.train.checkpoint_load is not None:
            watching.mark(Phase.CHECKPOINT_LOAD, 0)
            kept = checkpoints.load(loop.bare_model, spec.train.checkpoint_load, device, watching)
        loop.run()
    wrapped = loop.model
    ddp = wrapped.account() if isinstance(wrapped, Replicated) else {}
    return Outcome(model=wrapped, optimizer=loop.optimizer, recomputed=recomputed, ddp=ddp, kept=(loop, kept))


def _load(spec: job.Job, device: torch.device, observer: Observer) -> tuple[Loop, list[str]]:
    precision = Precision(spec.train.precision, device)
    bare = build(spec.model, device)
    ownership.tell_parameters(bare, observer)
    recomputed = recompute.apply(bare, spec.train.recompute, spec.model.blocks)
    feed = inputs.feed_of(bare, spec)
    replicate = spec.parallel.dp_replicate
    model = Replicated(bare, replicate, observer) if replicate.degree > 1 else bare
    loop = Loop(
        train=spec.train,
        replicate=replicate,
        model=model,
        bare_model=bare,
        optimizer=optimizers.build(spec.train.optimizer, bare.parameters()),
        objective=Objective(spec.train.loss, feed, device, observer),
        feed=feed,
        precision=precision,
        device=device,
        observer=observer,
    )
    return loop, recomputed


def _refuse_other_parallelism(parallel: job.Parallel) -> None:
    degrees = {
        "dp_shard": parallel.dp_shard.degree, "tp": parallel.tp, "pp": parallel.pp.degree,
        "cp": parallel.cp, "ep": parallel.ep,
    }  # fmt: skip
    for axis, degree in degrees.items():
        if degree != 1:
            raise SpecError(f"{axis} {degree} cannot be run", allowed="1", place=f"parallel.{axis}")


@contextmanager
def _collecting_by_hand() -> Iterator[None]:
    was_enabled = gc.isenabled()
    gc.collect()
    # What was there before is not looked at again: a collection then takes milliseconds.
    gc.freeze()
    gc.disable()
    try:
        yield
    finally:
        gc.unfreeze()
        if was_enabled:
            gc.enable()
