"""Runs the whole step of a job on one device: load, then iterations of micro-batches, then evaluation."""

from __future__ import annotations

import gc
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from planner.events import Phase
from planner.job import schema
from planner.job.packages import refuse_missing_packages
from planner.training import absent_peers, blocks, inputs, optimizers
from planner.training.device_mesh import World
from planner.training.loop import Loop, Precision
from planner.training.loss_functions import Objective
from planner.training.models.build import build, materialize
from planner.training.phases import named_phase
from planner.training.wraps import context_parallel, ddp, expert_parallel, fsdp2, tensor_parallel


@dataclass(slots=True)
class Outcome:
    """What is left after the step."""

    model: nn.Module
    """The model as it was wrapped."""
    optimizer: torch.optim.Optimizer
    loop: Loop
    """With its scaler."""


def run(spec: schema.Job, device: torch.device, *, rank: int = 0, steps: int = 0) -> Outcome:
    """One job's training step on this device, all phases in order. `steps`: so many are run, of a job whose batches
    differ in length (0: all).

    With a world larger than one the caller has initialised torch.distributed. Cyclic garbage is collected at the end
    of `load` and of each iteration; random numbers start from a seed that depends on nothing but the rank. Raises
    SpecError for whatever of the job cannot be used.
    """
    refuse_missing_packages(spec)
    blocks.forget_compiled(spec.train.compile)
    world = World.of(spec.parallel, rank, device)
    torch.manual_seed(rank)
    with absent_peers.agree_about_checkpoints(spec.train):
        loop = _load(spec, world, device)
        loop.steps = steps
        gc.collect()
        if spec.train.checkpoint_load is not None:
            with named_phase(Phase.CHECKPOINT_LOAD):
                _load_checkpoint(spec.train.checkpoint_load, loop)
                gc.collect()  # what torch gathers a state dict into has cycles
        with tensor_parallel.losses(spec.parallel.tp):
            loop.run()
        blocks.require_graphs(spec.train.compile)
    return Outcome(model=loop.model, optimizer=loop.optimizer, loop=loop)


def _load(spec: schema.Job, world: World, device: torch.device) -> Loop:
    """The loop with all that it needs."""
    shard, mixed = spec.parallel.dp_shard, spec.train.precision == "fsdp_mixed"
    is_pipelined = world.degree("pp") > 1
    if is_pipelined:
        # Pipelines alone pay for the import of torch.distributed.pipelining.
        from planner.training import pipelined_loop

        stages = pipelined_loop.parts(spec, world.coordinate("pp"))
        modules, bare = [stage.module for stage in stages], pipelined_loop.together(stages)
        feed = pipelined_loop.find_feed(spec, stages[0])
    else:
        # What is split is built without memory, split, and only then given any.
        bare = build(spec.model, torch.device("meta") if world.splits else device)
        modules, feed = [bare], inputs.find_feed(bare, spec)
    for module in modules:
        _split(module, spec, world)
        blocks.apply_recompute(module, spec.train.recompute, spec.model.blocks)
        blocks.compile_model(module, spec.train.compile, spec.model.blocks)
        blocks.apply_offload(module, wanted=spec.train.activation_offload, pattern=spec.model.blocks)
        if world.shards:
            if world.degree("ep") > 1:
                expert_parallel.shard(module, shard, world, mixed=mixed)
            repeated = blocks.find_blocks(module, spec.model.blocks)
            fsdp2.shard(module, repeated, shard, world.sharding_mesh(), mixed=mixed)
    if world.splits:
        materialize(bare, device, offloaded=shard.offload == "cpu")
    replicate, model = spec.parallel.dp_replicate, bare
    if replicate.degree > 1 and not world.shards:
        model = ddp.replicate(bare, replicate, world.group("dp_replicate"))
    optimizer = optimizers.build(spec.train.optimizer, bare.parameters(), optimizers.optimizer_maker(spec, world))
    blocks.compile_optimizer(optimizer, spec.train.compile)
    objective = Objective(spec.train.loss, feed, device, spec.train.compile)
    common: dict[str, Any] = {
        "train": spec.train,
        "parallel": spec.parallel,
        "model": model,
        "bare_model": bare,
        "optimizer": optimizer,
        "objective": objective,
        "feed": feed,
        "precision": Precision(spec.train.precision, device),
        "device": device,
    }
    if is_pipelined:
        return pipelined_loop.PipelinedLoop(**common, spec=spec, world=world, parts=stages)
    if spec.train.lengths is not None:
        common["data"] = inputs.BatchesOfLengths(bare, spec, own_loss=objective.own)
    return Loop(**common, splitting=context_parallel.splitting(spec.parallel.cp, world))


def _load_checkpoint(spec: schema.CheckpointLoad, loop: Loop) -> None:
    # Jobs that load alone pay for the import of torch.distributed.checkpoint.
    from planner.training import checkpoints

    loading = checkpoints.Loading(
        spec=spec,
        model=loop.bare_model,
        optimizer=loop.optimizer,
        device=loop.device,
    )
    with absent_peers.naming_devices():
        checkpoints.LOADS[spec.kind](loading)


def _split(module: nn.Module, spec: schema.Job, world: World) -> None:
    if world.degree("tp") > 1:
        tensor_parallel.split(module, spec.parallel.tp, world.device_mesh["tp"])
    if world.degree("ep") > 1:
        expert_parallel.split(module, spec.parallel.ep, world)
    if world.degree("pp") == 1 or list(expert_parallel.find_experts(module)):  # a stage may have no experts
        expert_parallel.force(module, spec.parallel.ep, expert_parallel.fullest(world))
