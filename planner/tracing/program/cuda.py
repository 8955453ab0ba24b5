"""What a program finds under `torch.cuda`, `torch.accelerator` and `torch._C` beyond what a step needs.

A build of torch without CUDA lacks the bindings below `torch.cuda`; with these in their places torch's own Python code
above them runs as it is. What has no meaning on paper, such as a captured graph, is a named error.
"""

from __future__ import annotations

import ctypes
import secrets
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from itertools import count, takewhile
from types import SimpleNamespace
from typing import Any, NoReturn

import torch

from planner import cuda_on_paper, upstream
from planner.errors import TraceError
from planner.hardware.architectures import ARCHITECTURES
from planner.paper import library
from planner.paper.kernels.table import target
from planner.paper.outside.operators import recorded_as
from planner.paper.torch_cuda import DeviceProperties
from planner.tracing.program import several_gpus
from planner.tracing.program.gpu_statistics import LiveMemory, ManagementLibrary
from planner.tracing.program.rank_orders import Gpu

# Names are those of torch 2.13 (torch/_C/__init__.pyi and the Python code under torch/cuda), and three of older ones.
_TUNED = "TunableOp times kernels, and takes memory for it"
_REFUSED = {
    "a CUDA graph keeps a pool of its own, which is not modelled":
        "CUDAGraph graph graph_pool_handle make_graphed_callables",
    "a pool of its own is not modelled":
        "MemPool use_mem_pool _cuda_beginAllocateCurrentStreamToPool _cuda_checkPoolLiveAllocations"
        " _cuda_getCheckpointState _cuda_setCheckpointPoolState",
    "another allocator than torch's own is not modelled":
        "CUDAPluggableAllocator change_current_allocator _cuda_changeCurrentAllocator _cuda_customAllocator"
        " _cuda_getAllocator _cuda_cudaHostAllocator",
    "memory that no tensor has is not modelled":
        "caching_allocator_alloc caching_allocator_delete _cuda_cudaCachingAllocator_raw_alloc"
        " _cuda_cudaCachingAllocator_raw_delete",
    "where memory was allocated is in the report, by module and operator": "_cuda_allocationTraceback",
    "a stream of another library is not known here":
        "ExternalStream get_stream_from_external _cuda_getStreamFromExternal",
    "the workspace of cuBLASLt is not modelled":
        "_cuda_getCublasLtWorkspaceSize _cuda_setCublasLtWorkspaceSize _cuda_resetCublasLtWorkspaceSize",
    _TUNED: "_cuda_tunableop_read_file",
    "a communicator of torch.cuda.nccl between processes is not modelled: torch.distributed has ranks":
        "_nccl_init_rank _nccl_unique_id",
    "a part of a GPU is not modelled": "GreenContext _CUDAGreenContext",
    "nothing is read from a disk into a GPU that is not there":
        "_gds_register_buffer _gds_deregister_buffer _gds_register_handle _gds_deregister_handle _gds_load_storage"
        " _gds_save_storage",
}  # fmt: skip
"""Why a program cannot have it; names with an underscore are those of `torch._C`."""
_REFUSED_ON_CUDA = {"MemPool", "use_mem_pool", "CUDAPluggableAllocator", "change_current_allocator"}
"""Of them what is refused where torch's own code runs too: planner's allocator, which stands behind it, has no such."""
_CONSTANT_BINDINGS: tuple[tuple[Any, str], ...] = (
    # What has no effect on memory. Out of memory is never raised.
    (
        None,
        "resetPeakHostMemoryStats resetAccumulatedHostMemoryStats record_memory_history record_memory_history_legacy"
        " setMemoryMetadata ipc_collect init sleep set_sync_debug_mode"
        " set_cudnn_benchmark_limit resetCublasWorkspaceSize attach_out_of_memory_observer lock_mutex unlock_mutex"
        " record_untuned_enable tunableop_set_filename tunableop_set_max_tuning_duration"
        " tunableop_set_max_tuning_iterations tunableop_tuning_enable tunableop_set_numerical_check_tolerances"
        " tunableop_set_rotating_buffer_size",
    ),
    (0, "getCurrentBlasHandle getCurrentSolverHandle get_sync_debug_mode"),
    (False, "isHistoryEnabled isInBadFork tunableop_is_enabled record_untuned_is_enabled"),
    (True, "cudaCachingAllocator_is_enabled canDeviceAccessPeer get_conv_benchmark_empty_cache"),
    ("", "getMemoryMetadata"),
    ("native", "getAllocatorBackend"),
    (10, "get_cudnn_benchmark_limit"),
    # TunableOp is off, with the defaults of torch 2.13 (aten/src/ATen/cuda/tunable/Tunable.cpp).
    (True, "tunableop_tuning_is_enabled"),
    ("", "tunableop_get_filename"),
    (30, "tunableop_get_max_tuning_duration"),
    (100, "tunableop_get_max_tuning_iterations"),
    (-1, "tunableop_get_rotating_buffer_size tunableop_get_rotation_buffer_size"),
    ((), "tunableop_get_results tunableop_get_validators"),
)
"""Answers, and the names of bindings without their `_cuda_`."""
_CUDART = ("cudaProfilerStart", "cudaProfilerStop", "cudaHostRegister", "cudaHostUnregister", "cudaStreamCreate",
           "cudaStreamDestroy")  # fmt: skip
