"""DeepSpeed, imported only for a job that is run by it, and left as it was found: it keeps its world in globals."""

from __future__ import annotations

import copy
import importlib
import logging
import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any
from unittest import mock

import torch

from planner.errors import SpecError
from planner.spec import deepspeed
from planner.training import absent_peers

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

_COMPARE = ("partition_parameters", "partitioned_param_coordinator", "stage3")
"""Modules of deepspeed.runtime.zero in which ranks ask whether they go the same way; absent peers agree."""


@contextmanager
def used(device: torch.device) -> Iterator[None]:
    """Inside, DeepSpeed runs on this type of device, in the world of torch.distributed; afterwards all that it keeps
    for a process is as before. Raises SpecError where it is not installed."""
    library(device.type)
    with ExitStack() as after:
        if not torch.distributed.is_initialized():
            after.enter_context(absent_peers.join(0, 1))  # a world of one, which nobody has made
        for name in _KEEP_A_WORLD:
            after.callback(_restoring(importlib.import_module(name)))
        partitions: Any = importlib.import_module("deepspeed.runtime.zero.partition_parameters")
        for name in _COUNTING:
            after.callback(_restoring(getattr(partitions, name)))
        # zero.Init leaves its own in place of it.
        after.enter_context(mock.patch.object(torch.nn.functional, "linear", torch.nn.functional.linear))
        # A launcher says which device of its node a process has: this one sees its own alone.
        after.enter_context(mock.patch.dict(os.environ, {"LOCAL_RANK": os.environ.get("LOCAL_RANK", "0")}))
        # Between CPUs it would compile a reduction of its own, at run time: what reduces is torch's process group.
        torch_backend: Any = importlib.import_module("deepspeed.comm.torch")
        after.enter_context(mock.patch.object(torch_backend, "build_shm_op", return_value=None))
        if torch.distributed.get_backend() == absent_peers.BACKEND:
            for name in _COMPARE:
                module: Any = importlib.import_module(f"deepspeed.runtime.zero.{name}")
                after.enter_context(mock.patch.object(module, "assert_ints_same_as_other_ranks", _agree))
        after.enter_context(quiet())
        _choose(device.type)
        yield


def library(device_type: str = "cuda") -> Any:
    """The package. Raises SpecError where it is not installed."""
    try:
        with quiet(), mock.patch.dict(os.environ, {"DS_ACCELERATOR": device_type}):
            return importlib.import_module("deepspeed")
    except ImportError as missing:
        raise SpecError(
            f"ZeRO stage 3 is run by DeepSpeed {deepspeed.VERSION} itself, which is not installed here",
            remedy="pip install 'planner[deepspeed]'",
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


@contextmanager
def quiet() -> Iterator[None]:
    """DeepSpeed logs its whole config."""
    logger = logging.getLogger("DeepSpeed")
    before = logger.level
    logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        logger.setLevel(before)
