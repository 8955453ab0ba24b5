"""DeepSpeed's ZeRO stage 3 by DeepSpeed itself: its division of the model, its hooks, its engine and optimizer."""

from __future__ import annotations

import importlib
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial, wraps
from typing import Any
from unittest import mock

import torch
from torch import Tensor, nn

from planner.errors import SpecError
from planner.events import Category
from planner.spec import deepspeed, deepspeed_stage3, job
from planner.training.observer import Observer, Silent
from planner.training.wraps import deepspeed_library

_PLACE = "parallel.deepspeed"
_COMMUNICATING = (
    ("partitioned_param_coordinator", "PartitionedParameterCoordinator", "__all_gather_params_"),
    ("stage3", "DeepSpeedZeroOptimizer_Stage3", "__avg_scatter_grads"),
    ("stage3", "DeepSpeedZeroOptimizer_Stage3", "__avg_scatter_contiguous_grads"),
)
"""Methods of deepspeed.runtime.zero that allocate what is sent and received (DeepSpeed 0.19.8)."""


def chosen(spec: job.Job) -> bool:
    """Whether the job is run by DeepSpeed's own engine."""
    return spec.parallel.deepspeed is not None and deepspeed.zero_of(spec).stage == 3


@contextmanager
def used(spec: job.Job, device: torch.device, observer: Observer) -> Iterator[None]:
    """Inside, a job that is run by the engine finds DeepSpeed in its world, and the observer hears what it sends."""
    if not chosen(spec):
        yield
        return
    with deepspeed_library.used(device), _told(observer), warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)  # of torch, whose collectives have new names
        yield


@contextmanager
def partitioning(spec: job.Job) -> Iterator[None]:
    """Inside, the parameters of every module are divided as soon as it is made, by `deepspeed.zero.Init`; for a model
    of transformers by its own use of it, as under its Trainer. Nothing for a job that the engine does not run."""
    if not chosen(spec):
        yield
        return
    # What torch remembers of itself, it has to remember as it is outside the context, which replaces it.
    importlib.import_module("torch._dynamo")
    torch.utils._device._device_constructors()
    library, config = deepspeed_library.library(), deepspeed_stage3.engine_config(spec)
    library.comm.init_distributed(dist_backend=torch.distributed.get_backend(), verbose=False)
    with _refusing():
        if spec.model.hf_config is None:
            with library.zero.Init(config_dict_or_path=config):
                yield
        else:
            transformers: Any = importlib.import_module("transformers.integrations.deepspeed")
            with mock.patch.object(transformers, "_hf_deepspeed_config_weak_ref", return_value=_Trainers(config)):
                yield


@dataclass(frozen=True)
class _Trainers:
    """What transformers keeps of its Trainer's config (5.23, integrations/deepspeed.py)."""

    config: Mapping[str, Any]

    def is_zero3(self) -> bool:
        return True


def wrapped(spec: job.Job, model: nn.Module, optimizer: torch.optim.Optimizer, observer: Observer) -> Any:
    """The engine around the model, whose own optimizer divides what the job's optimizer steps. Raises SpecError for
    a config that DeepSpeed refuses, in its words."""
    names = {parameter: name for name, parameter in model.named_parameters()}
    watched = not isinstance(observer, Silent)
    if watched:
        _tell_divided(names, observer)
    with _refusing():
        engine, *_ = deepspeed_library.library().initialize(
            model=model, optimizer=optimizer, config=deepspeed_stage3.engine_config(spec)
        )
    if watched:
        _tell_flat(engine.optimizer, observer)
    return engine


def tell_whole(engine: Any, observer: Observer) -> None:
    """Parameters that are too small to be divided: from their first use on they stay whole."""
    for parameter in engine.optimizer.persistent_parameters:
        observer.assign(parameter.data, Category.PARAMETER, "deepspeed.persistent")


def tell_state(optimizer: torch.optim.Optimizer, observer: Observer) -> None:
    """What the job's optimizer keeps of this rank's partitions."""
    for state in optimizer.state.values():
        for key, value in state.items():
            if isinstance(value, Tensor):
                observer.assign(value, Category.OPTIMIZER_STATE, f"deepspeed.{key}")


def _tell_divided(names: Mapping[nn.Parameter, str], observer: Observer) -> None:
    for parameter, name in names.items():
        observer.assign(parameter.ds_tensor, Category.PARAMETER, name)  # type: ignore[attr-defined]
        if parameter.requires_grad:
            # Before the engine's own hook, which takes the gradient away.
            parameter.register_post_accumulate_grad_hook(partial(_tell_gradient, observer, name))


def _tell_gradient(observer: Observer, name: str, parameter: Tensor) -> None:
    if parameter.grad is not None:
        observer.assign(parameter.grad, Category.GRADIENT, name)


def _tell_flat(divided: Any, observer: Observer) -> None:
    """Where the engine keeps this rank's partitions (stage3.py)."""
    for flat in divided.fp16_partitioned_groups_flat:
        observer.assign(flat, Category.PARAMETER, "deepspeed.partitions")
    for flat in divided.fp32_partitioned_groups_flat:
        observer.assign(flat, Category.OPTIMIZER_STATE, "deepspeed.fp32_partitions")
    observer.assign(divided.grad_partitions_flat_buffer, Category.GRADIENT, "deepspeed.partitions")
    for bucket in divided.ipg_buckets.values():
        if bucket.buffer is not None:
            observer.assign(bucket.buffer, Category.BUCKET, "deepspeed.ipg")


@contextmanager
def _told(observer: Observer) -> Iterator[None]:
    if isinstance(observer, Silent):
        yield
        return
    with ExitStack() as patches:
        for module, owner, name in _COMMUNICATING:
            cls = getattr(importlib.import_module(f"deepspeed.runtime.zero.{module}"), owner)
            mangled = f"_{owner}{name}"
            patches.enter_context(mock.patch.object(cls, mangled, _inside(getattr(cls, mangled), observer)))
        yield


def _inside(method: Callable[..., Any], observer: Observer) -> Callable[..., Any]:
    @wraps(method)
    def called(*arguments: Any, **named: Any) -> Any:
        with observer.region(Category.COMMUNICATION, f"deepspeed.{method.__name__.strip('_')}"):
            return method(*arguments, **named)

    return called


@contextmanager
def _refusing() -> Iterator[None]:
    """DeepSpeed says what it refuses by assertions and by pydantic's errors, which are ValueErrors."""
    try:
        yield
    except (AssertionError, ValueError, NotImplementedError) as refusal:
        said = " ".join(str(refusal).split())[:400]
        raise SpecError(f"DeepSpeed {deepspeed.VERSION} refuses the config: {said}", place=_PLACE) from refusal
