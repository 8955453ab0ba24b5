"""Runs the whole step of a job on one device: load, then iterations of micro-batches, then evaluation."""

from __future__ import annotations

import gc
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn

from planner.events import Phase
from planner.job import schema
from planner.training import (
    absent_peers,
    blocks,
    checkpoints,
    inputs,
    loss_functions,
    observers,
    optimizers,
    post_training,
)
from planner.training.batch_shapes import Feed
from planner.training.checkpoint_reading import Loading
from planner.training.device_mesh import World
from planner.training.host import Host, RealHost
from planner.training.loop import EngineLoop, Loop, Precision
from planner.training.loss_functions import Objective
from planner.training.models.build import build, materialize
from planner.training.observers import ModuleFollower, NullObserver, Observer
from planner.training.wraps import (
    context_parallel,
    deepspeed_engine,
    expert_parallel,
    fsdp2,
    tensor_parallel,
)
from planner.training.wraps.ddp import ObservedDdp


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
    sharded_dims: tuple[int, ...] = ()
    """Sizes of the dims that are split along `dp_shard`: where they do not divide, ranks differ."""
    parts: tuple[int, ...] = ()
    """For each replica the number of the part of the optimizer that it has; empty where each has all of it."""
    kept: tuple[Any, ...] = ()
    """What else lives as long as the training: the loop with its scaler, a checkpoint whose reference is kept."""


def run(
    spec: schema.Job,
    device: torch.device,
    observer: Observer | None = None,
    *,
    rank: int = 0,
    host: Host | None = None,
) -> Outcome:
    """One job's training step on this device, all phases in order; `host` does what is done on the host, by default
    for real.

    With a world larger than one the caller has initialised torch.distributed. Cyclic garbage is collected at the end
    of `load` and of each iteration only, so that frees come at the same places in every run; random numbers start from
    a seed that depends on nothing but the rank. Raises SpecError for whatever of the job cannot be used.
    """
    watching = NullObserver() if observer is None else observer
    blocks.forget_compiled(spec.train.compile)
    world, doing = World.of(spec.parallel, rank, device), RealHost() if host is None else host
    torch.manual_seed(rank)
    with (
        _collecting_by_hand(),
        fsdp2.observe_fsdp(watching),
        observers.observe_collectives(watching),
        ExitStack() as following,
    ):
        following.enter_context(deepspeed_engine.prepare_engine(spec, device, watching))
        following.enter_context(absent_peers.where_absent(spec.train))
        watching.mark(Phase.LOAD, 0)
        place = _StepContext(world, device, watching, doing)
        loop, recomputed = _load(spec, place)
        if spec.post_training is not None:
            loop.others = post_training.phases_around(loop, spec, world, doing)
        if isinstance(watching, ModuleFollower) and watching.follows_modules:
            following.enter_context(blocks.follow(loop.bare_model, watching.enter, watching.leave, loop.compiled))
        gc.collect()
        kept = None
        if spec.train.checkpoint_load is not None:
            watching.mark(Phase.CHECKPOINT_LOAD, 0)
            kept = checkpoints.load(
                Loading(
                    spec=spec.train.checkpoint_load,
                    model=loop.bare_model,
                    optimizer=loop.optimizer,
                    device=device,
                    observer=watching,
                    host=doing,
                )
            )
        with tensor_parallel.losses(spec.parallel.tp):
            loop.run()
    wrapped = loop.model
    ddp = wrapped.account() if isinstance(wrapped, ObservedDdp) else {}
    return Outcome(
        model=wrapped,
        optimizer=loop.optimizer,
        recomputed=recomputed,
        ddp=ddp,
        sharded_dims=fsdp2.sharded_dims(loop.bare_model),
        parts=loop.optimizer_parts(),
        kept=(loop, kept),
    )


@dataclass(frozen=True, slots=True)
class _StepContext:
    """Where and for whom a step runs."""

    world: World
    device: torch.device
    observer: Observer
    host: Host


