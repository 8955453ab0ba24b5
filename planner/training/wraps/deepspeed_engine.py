"""DeepSpeed's own ZeRO stages around a model: its import, partitions and engine."""

from __future__ import annotations

import copy
import importlib
import os
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any
from unittest import mock

import torch
from torch import nn

from planner import upstream
from planner.errors import SpecError
from planner.job import deepspeed_config, schema
from planner.training import absent_peers
from planner.training.log_levels import raise_log_levels

ZERO = "deepspeed.runtime.zero"
_PLACE = "parallel.deepspeed"
_KEEP_A_WORLD = (
    "deepspeed.accelerator.real_accelerator",
    "deepspeed.comm.comm",
    f"{ZERO}.parameter_offload",
    f"{ZERO}.partition_parameters",
    "deepspeed.utils.groups",
)
"""Modules whose globals a run changes (0.19.8)."""
_COUNTING = ("Init", "InsertPostInitMethodToModuleSubClasses", "AllGatherCoalescedHandle")
"""Classes of partition_parameters.py that count on themselves."""

_COMPARISONS = tuple(
    f"{ZERO}.{module}:assert_ints_same_as_other_ranks"
    for module in ("partition_parameters", "partitioned_param_coordinator", "stage3")
)
"""Where ranks ask whether they go the same way; absent peers agree."""
_WORLD: dict[str, Callable[[Any], Any]] = {
    # deepspeed.zero.Init leaves its own in the place of it.
    "torch.nn.functional:linear": lambda real: real,
    # Between CPUs it would compile a reduction of its own, at run time: what reduces is torch's process group.
    "deepspeed.comm.torch:build_shm_op": lambda _real: lambda *_arguments: None,
}


@contextmanager
def _use_deepspeed(device: torch.device) -> Iterator[None]:
    """Inside, DeepSpeed runs on this type of device, in the world of torch.distributed; afterwards all that it keeps
    for a process is as before."""
    with raise_log_levels("DeepSpeed"), mock.patch.dict(os.environ, {"DS_ACCELERATOR": device.type}):
        _imported_deepspeed()
    with ExitStack() as after:
        if not torch.distributed.is_initialized():
            after.enter_context(absent_peers.join(0, 1))  # a world of one rank
        for name in _KEEP_A_WORLD:
            after.callback(_restoring(importlib.import_module(name)))
        partitions: Any = importlib.import_module(f"{ZERO}.partition_parameters")
        for name in _COUNTING:
            after.callback(_restoring(getattr(partitions, name)))
        after.enter_context(upstream.patch_targets("deepspeed world", wrapped=_WORLD))
        # A launcher's process may see its own device alone, which is no longer the one of its number.
        own = torch.cuda.current_device() if device.type == "cuda" else 0
        after.enter_context(mock.patch.dict(os.environ, {"LOCAL_RANK": str(own)}))
        if torch.distributed.get_backend() == absent_peers.BACKEND:
            after.enter_context(peers_agree())
        after.enter_context(raise_log_levels("DeepSpeed"))  # it logs its whole config
        accelerators: Any = importlib.import_module("deepspeed.accelerator.real_accelerator")
        wanted = importlib.import_module(f"deepspeed.accelerator.{device.type}_accelerator")
        accelerator = vars(wanted)[f"{device.type.upper()}_Accelerator"]
        if not isinstance(accelerators.get_accelerator(), accelerator):
            accelerators.set_accelerator(accelerator())
        yield


@contextmanager
def peers_agree() -> Iterator[None]:
    """Inside, absent peers go the way of this rank wherever DeepSpeed compares them. Imports DeepSpeed."""
    with upstream.patch_targets("deepspeed peers", replaced=dict.fromkeys(_COMPARISONS, lambda _numbers: None)):
        yield


def _imported_deepspeed() -> Any:
    return importlib.import_module("deepspeed")


def _restoring(owner: Any) -> Callable[[], None]:
    """What puts the attributes of a module or a class back as they are now, and fills its containers again."""
    before = {name: value for name, value in vars(owner).items() if not name.startswith("__")}
    contents = {name: copy.copy(value) for name, value in before.items() if isinstance(value, dict | list | set)}

    def restore() -> None:
        for name, value in before.items():
            if vars(owner).get(name) is not value:
                setattr(owner, name, value)
        for name, content in contents.items():
            container: Any = before[name]
            container.clear()
            (container.extend if isinstance(container, list) else container.update)(content)

    return restore


_START_ALIGNMENT = 2
"""Elements, so that a partition of 16-bit numbers starts at 4 bytes."""
_MOST_KINDS = 8


