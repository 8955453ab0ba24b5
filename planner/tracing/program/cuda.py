"""What a program finds under `torch.cuda`, `torch.accelerator` and `torch._C` other than torch's own code says it: its
memory, which is that of planner's replay, and what a GPU at work alone could answer."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from itertools import count, takewhile
from typing import Any, NoReturn

import torch

from planner import upstream
from planner.errors import TraceError
from planner.paper import library
from planner.tracing.program.gpu_statistics import LiveMemory, ManagementLibrary

_REFUSED = {
    "MemPool": "a pool of its own is not modelled",
    "use_mem_pool": "a pool of its own is not modelled",
    "CUDAPluggableAllocator": "another allocator than torch's own is not modelled",
    "change_current_allocator": "another allocator than torch's own is not modelled",
}
"""Why a program cannot have it: planner's allocator, which stands behind torch's, has no such."""
_FIRST_SEED = 67280421310721
"""Of torch's generators (c10/core/GeneratorImpl.h, default_rng_seed_val)."""


@contextmanager
def whole(memory: LiveMemory, management: ManagementLibrary) -> Iterator[None]:
    """Inside, questions of a program about its memory and its GPU are answered; to be entered inside `paper.gpu`."""
    starting = {"torch._C:_cuda_init": partial(_starting, memory)}
    answers = _answers(memory, management)
    with upstream.patch_targets("program's cuda", replaced=answers, wrapped=starting), _asked_for_room(memory):
        yield


def _starting(memory: LiveMemory, init: Callable[[], None]) -> Callable[[], None]:
    def start() -> None:
        memory.settle()
        init()
        for generator in torch.cuda.default_generators:  # CUDA's begin by chance, and plans are the same each time
            generator.manual_seed(_FIRST_SEED)

    return start


@contextmanager
def _asked_for_room(memory: LiveMemory) -> Iterator[None]:
    """Inside, a convolution whose workspace has no room takes another way, as torch does it on a full GPU."""
    native = library.load()
    lacks_room = ctypes.CFUNCTYPE(ctypes.c_int32, ctypes.c_int64)(lambda size: not memory.has_room(size))
    native.paper_ask_for_room(lacks_room)
    try:
        yield
    finally:
        native.paper_ask_for_room(None)


def _answers(memory: LiveMemory, management: ManagementLibrary) -> dict[str, Any]:
    def set_fraction(fraction: float, _device: int = 0) -> None:
        memory.fraction = float(fraction)

    def settle(conf: str) -> None:
        memory.settle(conf)

    def set_caching(value: bool) -> None:
        if not value:
            _refusing("caching_allocator_enable", "memory without its cache is not modelled")()

    def free(_device: Any = None) -> tuple[int, int]:
        return memory.free_bytes(), memory.total_bytes

    bindings: dict[str, Any] = {
        "_cuda_memoryStats _accelerator_getDeviceStats": lambda _device=0: memory.statistics(),
        "_cuda_resetPeakMemoryStats _accelerator_resetPeakStats": lambda _device=0: memory.reset_peaks(),
        "_cuda_resetAccumulatedMemoryStats _accelerator_resetAccumulatedStats": (
            lambda _device=0: memory.reset_accumulated()
        ),
        "_cuda_getMemoryFraction": lambda _device=0: memory.fraction,
        "_cuda_setMemoryFraction": set_fraction,
        "_cuda_memorySnapshot": lambda *_arguments: memory.snapshot(torch.accelerator.device_count()),
        "_cuda_cudaCachingAllocator_enable": set_caching,
        "_cuda_cudaCachingAllocator_set_allocator_settings _accelerator_setAllocatorSettings": settle,
        "_accelerator_isAllocatorInitialized": lambda: True,
        "_accelerator_getMemoryInfo": free,
    }
    functions = {
        **{name: _refusing(name, reason) for name, reason in _REFUSED.items()},
        "mem_get_info": free,
        "device_memory_used": lambda device=None: management.used_bytes(_device_index(device)),
        "memory_usage": lambda _device=None: management.idle("the share of time in which memory is read"),
        "utilization": lambda _device=None: management.idle("the utilization"),
        "temperature": lambda _device=None: management.idle("the temperature"),
        "power_draw": lambda _device=None: management.idle("the power"),
        "clock_rate": lambda _device=None: management.idle("a clock"),
        "list_gpu_processes": lambda device=None: management.list_processes(_device_index(device)),
    }
    return {
        **{f"torch._C:{name}": answer for names, answer in bindings.items() for name in names.split()},
        **{f"torch.cuda:{name}": answer for name, answer in functions.items()},
        "torch.cuda.memory:mem_get_info": free,
    }


def used_devices() -> tuple[int, ...]:
    """Those of which memory was taken, in the order of the first."""
    numbered = library.load().paper_device_numbered
    return tuple(takewhile(lambda device: device >= 0, map(numbered, count())))


def _refusing(name: str, reason: str) -> Any:
    """A function, or for a class one of which no instance is made: libraries name it in their annotations."""

    def refuse(*_arguments: Any, **_named: Any) -> NoReturn:
        raise TraceError(
            f"the program uses torch.cuda.{name}: {reason}",
            allowed="torch's own caching allocator",
            remedy="switch it off in the program",
        )

    real = getattr(torch.cuda, name, None)
    if isinstance(real, type):
        return type(name, (), {"__init__": refuse})
    vars(refuse)["__wrapped__"] = getattr(real, "__wrapped__", real)  # Dynamo compares a region's functions with it
    return refuse


def _device_index(device: Any) -> int:
    index = device if isinstance(device, int) else None if device is None else torch.device(device).index
    return torch.accelerator.current_device_index() if index is None else index


def forget_values(arguments: Iterable[Any]) -> None:
    """A kernel is launched with these: what a tensor of the device holds is not known afterwards."""
    for argument in arguments:
        if isinstance(argument, torch.Tensor) and argument.is_cuda:
            torch.ops.paper.forget_value(argument)
