"""What Dynamo and Inductor ask about a device and write its code with, by their own registries."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch._dynamo import device_interface, utils
from torch._dynamo.variables import torch as folded
from torch._inductor.codegen import common

from planner.paper.compiled.device import PaperOps, make_interface
from planner.paper.compiled.wrapper import PaperWrapper, PaperWrapperForCpu
from planner.paper.device_properties import DeviceProperties


@contextmanager
def registered(device: str) -> Iterator[None]:
    """Inside, a GPU is the paper GPU, and code is written for this device (`cuda`, or `cpu`); then all is as before."""
    common.init_backend_registration()
    common.get_device_op_overrides("cuda")
    device_interface.get_interface_for_device("cuda")
    answered_while_compiling: Any = folded.constant_fold_functions
    of_which_guarded: Any = folded.constant_fold_functions_need_guards
    with (
        _as_before(device_interface.device_interfaces),
        _as_before(common.device_codegens),
        _as_before(common.device_op_overrides_dict),
        _as_before(answered_while_compiling),
        _as_before(of_which_guarded),
        _as_before(utils.common_constant_types),
    ):
        # A program may compare or branch on a property of its GPU inside of what is compiled.
        utils.common_constant_types.add(DeviceProperties)
        for functions in (answered_while_compiling, of_which_guarded):
            functions.update(_in_their_places(functions))
        wrapper = PaperWrapperForCpu if device == "cpu" else PaperWrapper
        common.register_backend_for_device(device, common.device_codegens[device].scheduling, wrapper)
        common.register_device_op_overrides("cuda", PaperOps())
        interface = make_interface()
        for name in ("cuda", *(f"cuda:{index}" for index in range(torch.cuda.device_count()))):
            device_interface.register_interface_for_device(name, interface)
        yield


def _in_their_places(functions: Iterable[Any]) -> dict[Any, None]:
    """What torch has now by the names of these functions: Dynamo has listed those that it found when it was loaded."""
    modules = ((getattr(each, "__module__", None), each) for each in functions)
    return {getattr(sys.modules[name], each.__name__, each): None for name, each in modules if name in sys.modules}


@contextmanager
def _as_before(registry: dict[Any, Any] | set[Any]) -> Iterator[None]:
    """What is registered inside is gone at the end."""
    content: Any = registry.copy()
    try:
        yield
    finally:
        registry.clear()
        registry.update(content)
