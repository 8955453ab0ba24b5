"""What a program finds under `torch.cuda`, `torch.accelerator` and `torch._C` beyond what a step needs.

A build of torch without CUDA lacks the bindings below `torch.cuda`; with these in their places torch's own Python code
above them runs as it is. Names are those of torch 2.13 (torch/_C/__init__.pyi). What has no meaning on paper, such as a
captured graph, is a named error.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any, NoReturn

import torch

from planner import upstream
from planner.errors import TraceError
from planner.hardware.architectures import ARCHITECTURES
from planner.paper import library
from planner.paper.device_properties import DeviceProperties
from planner.running import cuda_bindings
from planner.running.generators import DeviceGenerator
from planner.running.legacy_types import legacy_types
from planner.running.live_memory import LiveMemory
from planner.running.order import Gpu
from planner.running.outside import source_kernels
from planner.running.outside.management_library import ManagementLibrary

NCCL = (2, 28, 9)
"""NCCL of torch 2.13 with CUDA 13.0 asks for (nvidia-nccl-cu13 in its package metadata)."""
_QUEUED_BY_TORCH = len(torch.cuda._queued_calls)
"""Checks of a driver that torch has put off until CUDA starts."""
_FROM_TORCH = {
    "memory": (
        "empty_cache", "get_per_process_memory_fraction", "is_initialized", "max_memory_allocated",
        "max_memory_reserved", "mem_get_info", "memory_allocated", "memory_reserved", "memory_stats",
        "reset_peak_memory_stats",
    ),
    "random": ("get_rng_state", "manual_seed", "manual_seed_all", "set_rng_state"),
}  # fmt: skip
"""Of what stands for a whole function where a step runs, torch's own are back: what they call is there."""


def properties_of(gpu: Gpu) -> Any:
    """Of the GPU that is planned for. What a GPU's record does not say is as on every GPU since Volta."""
    known = ARCHITECTURES[gpu.arch]
    return DeviceProperties(
        name=gpu.product,
        major=known.capability[0],
        minor=known.capability[1],
        total_memory=gpu.total_bytes,
        multi_processor_count=known.multiprocessors,
        max_threads_per_multi_processor=known.threads_per_multiprocessor,
        max_threads_per_block=1024,
        warp_size=known.warp_size,
        regs_per_multiprocessor=known.registers_per_multiprocessor,
        shared_memory_per_block=49152,
        shared_memory_per_block_optin=known.shared_memory_per_block_bytes,
        is_integrated=0,
        is_multi_gpu_board=0,
        gcnArchName="",
        uuid="GPU-paper",
        pci_bus_id=0,
        pci_device_id=0,
        pci_domain_id=0,
    )


@contextmanager
def whole(
    gpu: Gpu, gpus: int, cuda: str, torch_version: str, memory: LiveMemory, management: ManagementLibrary
) -> Iterator[None]:
    """Inside, a program finds `gpus` GPUs of a CUDA build; to be entered inside `paper.gpu`."""
    replaced: dict[str, Any] = {
        **{f"torch._C:{name}": _alone(answer) for name, answer in _bindings(gpu, memory).items()},
        **{f"torch._C:{name}": _alone(answer)
           for name, answer in cuda_bindings.answers(gpu, cuda, torch_version, memory, _refuse_setting).items()},
        **{f"torch._C:{name}": _refusing(name, why, "torch._C") for name, why in cuda_bindings.REFUSED.items()},
        "torch._C:_CudaDeviceProperties": DeviceProperties,
        **{f"torch.cuda:{name}": _alone(answer) for name, answer in _cuda(gpu, gpus, memory, management).items()},
        **{f"torch.cuda:{name}": getattr(getattr(torch.cuda, module), name)
           for module, names in _FROM_TORCH.items() for name in names},
        **{f"torch.cuda:{name}": refused for name, refused in _refused().items()},
        **{f"torch.cuda:{name}": legacy for name, legacy in legacy_types().items()},
        "torch.cuda.nccl:version": lambda: NCCL,
        "torch.version:cuda": cuda,
        "torch.backends.cuda:is_built": lambda: True,
        "torch.cuda.nvtx:mark": lambda _message: None,
        "torch.cuda.nvtx:range_start": lambda _message: 0,
        "torch.cuda.nvtx:range_end": lambda _number: None,
        "torch.cuda.nvtx:_device_range_start": lambda _message, _stream=0: None,
        "torch.cuda.nvtx:_device_range_end": lambda _range, _stream=0: None,
    }  # fmt: skip
    wrapped = {"torch.autograd.profiler:profile.__init__": _of_the_host_alone}
    with upstream.patch_targets("program's cuda face", replaced=replaced, wrapped=wrapped):
        yield