"""Functions of `torch.cuda.cudart()` that torch binds (torch/csrc/cuda/shared/cudart.cpp)."""
_FIRST_SEED = 67280421310721
"""Of torch's generators (c10/core/GeneratorImpl.h, default_rng_seed_val)."""
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


@contextmanager
def whole(gpu: Gpu, gpus: int, cuda: str, memory: LiveMemory, management: ManagementLibrary) -> Iterator[None]:
    """Inside, a program finds `gpus` GPUs of a CUDA build; to be entered inside `paper.gpu`."""
    if cuda_on_paper.is_on():
        told = _told_on_cuda(memory, management)
        starting = {"torch._C:_cuda_init": partial(_starting, memory)}
        with upstream.patch_targets("program's cuda", replaced=told, wrapped=starting), _asked_for_room(memory):
            yield
        return
    torch_cuda, bindings = _torch_cuda(gpu, gpus, memory, management), _bindings(gpu, cuda, memory)
    replaced: dict[str, Any] = {
        **{f"torch._C:{name}": _alone(answer) for name, answer in bindings.items()},
        **{f"torch._C:{name}": _alone(answer) for name, answer in several_gpus.BINDINGS.items()},
        "torch._C:_CudaDeviceProperties": DeviceProperties,
        **{f"torch.cuda:{name}": _alone(answer) for name, answer in torch_cuda.items()},
        **{f"torch.cuda:{name}": getattr(getattr(torch.cuda, module), name)
           for module, names in _FROM_TORCH.items() for name in names},
        # torch finds a type by its name where it takes one (`tensor.type(torch.cuda.FloatTensor)`).
        **{f"torch.cuda:{name}": _LegacyType(f"torch.cuda.{name}", (), {"dtype": dtype})
           for name, dtype in _DTYPES.items()},
        **{f"{module}:{name}": _refusing(name, reason, module)
           for reason, names in _REFUSED.items() for name in names.split()
           for module in ("torch._C" if name.startswith("_") else "torch.cuda",)},
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


def _told_on_cuda(memory: LiveMemory, management: ManagementLibrary) -> dict[str, Any]:
    """What torch's own code, which allocates through planner's recorder here, cannot say of its memory."""
    free = lambda _device=None: (memory.free_bytes(), memory.total_bytes)  # noqa: E731
    refused = {
        name: _refusing(name, reason)
        for reason, names in _REFUSED.items()
        for name in _REFUSED_ON_CUDA.intersection(names.split())
    }
    functions = {**refused, **_management_functions(management), "mem_get_info": free}
    return {
        **{f"torch._C:{name}": answer for name, answer in _memory_bindings(memory).items()},
        **{f"torch.cuda:{name}": answer for name, answer in functions.items()},
        "torch.cuda.memory:mem_get_info": free,
    }


def _memory_bindings(memory: LiveMemory) -> dict[str, Any]:
    def set_fraction(fraction: float, _device: int = 0) -> None:
        memory.fraction = float(fraction)

    def settle(conf: str) -> None:
        memory.settle(conf)

    def set_caching(value: bool) -> None:
        if not value:
            _refusing("caching_allocator_enable", "memory without its cache is not modelled")()

    return {
        "_cuda_memoryStats": lambda _device=0: memory.statistics(),
        "_cuda_resetPeakMemoryStats": lambda _device=0: memory.reset_peaks(),
        "_cuda_resetAccumulatedMemoryStats": lambda _device=0: memory.reset_accumulated(),
        "_cuda_getMemoryFraction": lambda _device=0: memory.fraction,
        "_cuda_setMemoryFraction": set_fraction,
        "_cuda_memorySnapshot": lambda *_arguments: memory.snapshot(torch.accelerator.device_count()),
        "_cuda_cudaCachingAllocator_enable": set_caching,
        "_cuda_cudaCachingAllocator_set_allocator_settings": settle,
        "_accelerator_isAllocatorInitialized": lambda: True,
        "_accelerator_getDeviceStats": lambda _device=0: memory.statistics(),
        "_accelerator_getMemoryInfo": lambda _device=0: (memory.free_bytes(), memory.total_bytes),
        "_accelerator_resetPeakStats": lambda _device=0: memory.reset_peaks(),
        "_accelerator_resetAccumulatedStats": lambda _device=0: memory.reset_accumulated(),
        "_accelerator_setAllocatorSettings": settle,
    }


def _alone(answer: Any) -> Any:
    """A function for one name only: Dynamo's table of torch's functions takes none twice (_dynamo/trace_rules.py).
    Whatever an argument is called (`device=`), it comes in its place."""
    return (lambda *arguments, **named: answer(*arguments, *named.values())) if callable(answer) else answer


def _constant(value: Any) -> Callable[..., Any]:
    return lambda *_arguments: value


def _torch_cuda(gpu: Gpu, gpus: int, memory: LiveMemory, management: ManagementLibrary) -> dict[str, Any]:
    properties = properties_of(gpu)
    runtime = SimpleNamespace(
        **{name: _constant(0) for name in _CUDART},
        cudaMemGetInfo=lambda _device=None: (memory.free_bytes(), memory.total_bytes),
        cudaGetErrorString=lambda _code: "no error",
        cudaError=_CudaError,
    )

    def begin() -> None:
        # The first tensor on the device, or the first question that needs one, starts CUDA, and the allocator reads its
        # settings; before, a device mesh chooses the device of its rank (torch/distributed/device_mesh.py).
        if torch.cuda._initialized:
            return
        torch.cuda._initialized = True
        memory.settle()
        queued = torch.cuda._queued_calls[_QUEUED_BY_TORCH:]
        del torch.cuda._queued_calls[_QUEUED_BY_TORCH:]
        for call, _ in (*queued, *filter(None, torch.cuda._lazy_seed_tracker.get_calls())):
            call()

    return {
        "_is_compiled": lambda: True,
        "_initialized": False,
        "_lazy_init": begin,
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
        **_management_functions(management),
        "_compile_kernel": lambda _source, _name, *_settings: SourceKernel(),  # torch's asks NVRTC
    }


def _management_functions(management: ManagementLibrary) -> dict[str, Any]:
    """Functions of `torch.cuda` that ask NVIDIA's management library."""
    return {
        "device_memory_used": lambda device=None: management.used_bytes(_index_of(device)),
        "memory_usage": lambda _device=None: management.idle("the share of time in which memory is read"),
        "utilization": lambda _device=None: management.idle("the utilization"),
        "temperature": lambda _device=None: management.idle("the temperature"),
        "power_draw": lambda _device=None: management.idle("the power"),
        "clock_rate": lambda _device=None: management.idle("a clock"),
        "list_gpu_processes": lambda device=None: management.list_processes(_index_of(device)),
    }


class _CudaError(int):
    success = 0


def _bindings(gpu: Gpu, cuda: str, memory: LiveMemory) -> dict[str, Any]:
    native = library.load()
    native.paper_expect_workspace_config()
    major, _, minor = cuda.partition(".")

    def set_workspace(size: int, *_arguments: Any) -> None:
        if size != native.paper_workspace_bytes():
            _refusing("this setting", "another size of cuBLAS's workspace is not modelled")()

    def set_tuning(value: bool) -> None:
        if value:
            _refusing("this setting", _TUNED)()

    def set_stream(stream_id: int, device_index: int, device_type: int) -> None:
        torch.accelerator.set_stream(
            torch.Stream(stream_id=stream_id, device_index=device_index, device_type=device_type)
        )

    def current_stream(_device: int = 0) -> tuple[int, int, int]:
        stream = torch.accelerator.current_stream()
        return stream.stream_id, stream.device_index, stream.device_type

    return {
        **{f"_cuda_{name}": _constant(value) for value, names in _CONSTANT_BINDINGS for name in names.split()},
        **_memory_bindings(memory),
        "_cuda_emptyCache": lambda *_arguments: native.paper_empty_cache(),
        "_cuda_hostMemoryStats": dict,
        "_cuda_getDevice": torch.accelerator.current_device_index,
        "_cuda_setDevice": _set_device,
        "_cuda_exchangeDevice": _exchange_device,
        "_cuda_maybeExchangeDevice": _exchange_device,
        "_cuda_getDeviceCount": lambda: torch.accelerator.device_count(),
        "_cuda_getArchFlags": lambda: gpu.arch,
        "_cuda_getCompiledVersion": lambda: int(major) * 1000 + int(minor or 0) * 10,
        "_cuda_hasPrimaryContext": lambda _device: bool(torch.cuda._initialized),
        "_cuda_synchronize": native.paper_synchronize,
        "_cuda_getCublasWorkspaceSize": lambda *_device: native.paper_workspace_bytes(),
        "_cuda_setCublasWorkspaceSize": set_workspace,
        "_cuda_clearCublasWorkspaces": lambda: native.paper_clear_workspaces(),
        "_cuda_getCurrentStream": current_stream,
        "_cuda_getDefaultStream": lambda device=0: (0, device, 1),
        "_cuda_setStream": set_stream,
        "_cuda_getCurrentRawStream": lambda _device=0: int(torch.accelerator.current_stream().stream_id),
        "_cuda_jiterator_compile_and_launch_kernel": _launch_jiterated,
        "_cuda_tunableop_enable": set_tuning,
        "_cudnn_set_conv_benchmark_empty_cache": _constant(None),
        "_nccl_version": lambda: NCCL[0] << 32 | NCCL[1] << 16 | NCCL[2],
        "_nccl_version_suffix": lambda: b"",
        "_accelerator_emptyCache": lambda: native.paper_empty_cache(),
    }


def used_devices() -> tuple[int, ...]:
    """Those of which memory was taken, in the order of the first."""
    numbered = library.load().paper_device_numbered
    return tuple(takewhile(lambda device: device >= 0, map(numbered, count())))


def _launch_jiterated(
    _code: str, _name: str, _by_reference: bool, outputs: int, tensors: Sequence[torch.Tensor], _settings: Any
) -> Any:
    """An operator by elements: results of the shape and the dtype of all its inputs together."""
    shape = torch.broadcast_shapes(*(tensor.shape for tensor in tensors))
    dtype = tensors[0].dtype
    for tensor in tensors[1:]:
        dtype = torch.promote_types(dtype, tensor.dtype)
    with recorded_as("jiterator"):
        results = [torch.empty(shape, dtype=dtype, device=tensors[0].device) for _ in range(outputs)]
    return results[0] if outputs == 1 else results


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


def _index_of(device: Any) -> int:
    if device is None:
        return torch.accelerator.current_device_index()
    if isinstance(device, int):
        return device
    index = torch.device(device).index
    return torch.accelerator.current_device_index() if index is None else index


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


def forget_values(arguments: Iterable[Any]) -> None:
    """A kernel is launched with these: what a tensor of the device holds is not known afterwards."""
    for argument in arguments:
        if isinstance(argument, torch.Tensor) and argument.is_cuda:
            torch.ops.paper.forget_value(argument)


class SourceKernel:
    """As `_CudaKernel` of torch 2.13 (torch/cuda/_utils.py) is called."""

    def __call__(self, grid: Any = (), block: Any = (), args: Sequence[Any] | None = None, **_launch: Any) -> None:
        del grid, block
        forget_values(args or ())

    def set_shared_memory_config(self, shared_mem_bytes: int) -> None: ...


_DTYPES = {
    "BFloat16Tensor": torch.bfloat16, "BoolTensor": torch.bool, "ByteTensor": torch.uint8, "CharTensor": torch.int8,
    "DoubleTensor": torch.float64, "FloatTensor": torch.float32, "HalfTensor": torch.float16, "IntTensor": torch.int32,
    "LongTensor": torch.int64, "ShortTensor": torch.int16,
}  # fmt: skip


class _LegacyType(type):
    """Its classes have no instances: what they make, and what is one of them, are tensors of the device."""

    dtype: torch.dtype

    def __call__(cls, *arguments: Any) -> torch.Tensor:
        """Sizes, or a sequence of values, as the constructors of torch (torch/csrc/utils/tensor_new.cpp)."""
        if len(arguments) == 1 and isinstance(arguments[0], torch.Size):
            arguments = tuple(arguments[0])
        if len(arguments) == 1 and isinstance(arguments[0], Sequence | torch.Tensor):
            return torch.as_tensor(arguments[0], dtype=cls.dtype, device="cuda")
        return torch.empty(arguments or (0,), dtype=cls.dtype, device="cuda")

    def __instancecheck__(cls, instance: Any) -> bool:
        return isinstance(instance, torch.Tensor) and instance.is_cuda and instance.dtype is cls.dtype


_STATE_BYTES = 16
"""Seed and offset, 8 bytes each (torch 2.13, aten/src/ATen/cuda/CUDAGeneratorImpl.cpp)."""


_UNSEEDED = 67280421310721
"""A constant (c10/core/GeneratorImpl.h default_rng_seed_val) where CUDA asks for any number: plans are repeatable."""


class DeviceGenerator(torch.Generator):
    """Of one device. As an argument of an operator it is a generator like any other."""

    def __new__(cls, _index: int) -> DeviceGenerator:
        return super().__new__(cls)

    def __init__(self, index: int) -> None:
        self._device = torch.device("cuda", index)
        self._seed, self._offset = _UNSEEDED, 0

    @property
    def device(self) -> torch.device:  # type: ignore[override]
        return self._device

    def get_state(self) -> torch.Tensor:
        """On the host, as CUDA's: no tensor of a `torch.func` transformation that compiles inside of it."""
        with torch._C._DisableFuncTorch():
            return torch.tensor([self._seed, self._offset], dtype=torch.uint64, device="cpu").view(torch.uint8)

    def set_state(self, state: torch.Tensor) -> DeviceGenerator:
        """Raises RuntimeError for a state of another size, as CUDA's does."""
        if state.numel() * state.element_size() != _STATE_BYTES:
            raise RuntimeError("RNG state is wrong size")
        with torch._C._DisableFuncTorch():
            seed, offset = state.contiguous().view(torch.uint8).view(torch.uint64).tolist()
        self._seed, self._offset = int(seed), int(offset)
        return self

    def manual_seed(self, seed: int) -> DeviceGenerator:
        self._seed, self._offset = seed % 2**64, 0
        return self

    def seed(self) -> int:
        self.manual_seed(secrets.randbits(53))
        return self._seed

    def initial_seed(self) -> int:
        return self._seed

    def get_offset(self) -> int:
        return self._offset

    def set_offset(self, offset: int) -> DeviceGenerator:
        self._offset = offset
        return self

    def clone_state(self) -> DeviceGenerator:
        return DeviceGenerator(self._device.index).set_state(self.get_state())

    graphsafe_get_state = clone_state

    def graphsafe_set_state(self, other: Any) -> DeviceGenerator:
        return self.set_state(other.get_state())


def properties_of(gpu: Gpu) -> Any:
    """Of the GPU that is planned for, which is open (`paper.gpu`). What is not said of it is as on all since Volta."""
    known = ARCHITECTURES[gpu.arch]
    return DeviceProperties(
        name=gpu.product,
        major=known.capability[0],
        minor=known.capability[1],
        total_memory=gpu.total_bytes,
        multi_processor_count=target().multiprocessors,
        max_threads_per_multi_processor=known.threads_per_multiprocessor,
        max_threads_per_block=1024,
        warp_size=known.warp_size,
        L2_cache_size=known.l2_cache_bytes,
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