def _load(spec: schema.Job, place: _StepContext) -> tuple[Loop, list[str]]:
    world, device, observer = place.world, place.device, place.observer
    if world.degree("pp") > 1:
        return _load_pipeline(spec, place)
    spec = deepspeed_engine.resolve_job(spec)
    # What is split is built without memory, split, and only then given any.
    with deepspeed_engine.partitioning(spec):
        bare = build(spec.model, torch.device("meta") if world.splits else device)
    feed, feeds = inputs.feed_of(bare, spec), inputs.feeds_by_length(bare, spec)
    loss_functions.apply(bare, spec.train.loss)
    if world.degree("tp") > 1:
        tensor_parallel.split(bare, spec.parallel.tp, world.device_mesh["tp"])
    if world.degree("ep") > 1:
        expert_parallel.split(bare, spec.parallel.ep, world)
    expert_parallel.force(bare, spec.parallel.ep, expert_parallel.fullest(world))
    recomputed = blocks.apply_recompute(bare, spec.train.recompute, spec.model.blocks)
    compiled = blocks.compile_model(bare, spec.train.compile, spec.model.blocks)
    blocks.apply_offload(bare, wanted=spec.train.activation_offload, host=place.host, pattern=spec.model.blocks)
    if world.shards:
        found = [block for _, block in blocks.find(bare, spec.model.blocks)]
        mixed = spec.train.precision == "fsdp_mixed"
        if world.degree("ep") > 1:
            expert_parallel.shard(bare, spec.parallel.dp_shard, world, mixed=mixed)
        fsdp2.shard(bare, found, spec.parallel.dp_shard, world.sharding_mesh(), mixed=mixed)
    if world.splits:
        materialize(bare, device, place.host, offloaded=spec.parallel.dp_shard.offload == "cpu")
    observers.tell_parameters(bare, observer)
    if deepspeed_engine.uses_engine(spec):
        optimizer = optimizers.build(spec.train.optimizer, bare.parameters())
        engine = deepspeed_engine.wrap_model(spec, bare, optimizer, observer)
        parts = _parts_of_a_loop(spec, place, engine, bare, optimizer, feed)
        return EngineLoop(**parts, feeds=feeds, compiled=compiled), recomputed
    replicate = spec.parallel.dp_replicate
    alone = replicate.degree == 1 or world.shards
    model = bare if alone else ObservedDdp(bare, replicate, observer, world.group("dp_replicate"))
    optimizer = optimizers.build(spec.train.optimizer, bare.parameters(), optimizers.optimizer_maker(spec, world))
    blocks.compile_optimizer(optimizer, spec.train.compile)
    splitting = context_parallel.splitting(spec.parallel.cp, world)
    parts = _parts_of_a_loop(spec, place, model, bare, optimizer, feed)
    return Loop(**parts, feeds=feeds, splitting=splitting, compiled=compiled), recomputed


def _parts_of_a_loop(
    spec: schema.Job,
    place: _StepContext,
    model: nn.Module,
    bare: nn.Module,
    optimizer: torch.optim.Optimizer,
    feed: Feed,
) -> dict[str, Any]:
    """What every loop is made of."""
    return {
        "train": spec.train,
        "parallel": spec.parallel,
        "model": model,
        "bare_model": bare,
        "optimizer": optimizer,
        "objective": Objective(spec.train.loss, feed, place.device, place.observer, spec.train.compile),
        "feed": feed,
        "precision": Precision(spec.train.precision, place.device),
        "device": place.device,
        "observer": place.observer,
        "host": place.host,
    }


def _load_pipeline(spec: schema.Job, place: _StepContext) -> tuple[Loop, list[str]]:
    """As `_load`, for each of the parts of the model that this rank has."""
    # Pipelines alone pay for the import of torch.distributed.pipelining.
    from planner.training import pipelined_loop

    world = place.world
    parts = pipelined_loop.parts(spec, world.coordinate("pp"))
    recomputed, compiled = [], []
    for part in parts:
        if world.degree("tp") > 1:
            tensor_parallel.split(part.module, spec.parallel.tp, world.device_mesh["tp"])
        if list(expert_parallel.experts_of(part.module)):
            expert_parallel.force(part.module, spec.parallel.ep)
        recomputed += blocks.apply_recompute(part.module, spec.train.recompute, spec.model.blocks)
        compiled += blocks.compile_model(part.module, spec.train.compile, spec.model.blocks)
        if world.shards:
            found = [block for _, block in blocks.find(part.module, spec.model.blocks)]
            mixed = spec.train.precision == "fsdp_mixed"
            fsdp2.shard(part.module, found, spec.parallel.dp_shard, world.sharding_mesh(), mixed=mixed)
    bare = pipelined_loop.together(parts)
    materialize(bare, place.device, place.host, offloaded=spec.parallel.dp_shard.offload == "cpu")
    observers.tell_parameters(bare, place.observer)
    optimizer = optimizers.build(spec.train.optimizer, bare.parameters())
    blocks.compile_optimizer(optimizer, spec.train.compile)
    loop = pipelined_loop.PipelinedLoop(
        **_parts_of_a_loop(spec, place, bare, bare, optimizer, pipelined_loop.feed_of(spec, parts[0])),
        compiled=compiled,
        spec=spec,
        world=world,
        parts=parts,
        modules=[part.module for part in parts],
    )
    return loop, recomputed


@contextmanager
def _collecting_by_hand() -> Iterator[None]:
    was_enabled = gc.isenabled()
    # What was there before, garbage or not, is not looked at: a collection then takes milliseconds.
    gc.freeze()
    gc.disable()
    try:
        yield
    finally:
        gc.unfreeze()
        if was_enabled:
            gc.enable()