def _alone(answer: Any) -> Any:
    """A function for one name only: Dynamo's table of torch's functions takes none twice (_dynamo/trace_rules.py).
    Whatever an argument is called (`device=`), it comes in its place."""
    return (lambda *arguments, **named: answer(*arguments, *named.values())) if callable(answer) else answer


def _cuda(gpu: Gpu, gpus: int, memory: LiveMemory, management: ManagementLibrary) -> dict[str, Any]:
    properties = properties_of(gpu)
    runtime = _runtime(memory)
    return {
        "_is_compiled": lambda: True,
        "_initialized": False,
        "_lazy_init": lambda: _begin(memory),
        "_exchange_device": _exchange_device,
        "_maybe_exchange_device": _exchange_device,
        "current_device": torch.accelerator.current_device_index,
        "set_device": _set_device,
        "_cudart": runtime,
        "cudart": lambda: runtime,
        "default_generators": tuple(DeviceGenerator(index) for index in range(gpus)),
        "get_arch_list": lambda: [gpu.arch],
        "get_device_name": lambda _device=None: gpu.product,
        "get_device_properties": lambda _device=None: properties,
        "device_memory_used": lambda device=None: management.used_bytes(_index_of(device)),
        "memory_usage": lambda _device=None: management.idle("the share of time in which memory is read"),
        "utilization": lambda _device=None: management.idle("the utilization"),
        "temperature": lambda _device=None: management.idle("the temperature"),
        "power_draw": lambda _device=None: management.idle("the power"),
        "clock_rate": lambda _device=None: management.idle("a clock"),
        "_compile_kernel": source_kernels.compile_kernel,
        "list_gpu_processes": lambda device=None: management.list_processes(_index_of(device)),
    }


def _begin(memory: LiveMemory) -> None:
    """The first tensor on the device, or the first question that needs one, starts CUDA, and the allocator reads its
    settings; before, a device mesh chooses the device of its rank (torch/distributed/device_mesh.py)."""
    if torch.cuda._initialized:
        return
    torch.cuda._initialized = True
    memory.settle()
    queued = torch.cuda._queued_calls[_QUEUED_BY_TORCH:]
    del torch.cuda._queued_calls[_QUEUED_BY_TORCH:]
    for call, _ in queued:
        call()


class _CudaError(int):
    """`cudaError`: a number, of which 0 is named."""

    success = 0


def _runtime(memory: LiveMemory) -> SimpleNamespace:
    """`torch.cuda.cudart()`: the functions that torch binds of it (torch/csrc/cuda/shared/cudart.cpp)."""
    done: Callable[..., int] = lambda *_arguments: 0  # noqa: E731
    names = ("cudaProfilerStart", "cudaProfilerStop", "cudaHostRegister", "cudaHostUnregister", "cudaStreamCreate",
             "cudaStreamDestroy")  # fmt: skip
    return SimpleNamespace(
        **dict.fromkeys(names, done),
        cudaMemGetInfo=lambda _device=None: (memory.free_bytes(), memory.total_bytes),
        cudaGetErrorString=lambda _code: "no error",
        cudaError=_CudaError,
    )


