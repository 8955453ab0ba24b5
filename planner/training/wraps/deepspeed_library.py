"""Imports DeepSpeed only for a job that it runs, and restores its globals afterwards."""

from __future__ import annotations

import copy
import functools
import importlib
import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any
from unittest import mock

import torch

from planner import upstream
from planner.distribution import install_command
from planner.errors import SpecError
from planner.job import deepspeed_config
from planner.training import absent_peers
from planner.training.log_levels import raise_log_level

_PLACE = "parallel.deepspeed"
_KEEP_A_WORLD = (
    "deepspeed.accelerator.real_accelerator",
    "deepspeed.comm.comm",
    "deepspeed.runtime.zero.parameter_offload",
    "deepspeed.runtime.zero.partition_parameters",
    "deepspeed.utils.groups",
)
"""Modules whose globals a run changes (0.19.8)."""
_COUNTING = ("Init", "InsertPostInitMethodToModuleSubClasses", "AllGatherCoalescedHandle")
"""Classes of partition_parameters.py that count on themselves."""

_COMPARISONS = tuple(
    f"deepspeed.runtime.zero.{module}:assert_ints_same_as_other_ranks"
    for module in ("partition_parameters", "partitioned_param_coordinator", "stage3")
)
"""Where ranks ask whether they go the same way; absent peers agree."""
_BEGINNINGS = (
    "deepspeed.runtime.engine:DeepSpeedEngine.__init__",
    "deepspeed.runtime.zero.partition_parameters:Init.__init__",
)
_WORLD: dict[str, Callable[[Any], Any]] = {
    # deepspeed.zero.Init leaves its own in the place of it.
    "torch.nn.functional:linear": lambda real: real,
    # Between CPUs it would compile a reduction of its own, at run time: what reduces is torch's process group.
    "deepspeed.comm.torch:build_shm_op": lambda _real: lambda *_arguments: None,
}


@contextmanager
def use_deepspeed(device: torch.device, stage: int) -> Iterator[None]:
    """Inside, DeepSpeed runs on this type of device, in the world of torch.distributed; afterwards all that it keeps
    for a process is as before. Raises SpecError where it is not installed."""
    require(device.type, stage)
    with ExitStack() as after:
        if not torch.distributed.is_initialized():
            after.enter_context(absent_peers.join(0, 1))  # a world of one, which nobody has made
        for name in _KEEP_A_WORLD:
            after.callback(_restoring(importlib.import_module(name)))
        partitions: Any = importlib.import_module("deepspeed.runtime.zero.partition_parameters")
        for name in _COUNTING:
            after.callback(_restoring(getattr(partitions, name)))
        after.enter_context(upstream.patch_targets("deepspeed world", wrapped=_WORLD))
        # A launcher says which device of its node a process has: this one sees its own alone.
        after.enter_context(mock.patch.dict(os.environ, {"LOCAL_RANK": os.environ.get("LOCAL_RANK", "0")}))
        if torch.distributed.get_backend() == absent_peers.BACKEND:
            after.enter_context(peers_agree())
        after.enter_context(raise_log_level("DeepSpeed"))  # it logs its whole config
        _choose(device.type)
        yield


@contextmanager
def peers_agree() -> Iterator[None]:
    """Inside, absent peers go the way of this rank wherever DeepSpeed compares them. Imports DeepSpeed."""
    with upstream.patch_targets("deepspeed peers", replaced=dict.fromkeys(_COMPARISONS, _agree)):
        yield


@contextmanager
def in_a_program(begins: Callable[[], None]) -> Iterator[None]:
    """Inside, a program's own DeepSpeed has peers that agree; `begins` is called before an engine is made or a model is
    divided. That the package is imported says nothing: libraries do so wherever it is installed."""

    def telling(real: Callable[..., None]) -> Callable[..., None]:
        @functools.wraps(real)
        def init(*arguments: Any, **named: Any) -> None:
            begins()
            real(*arguments, **named)

        return init

    with peers_agree(), upstream.patch_targets("program's deepspeed", wrapped=dict.fromkeys(_BEGINNINGS, telling)):
        yield


def library() -> Any:
    """The package; see `require`."""
    return importlib.import_module("deepspeed")


def require(device_type: str, stage: int) -> None:
    """Imports the package for this type of device. Raises SpecError where it is not installed."""
    try:
        with raise_log_level("DeepSpeed"), mock.patch.dict(os.environ, {"DS_ACCELERATOR": device_type}):
            library()
    except ImportError as missing:
        raise SpecError(
            f"ZeRO stage {stage} is run by DeepSpeed {deepspeed_config.VERSION} itself, which is not installed here",
            remedy=install_command("deepspeed"),
            place=_PLACE,
        ) from missing


def _agree(_numbers: list[int]) -> None: ...


def _choose(device_type: str) -> None:
    real: Any = importlib.import_module("deepspeed.accelerator.real_accelerator")
    module: Any = importlib.import_module(f"deepspeed.accelerator.{device_type}_accelerator")
    chosen = vars(module)[f"{device_type.upper()}_Accelerator"]
    if not isinstance(real.get_accelerator(), chosen):
        real.set_accelerator(chosen())


def _restoring(owner: Any) -> Callable[[], None]:
    """What puts the attributes of a module or a class back as they are now, and fills its containers again."""
    names = [name for name in vars(owner) if not name.startswith("__")]
    before = {name: vars(owner)[name] for name in names}
    contents = {name: copy.copy(each) for name, each in before.items() if isinstance(each, dict | list | set)}

    def restore() -> None:
        for name, each in before.items():
            if vars(owner).get(name) is not each:
                setattr(owner, name, each)
        for name, content in contents.items():
            _refill(before[name], content)

    return restore


def _refill(container: Any, content: Any) -> None:
    container.clear()
    if isinstance(container, list):
        container.extend(content)
    else:
        container.update(content)