@dataclass(frozen=True)
class Partitions:
    """How stages 1 and 2 divide parameters; `sizes` are their elements, in the order of the optimizer."""

    sizes: tuple[int, ...]
    ranks: int

    @property
    def total(self) -> int:
        """Elements of the flat buffer, padding included."""
        alignment = _START_ALIGNMENT * self.ranks
        return -(-sum(self.sizes) // alignment) * alignment

    @property
    def size(self) -> int:
        """Elements of each partition."""
        return self.total // self.ranks

    @cached_property
    def shares(self) -> list[list[tuple[int, int]]]:
        """For each rank, of each parameter in its partition: the elements of the whole, and those that are in it."""
        shares: list[list[tuple[int, int]]] = [[] for _ in range(self.ranks)]
        start = 0
        for size in self.sizes:
            end = start + size
            while start < end:
                rank = start // self.size
                stop = min(end, (rank + 1) * self.size)
                shares[rank].append((size, stop - start))
                start = stop
        return shares

    def kinds(self) -> tuple[int, ...]:
        """For each rank a number, equal where two hold gradients of the same sizes.

        Where there are more than eight kinds, three are left, so that a plan does not grow with the world: the ranks
        that hold most, those that hold least, and all others, whose sizes lie in between.
        """
        shapes = [(sum(whole for whole, _ in share), tuple(sorted(share))) for share in self.shares]
        ordered = sorted(set(shapes))
        if len(ordered) > _MOST_KINDS:
            return tuple(0 if shape == ordered[-1] else 1 if shape == ordered[0] else 2 for shape in shapes)
        return tuple(map(ordered.index, shapes))


_TRAINERS_CONFIG = "transformers.integrations.deepspeed:_hf_deepspeed_config_weak_ref"


def uses_engine(spec: schema.Job) -> bool:
    """Whether the job is run by DeepSpeed's own engine."""
    return spec.parallel.deepspeed is not None


def find_stage(spec: schema.Job) -> int:
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
def prepare_engine(spec: schema.Job, device: torch.device) -> Iterator[None]:
    """Inside, a job that is run by the engine finds DeepSpeed in its world."""
    if not uses_engine(spec):
        yield
        return
    with _use_deepspeed(device), warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)  # of torch, whose collectives have new names
        yield


@contextmanager
def partitioning(spec: schema.Job) -> Iterator[None]:
    """Inside, under stage 3, the parameters of every module are divided as soon as it is made.

    By `deepspeed.zero.Init`; for a model of transformers by its own use of it, as under its Trainer."""
    if not uses_engine(spec) or find_stage(spec) != 3:
        yield
        return
    # What torch remembers of itself, it has to remember as it is outside the context, which replaces it.
    importlib.import_module("torch._dynamo")
    torch.utils._device._device_constructors()
    library, config = _imported_deepspeed(), deepspeed_config.engine_config(spec)
    library.comm.init_distributed(dist_backend=torch.distributed.get_backend(), verbose=False)
    with _translate_refusals():
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


def wrap_model(spec: schema.Job, model: nn.Module, optimizer: torch.optim.Optimizer) -> Any:
    """The engine around the model, whose own optimizer divides what the job's optimizer steps. Raises SpecError for
    a config that DeepSpeed refuses, in its words."""
    with _translate_refusals():
        engine, *_ = _imported_deepspeed().initialize(
            model=model, optimizer=optimizer, config=deepspeed_config.engine_config(spec)
        )
    return engine


def release(engine: Any, device: torch.device) -> None:
    """Ends the engine of a step that is over: its hooks on parameters would keep it, and all that it has, for the life
    of the process (0.19.8, stage_1_and_2.py and stage3.py, `_grad_acc_hooks`)."""
    with _use_deepspeed(device):
        _imported_deepspeed().comm.init_distributed(dist_backend=torch.distributed.get_backend(), verbose=False)
        engine.destroy()


def parts(engine: Any) -> tuple[int, ...]:
    """For each rank the kind of its partition under stages 1 and 2; under stage 3 all are alike, and there are none."""
    groups = getattr(getattr(engine, "optimizer", None), "bit16_groups", None)
    if groups is None or len(groups) > 1:
        return ()
    (group,) = groups
    ranks = torch.distributed.get_world_size(engine.optimizer.dp_process_group)
    return Partitions(tuple(parameter.numel() for parameter in group), ranks).kinds()


@contextmanager
def _translate_refusals() -> Iterator[None]:
    """DeepSpeed says what it refuses by assertions and by pydantic's errors, which are ValueErrors."""
    try:
        yield
    except (AssertionError, ValueError, NotImplementedError) as refusal:
        words = " ".join(str(refusal).split())[:400]
        raise SpecError(f"DeepSpeed {deepspeed_config.VERSION} refuses the config: {words}", place=_PLACE) from refusal