def _bindings(gpu: Gpu, memory: LiveMemory) -> dict[str, Any]:
    """Below `torch.cuda.memory` and its neighbours."""
    nothing: Callable[..., None] = lambda *_arguments, **_named: None  # noqa: E731
    zero: Callable[..., int] = lambda *_arguments: 0  # noqa: E731
    empty = library.load().paper_empty_cache
    settings: Callable[..., Any] = lambda conf: memory.settle(conf) and None  # noqa: E731

    def set_fraction(fraction: float, _device: int = 0) -> None:
        memory.fraction = float(fraction)

    return {
        "_cuda_memoryStats": lambda _device=0: memory.statistics(),
        "_cuda_resetPeakMemoryStats": lambda _device=0: memory.reset_peaks(),
        "_cuda_resetAccumulatedMemoryStats": lambda _device=0: memory.reset_accumulated(),
        "_cuda_emptyCache": lambda *_arguments: empty(),
        "_cuda_getMemoryFraction": lambda _device=0: memory.fraction,
        "_cuda_setMemoryFraction": set_fraction,
        "_cuda_hostMemoryStats": dict,
        "_cuda_resetPeakHostMemoryStats": nothing,
        "_cuda_resetAccumulatedHostMemoryStats": nothing,
        "_cuda_memorySnapshot": lambda *_arguments: memory.snapshot(torch.accelerator.device_count()),
        "_cuda_record_memory_history": nothing,
        "_cuda_record_memory_history_legacy": nothing,
        "_cuda_isHistoryEnabled": lambda: False,
        "_cuda_setMemoryMetadata": nothing,
        "_cuda_getMemoryMetadata": lambda: "",
        "_cuda_getAllocatorBackend": lambda: "native",
        "_cuda_cudaCachingAllocator_is_enabled": lambda: True,
        "_cuda_cudaCachingAllocator_enable": _enable_caching,
        "_cuda_getDevice": torch.accelerator.current_device_index,
        "_cuda_setDevice": _set_device,
        "_cuda_exchangeDevice": _exchange_device,
        "_cuda_maybeExchangeDevice": _exchange_device,
        "_cuda_getDeviceCount": lambda: torch.accelerator.device_count(),
        "_cuda_getArchFlags": lambda: gpu.arch,
        "_cuda_canDeviceAccessPeer": lambda _device, _peer: True,
        "_cuda_ipc_collect": nothing,
        "_cuda_init": nothing,
        "_cuda_sleep": nothing,
        "_cuda_synchronize": library.load().paper_synchronize,
        "_cuda_clearCublasWorkspaces": nothing,
        "_cuda_getCurrentBlasHandle": zero,
        "_cuda_getCurrentSolverHandle": zero,
        "_cuda_getCurrentRawStream": lambda _device=0: int(torch.accelerator.current_stream().stream_id),
        "_cuda_get_sync_debug_mode": zero,
        "_cuda_set_sync_debug_mode": nothing,
        "_cuda_get_cudnn_benchmark_limit": lambda: 10,
        "_cuda_set_cudnn_benchmark_limit": nothing,
        "_nccl_version": lambda: NCCL[0] << 32 | NCCL[1] << 16 | NCCL[2],
        "_nccl_version_suffix": lambda: b"",
        "_accelerator_isAllocatorInitialized": lambda: True,
        "_accelerator_getDeviceStats": lambda _device=0: memory.statistics(),
        "_accelerator_getMemoryInfo": lambda _device=0: (memory.free_bytes(), memory.total_bytes),
        "_accelerator_resetPeakStats": lambda _device=0: memory.reset_peaks(),
        "_accelerator_resetAccumulatedStats": lambda _device=0: memory.reset_accumulated(),
        "_accelerator_emptyCache": lambda: empty(),
        "_accelerator_setAllocatorSettings": settings,
    }


def _refused() -> dict[str, Any]:
    """What a program cannot have on paper."""
    why = {
        "CUDAGraph": "a CUDA graph keeps a pool of its own, which is not modelled",
        "graph": "a CUDA graph keeps a pool of its own, which is not modelled",
        "graph_pool_handle": "a CUDA graph keeps a pool of its own, which is not modelled",
        "make_graphed_callables": "a CUDA graph keeps a pool of its own, which is not modelled",
        "MemPool": "a pool of its own is not modelled",
        "use_mem_pool": "a pool of its own is not modelled",
        "CUDAPluggableAllocator": "another allocator than torch's own is not modelled",
        "change_current_allocator": "another allocator than torch's own is not modelled",
        "caching_allocator_alloc": "memory that no tensor has is not modelled",
        "ExternalStream": "a stream of another library is not known here",
        "get_stream_from_external": "a stream of another library is not known here",
        "caching_allocator_delete": "memory that no tensor has is not modelled",
        "GreenContext": "a part of a GPU is not modelled",
    }
    return {name: _refusing(name, reason) for name, reason in why.items()}


def _refuse_setting(reason: str) -> NoReturn:
    _refusing("this setting", reason)()
    raise AssertionError


def _refusing(name: str, reason: str, module: str = "torch.cuda") -> Any:
    """A function, or for a class one of which no instance is made: libraries name it in their annotations."""

    def refuse(*_arguments: Any, **_named: Any) -> NoReturn:
        raise TraceError(
            f"the program uses {module}.{name}: {reason}",
            allowed="torch's own caching allocator, without CUDA graphs",
            remedy="switch it off in the program",
        )

    real = getattr(torch.cuda, name, None)
    if isinstance(real, type):
        return type(name, (), {"__init__": refuse})
    vars(refuse)["__wrapped__"] = getattr(real, "__wrapped__", real)  # Dynamo compares a region's functions with it
    return refuse


def _enable_caching(value: bool) -> None:
    if not value:
        _refusing("caching_allocator_enable", "memory without its cache is not modelled")()


def _index_of(device: Any) -> int:
    if device is None:
        return torch.accelerator.current_device_index()
    if isinstance(device, int):
        return device
    found = torch.device(device).index
    return torch.accelerator.current_device_index() if found is None else found


def _set_device(device: Any) -> None:
    index = _index_of(device)
    if index >= 0:
        torch.accelerator.set_device_index(index)


def _exchange_device(index: int) -> int:
    before = torch.accelerator.current_device_index()
    if index >= 0:
        torch.accelerator.set_device_index(index)
    return before


def _of_the_host_alone(real: Any) -> Any:
    """A profiler sees nothing of a GPU on which nothing runs, and says so for every operator."""

    def init(self: Any, *arguments: Any, **named: Any) -> None:
        real(self, *arguments, **{**named, "use_device": None, "use_cuda": False})

    return init
