"""Runs the whole step of a job on one device: load, then iterations of micro-batches, then evaluation."""

from __future__ import annotations

import gc
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn

from planner.events import Phase
from planner.job import schema
from planner.job.packages import refuse_missing_packages
from planner.job.trainer import refuse_trainer
from planner.training import (
    absent_peers,
    blocks,
    inputs,
    loss_functions,
    observers,
    optimizers,
    post_training,
)
from planner.training.device_mesh import World
from planner.training.loop import EngineLoop, Loop, Precision
from planner.training.loss_functions import Objective
from planner.training.models import adapters
from planner.training.models.build import build, materialize
from planner.training.observers import ModuleFollower, NullObserver, Observer
from planner.training.phases import named_phase
from planner.training.wraps import (
    context_parallel,
    deepspeed_engine,
    expert_parallel,
    fsdp1,
    fsdp2,
    pipelines,
    tensor_parallel,
)
from planner.training.wraps.ddp import ObservedDdp


@dataclass(slots=True)
class Outcome:
    """What is left after the step."""

    model: nn.Module
    """The model as it was wrapped."""
    optimizer: torch.optim.Optimizer
    ddp: Mapping[str, Any] = field(default_factory=dict)
    """The reducer's own account of itself (`_get_ddp_logging_data`): bucket sizes, rebuilt or not."""
    sharded_dims: tuple[int, ...] = ()
    """Sizes of the dims that are split along `dp_shard`: where they do not divide, ranks differ."""
    parts: tuple[int, ...] = ()
    """For each replica the number of the part of the optimizer that it has; empty where each has all of it."""
    adapted: Mapping[str, int] = field(default_factory=dict)
    """Elements that an adapter trains, by the name of the modules that it stands beside."""
    kept: tuple[Any, ...] = ()
    """What else lives as long as the training: the loop with its scaler, a checkpoint whose reference is kept."""


def run(
    spec: schema.Job,
    device: torch.device,
    observer: Observer | None = None,
    *,
    rank: int = 0,
    shortened: bool = False,
) -> Outcome:
    """One job's training step on this device, all phases in order. `shortened`: of a long evaluation only the parts are
    run from which the others follow.

    With a world larger than one the caller has initialised torch.distributed. Cyclic garbage is collected at the end
    of `load` and of each iteration only, so that frees come at the same places in every run; random numbers start from
    a seed that depends on nothing but the rank. Raises SpecError for whatever of the job cannot be used.
    """
    refuse_missing_packages(spec)
    refuse_trainer(spec)
    observer = NullObserver() if observer is None else observer
    blocks.forget_compiled(spec.train.compile)
    world = World.of(spec.parallel, rank, device)
    torch.manual_seed(rank)
    by_hand = nullcontext() if isinstance(observer, NullObserver) else _collect_by_hand()
    with by_hand, ExitStack() as following:
        for observe in (fsdp1.observe_fsdp, fsdp2.observe_fsdp, observers.observe_collectives):
            following.enter_context(observe(observer))
        if spec.parallel.pp.degree > 1:
            following.enter_context(pipelines.observe_pipelines(observer))
        following.enter_context(deepspeed_engine.prepare_engine(spec, device, observer))
        following.enter_context(absent_peers.agree_about_checkpoints(spec.train))
        observer.mark(Phase.LOAD, 0)
        loop, adapted = _load(spec, world, device, observer)
        loop.shortened = shortened
        if spec.post_training is not None:
            loop.others = post_training.PostTrainingPhases(loop, spec, world)
        if isinstance(observer, ModuleFollower) and observer.follows_modules:
            following.enter_context(blocks.follow(loop.bare_model, observer.enter, observer.leave, loop.compiled))
        gc.collect()
        kept = None
        if spec.train.checkpoint_load is not None:
            observer.mark(Phase.CHECKPOINT_LOAD, 0)
            with named_phase(Phase.CHECKPOINT_LOAD):
                kept = _load_checkpoint(spec.train.checkpoint_load, loop)
                gc.collect()  # what torch gathers a state dict into has cycles
        with tensor_parallel.losses(spec.parallel.tp):
            loop.run()
        blocks.require_graphs(spec.train.compile)
    model = loop.model
    return Outcome(
        model=model,
        optimizer=loop.optimizer,
        adapted=adapted,
        ddp=model.account() if isinstance(model, ObservedDdp) else {},
        sharded_dims=fsdp2.sharded_dims(loop.bare_model),
        parts=optimizers.parts(loop.optimizer),
        kept=(loop, kept),
    )


