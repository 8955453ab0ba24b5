"""Watches all that torch takes memory for in a training, for a recorder."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any, Protocol
from weakref import WeakSet

import torch
from torch import nn
from torch.nn.modules.module import register_module_forward_pre_hook
from torch.optim.optimizer import Optimizer, register_optimizer_step_post_hook, register_optimizer_step_pre_hook
from torch.utils.weak import WeakIdKeyDictionary

from planner.events import Phase
from planner.roles import pipelines, replication, sharding
from planner.roles.modules import ModuleRoles
from planner.roles.recording import RoleRecorder
from planner.training.phases import Phases

_CHECKPOINTS = (Phase.CHECKPOINT_LOAD, Phase.CHECKPOINT_SAVE)


class TrainingRecorder(RoleRecorder, Protocol):
    """Hears of phases, too."""

    def mark(self, phase: Phase, iteration: int) -> None:
        """A phase begins; iterations count from 1, 0 is before the first."""


@contextmanager
def watch_parallelism(recorder: RoleRecorder) -> Iterator[None]:
    """Inside, the recorder hears of what torch takes to replicate, to shard and to divide a model."""
    with (
        replication.watch_ddp(recorder),
        replication.watch_collectives(recorder),
        sharding.watch_flat_units(recorder),
        sharding.watch_fully_shard(recorder),
        pipelines.watch_stages(recorder),
    ):
        yield


@contextmanager
def watch_training(recorder: TrainingRecorder, device_type: str) -> Iterator[None]:
    """Inside, the recorder hears of a program's phases, and what its memory on a type of device is for."""
    modules, is_root = ModuleRoles(recorder, device_type), WeakIdKeyDictionary()
    stepped: WeakSet[Optimizer] = WeakSet()
    now = Phase.LOAD

    def begins(phase: Phase, iteration: int) -> None:
        nonlocal now
        if now in _CHECKPOINTS:  # in which optimizers step to have a state that is then replaced
            for optimizer in stepped:
                modules.assign_state(optimizer)
        now = phase
        recorder.mark(phase, iteration)

    def forward_begins(module: nn.Module, _arguments: Any) -> None:
        if torch.compiler.is_compiling():
            return
        if module not in is_root:
            is_root.update((inner, inner is module) for inner in module.modules())
            modules.take(module)
        elif is_root[module]:
            modules.take_again(module)
        if is_root[module]:
            phases.forward_begins()

    def step_begins(optimizer: Optimizer, *_arguments: Any) -> None:
        if now not in _CHECKPOINTS:
            modules.begin_step(optimizer)

    def step_ends(optimizer: Optimizer, *_arguments: Any) -> None:
        stepped.add(optimizer)
        if now not in _CHECKPOINTS:
            modules.assign_state(optimizer)
            phases.step_ends()
            if not phases.are_named:  # as where it is planned
                gc.collect()

    phases = Phases(begins)
    with watch_parallelism(recorder), phases.heard(), ExitStack() as hooks:
        for handle in (
            register_module_forward_pre_hook(forward_begins),
            register_optimizer_step_pre_hook(step_begins),
            register_optimizer_step_post_hook(step_ends),
        ):
            hooks.callback(handle.remove)
        yield
