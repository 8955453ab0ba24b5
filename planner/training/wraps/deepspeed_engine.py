"""Wraps a model in DeepSpeed's own ZeRO stages: its division of the model, hooks, engine and optimizer."""

from __future__ import annotations

import importlib
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import nn

from planner import upstream
from planner.errors import SpecError
from planner.job import deepspeed_config, deepspeed_engine_config, schema
from planner.training.observer import NullObserver, Observer
from planner.training.wraps import deepspeed_library, deepspeed_roles
from planner.training.wraps.deepspeed_partitions import Partitions

_PLACE = "parallel.deepspeed"
_TRAINERS_CONFIG = "transformers.integrations.deepspeed:_hf_deepspeed_config_weak_ref"


def uses_engine(spec: schema.Job) -> bool:
    """Whether the job is run by DeepSpeed's own engine."""
    return spec.parallel.deepspeed is not None


def stage_of(spec: schema.Job) -> int:
    """The stage of a job that the engine runs."""
    return deepspeed_config.zero_of(spec).stage


def resolve_job(spec: schema.Job) -> schema.Job:
    """The job as the engine makes it: the model cast, the config's optimizer in place of the job's.

    The cast comes before the model is moved to the device, and not at all in float32 (DeepSpeed 0.19.8,
    runtime/engine.py).
    """
    if not uses_engine(spec):
        return spec
    zero = deepspeed_config.zero_of(spec)
    model = spec.model if zero.dtype == "float32" else replace(spec.model, parameter_dtype=zero.dtype)
    return replace(spec, model=model, train=replace(spec.train, optimizer=zero.optimizer))


@contextmanager
def prepare_engine(spec: schema.Job, device: torch.device, observer: Observer) -> Iterator[None]:
    """Inside, a job that is run by the engine finds DeepSpeed in its world, and the observer hears what it sends."""
    if not uses_engine(spec):
        yield
        return
    with (
        deepspeed_library.use_deepspeed(device, stage_of(spec)),
        deepspeed_roles.observe_deepspeed(observer),
        warnings.catch_warnings(),
    ):
        warnings.simplefilter("ignore", FutureWarning)  # of torch, whose collectives have new names
        yield


@contextmanager
def partitioning(spec: schema.Job) -> Iterator[None]:
    """Inside, under stage 3, the parameters of every module are divided as soon as it is made.

    By `deepspeed.zero.Init`; for a model of transformers by its own use of it, as under its Trainer."""
    if not uses_engine(spec) or stage_of(spec) != 3:
        yield
        return
    # What torch remembers of itself, it has to remember as it is outside the context, which replaces it.
    importlib.import_module("torch._dynamo")
    torch.utils._device._device_constructors()
    library, config = deepspeed_library.library(), deepspeed_engine_config.engine_config(spec)
    library.comm.init_distributed(dist_backend=torch.distributed.get_backend(), verbose=False)
    with _refusing():
        if spec.model.hf_config is None:
            with library.zero.Init(config_dict_or_path=config):
                yield
        else:
            trainers = _TrainerConfig(config)
            with upstream.patch_targets("trainer's deepspeed config", replaced={_TRAINERS_CONFIG: lambda: trainers}):
                yield


@dataclass(frozen=True)
class _TrainerConfig:
    """What transformers keeps of its Trainer's config (5.23, integrations/deepspeed.py)."""

    config: Mapping[str, Any]

    def is_zero3(self) -> bool:
        return True


def wrap_model(spec: schema.Job, model: nn.Module, optimizer: torch.optim.Optimizer, observer: Observer) -> Any:
    """The engine around the model, whose own optimizer divides what the job's optimizer steps. Raises SpecError for
    a config that DeepSpeed refuses, in its words."""
    watched = not isinstance(observer, NullObserver)
    if watched:
        deepspeed_roles.tell_parameters(model, observer)
    with _refusing():
        engine, *_ = deepspeed_library.library().initialize(
            model=model, optimizer=optimizer, config=deepspeed_engine_config.engine_config(spec)
        )
    if watched:
        deepspeed_roles.tell_flat(engine.optimizer, observer)
    return engine


def release(engine: Any, device: torch.device) -> None:
    """Ends the engine of a step that is over: its hooks on parameters would keep it, and all that it has, for the life
    of the process (0.19.8, stage_1_and_2.py and stage3.py, `_grad_acc_hooks`)."""
    with deepspeed_library.use_deepspeed(device, engine.zero_optimization_stage()):
        deepspeed_library.library().comm.init_distributed(dist_backend=torch.distributed.get_backend(), verbose=False)
        engine.destroy()


def parts(engine: Any) -> tuple[int, ...]:
    """For each rank the kind of its partition under stages 1 and 2; under stage 3 all are alike, and there are none."""
    groups = getattr(engine.optimizer, "bit16_groups", None)
    if groups is None:
        return ()
    (group,) = groups
    ranks = torch.distributed.get_world_size(engine.optimizer.dp_process_group)
    return Partitions(tuple(each.numel() for each in group), ranks).kinds()


@contextmanager
def _refusing() -> Iterator[None]:
    """DeepSpeed says what it refuses by assertions and by pydantic's errors, which are ValueErrors."""
    try:
        yield
    except (AssertionError, ValueError, NotImplementedError) as refusal:
        said = " ".join(str(refusal).split())[:400]
        raise SpecError(f"DeepSpeed {deepspeed_config.VERSION} refuses the config: {said}", place=_PLACE) from refusal