def _load(spec: schema.Job, world: World, device: torch.device, observer: Observer) -> tuple[Loop, dict[str, int]]:
    """The loop with all that it needs, and what an adapter trains."""
    spec = deepspeed_engine.resolve_job(spec)
    shard, mixed = spec.parallel.dp_shard, spec.train.precision == "fsdp_mixed"
    is_flat = world.shards and shard.kind == "fsdp1"
    is_pipelined, by_engine = world.degree("pp") > 1, deepspeed_engine.uses_engine(spec)
    if is_pipelined:
        # Pipelines alone pay for the import of torch.distributed.pipelining.
        from planner.training import pipelined_loop

        stages = pipelined_loop.parts(spec, world.coordinate("pp"))
        modules, bare = [stage.module for stage in stages], pipelined_loop.together(stages)
        feed = pipelined_loop.find_feed(spec, stages[0])
    else:
        # What is split is built without memory, split, and only then given any.
        with deepspeed_engine.partitioning(spec):
            bare = build(spec.model, torch.device("meta") if world.splits else device)
        modules, feed, feeds = [bare], inputs.find_feed(bare, spec), inputs.feeds_by_length(bare, spec)
        loss_functions.apply(bare, spec.train.loss)
    adapted = {} if spec.model.adapter is None else adapters.trained_elements(bare)
    compiled: list[nn.Module] = []
    for module in modules:
        _split(module, spec, world)
        blocks.apply_recompute(module, spec.train.recompute, spec.model.blocks)
        compiled += blocks.compile_model(module, spec.train.compile, spec.model.blocks)
        blocks.apply_offload(module, wanted=spec.train.activation_offload, pattern=spec.model.blocks)
        if world.shards and not is_flat:
            if world.degree("ep") > 1:
                expert_parallel.shard(module, shard, world, mixed=mixed)
            repeated = blocks.find_blocks(module, spec.model.blocks)
            fsdp2.shard(module, repeated, shard, world.sharding_mesh(), mixed=mixed)
    if is_flat:
        repeated = blocks.find_blocks(bare, spec.model.blocks)
        bare = fsdp1.shard(bare, repeated, shard, world.device_mesh, device, mixed=mixed)
    elif world.splits:
        materialize(bare, device, offloaded=shard.offload == "cpu")
    observers.tell_parameters(bare, observer)
    replicate, model = spec.parallel.dp_replicate, bare
    if replicate.degree > 1 and not world.shards and not by_engine:
        model = ObservedDdp(bare, replicate, observer, world.group("dp_replicate"))
    maker = optimizers.plain if by_engine else optimizers.optimizer_maker(spec, world)
    optimizer = optimizers.build(spec.train.optimizer, bare.parameters(), maker)
    optimizers.keep_embeddings_in_full(optimizer, bare)
    if by_engine:
        model = deepspeed_engine.wrap_model(spec, bare, optimizer)
    else:
        blocks.compile_optimizer(optimizer, spec.train.compile)
    common: dict[str, Any] = {
        "train": spec.train,
        "parallel": spec.parallel,
        "model": model,
        "bare_model": bare,
        "optimizer": optimizer,
        "objective": Objective(spec.train.loss, feed, device, observer, spec.train.compile),
        "feed": feed,
        "precision": Precision("bf16_autocast" if shard.autocast else spec.train.precision, device),
        "device": device,
        "observer": observer,
        "compiled": compiled,
    }
    if is_pipelined:
        return pipelined_loop.PipelinedLoop(**common, spec=spec, world=world, parts=stages), adapted
    if by_engine:
        return EngineLoop(**common, feeds=feeds), adapted
    splitting = context_parallel.splitting(spec.parallel.cp, world)
    return Loop(**common, feeds=feeds, splitting=splitting), adapted


def _load_checkpoint(spec: schema.CheckpointLoad, loop: Loop) -> Any:
    # Jobs that load alone pay for the import of torch.distributed.checkpoint.
    from planner.training import checkpoints

    loading = checkpoints.Loading(
        spec=spec,
        model=loop.bare_model,
        optimizer=loop.optimizer,
        device=loop.device,
        observer=loop.observer,
    )
    with absent_peers.naming_devices():
        state = checkpoints.LOADS[spec.kind](loading)
    observers.tell_optimizer_state(loop.optimizer, loop.bare_model, loop.observer)
    return state if spec.keep_reference else None


def _split(module: nn.Module, spec: schema.Job, world: World) -> None:
    if world.degree("tp") > 1:
        tensor_parallel.split(module, spec.parallel.tp, world.device_mesh["tp"])
    if world.degree("ep") > 1:
        expert_parallel.split(module, spec.parallel.ep, world)
    if world.degree("pp") == 1 or list(expert_parallel.find_experts(module)):  # a stage may have no experts
        expert_parallel.force(module, spec.parallel.ep, expert_parallel.fullest(world))


@contextmanager
def _collect_by_hand() -> Iterator[None]:
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
