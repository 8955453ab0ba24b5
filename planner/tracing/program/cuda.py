"""What a program finds under `torch.cuda`, `torch.accelerator` and `torch._C` beyond what a step needs."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any, NoReturn

import torch

from planner import upstream
from planner.errors import TraceError
from planner.hardware.architectures import ARCHITECTURES
from planner.paper import library
from planner.paper.outside.operators import told_as
from planner.paper.targets import target_of
from planner.paper.torch_cuda import DeviceProperties
from planner.tracing.program.gpu_statistics import LiveMemory, ManagementLibrary
from planner.tracing.program.rank_orders import Gpu

# Names are those of torch 2.13 (torch/_C/__init__.pyi and the Python code under torch/cuda), and three of older ones.
_POOLS = "a pool of its own is not modelled"
_ALLOCATOR = "another allocator than torch's own is not modelled"
_RAW = "memory that no tensor has is not modelled"
_DEVICES = "several GPUs in one process are not modelled: each rank is a process with one"
_GREEN = "a part of a GPU is not modelled"
_TUNED = "TunableOp times kernels, and takes memory for it"
REFUSED = {
    "_cuda_beginAllocateCurrentStreamToPool": _POOLS, "_cuda_checkPoolLiveAllocations": _POOLS,
    "_cuda_getCheckpointState": _POOLS, "_cuda_setCheckpointPoolState": _POOLS,
    "_cuda_changeCurrentAllocator": _ALLOCATOR, "_cuda_customAllocator": _ALLOCATOR, "_cuda_getAllocator": _ALLOCATOR,
    "_cuda_cudaHostAllocator": _ALLOCATOR,
    "_cuda_cudaCachingAllocator_raw_alloc": _RAW, "_cuda_cudaCachingAllocator_raw_delete": _RAW,
    "_cuda_allocationTraceback": "where memory was allocated is in the report, by module and operator",
    "_cuda_getStreamFromExternal": "a stream of another library is not known here",
    "_cuda_getCublasLtWorkspaceSize": "the workspace of cuBLASLt is not modelled",
    "_cuda_setCublasLtWorkspaceSize": "the workspace of cuBLASLt is not modelled",
    "_cuda_resetCublasLtWorkspaceSize": "the workspace of cuBLASLt is not modelled",
    "_cuda_tunableop_read_file": _TUNED,
    "_broadcast": _DEVICES, "_broadcast_coalesced": _DEVICES, "_broadcast_out": _DEVICES, "_gather": _DEVICES,
    "_scatter": _DEVICES,
    **dict.fromkeys(
        ("_nccl_all_gather", "_nccl_all_reduce", "_nccl_broadcast", "_nccl_init_rank", "_nccl_reduce",
         "_nccl_reduce_scatter", "_nccl_unique_id"),
        "torch.cuda.nccl works on several GPUs of one process: torch.distributed has ranks",
    ),
    "_CUDAGreenContext": _GREEN,
    **dict.fromkeys(
        (f"_gds_{name}" for name in ("register_buffer", "deregister_buffer", "register_handle", "deregister_handle",
                                     "load_storage", "save_storage")),
        "nothing is read from a disk into a GPU that is not there",
    ),
}  # fmt: skip
"""Why a program cannot have it."""


def answers(
    gpu: Gpu, cuda: str, torch_version: str, memory: LiveMemory, refuse: Callable[[str], Any]
) -> dict[str, Any]:
    """By their names. `refuse(reason)` raises the error for a setting that is not modelled."""
    nothing: Callable[..., None] = lambda *_arguments, **_named: None  # noqa: E731
    workspace = target_of(gpu.arch, torch_version).workspace_bytes
    major, _, minor = cuda.partition(".")

    def set_workspace(size: int, *_arguments: Any) -> None:
        if size != workspace:
            refuse("another size of cuBLAS's workspace is not modelled")

    def set_stream(stream_id: int, device_index: int, device_type: int) -> None:
        torch.accelerator.set_stream(
            torch.Stream(stream_id=stream_id, device_index=device_index, device_type=device_type)
        )

    def current_stream(_device: int = 0) -> tuple[int, int, int]:
        stream = torch.accelerator.current_stream()
        return stream.stream_id, stream.device_index, stream.device_type

    return {
        "_cuda_getCompiledVersion": lambda: int(major) * 1000 + int(minor or 0) * 10,
        "_cuda_getCublasWorkspaceSize": lambda *_device: workspace,
        "_cuda_setCublasWorkspaceSize": set_workspace,
        "_cuda_resetCublasWorkspaceSize": nothing,
        "_cuda_getCurrentStream": current_stream,
        "_cuda_getDefaultStream": lambda device=0: (0, device, 1),
        "_cuda_setStream": set_stream,
        "_cuda_hasPrimaryContext": lambda _device: bool(torch.cuda._initialized),
        "_cuda_isInBadFork": lambda: False,
        "_cuda_attach_out_of_memory_observer": nothing,  # out of memory is never raised
        "_cuda_get_conv_benchmark_empty_cache": lambda: True,
        "_cudnn_set_conv_benchmark_empty_cache": nothing,
        "_cuda_jiterator_compile_and_launch_kernel": _launch_jiterated,
        "_cuda_lock_mutex": nothing,
        "_cuda_unlock_mutex": nothing,
        "_cuda_cudaCachingAllocator_set_allocator_settings": lambda conf: memory.settle(conf) and None,
        **_tunable_operators(refuse),
    }


def _tunable_operators(refuse: Callable[[str], Any]) -> dict[str, Any]:
    """TunableOp is off, with the defaults of torch 2.13 (aten/src/ATen/cuda/tunable/Tunable.cpp)."""
    nothing: Callable[..., None] = lambda *_arguments, **_named: None  # noqa: E731

    def enable(value: bool) -> None:
        if value:
            refuse(_TUNED)

    found: dict[str, Any] = {
        "_cuda_tunableop_enable": enable,
        "_cuda_tunableop_is_enabled": lambda: False,
        "_cuda_tunableop_tuning_is_enabled": lambda: True,
        "_cuda_record_untuned_is_enabled": lambda: False,
        "_cuda_record_untuned_enable": nothing,
        "_cuda_tunableop_get_filename": lambda: "",
        "_cuda_tunableop_get_max_tuning_duration": lambda: 30,
        "_cuda_tunableop_get_max_tuning_iterations": lambda: 100,
        "_cuda_tunableop_get_rotating_buffer_size": lambda: -1,
        "_cuda_tunableop_get_rotation_buffer_size": lambda: -1,
    }
    found.update(dict.fromkeys(("_cuda_tunableop_get_results", "_cuda_tunableop_get_validators"), tuple))
    setters = ("set_filename", "set_max_tuning_duration", "set_max_tuning_iterations", "tuning_enable",
               "set_numerical_check_tolerances", "set_rotating_buffer_size")  # fmt: skip
    return found | {f"_cuda_tunableop_{name}": nothing for name in setters}


def _launch_jiterated(
    _code: str, _name: str, _by_reference: bool, outputs: int, tensors: Sequence[torch.Tensor], _settings: Any
) -> Any:
    """An operator by elements: results of the shape and the dtype of all its inputs together."""
    shape = torch.broadcast_shapes(*(each.shape for each in tensors))
    dtype = tensors[0].dtype
    for each in tensors[1:]:
        dtype = torch.promote_types(dtype, each.dtype)
    with told_as("jiterator"):
        made = [torch.empty(shape, dtype=dtype, device=tensors[0].device) for _ in range(outputs)]
    return made[0] if outputs == 1 else made


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


def legacy_types() -> Mapping[str, Any]:
    """By name. torch finds a type by its name where it takes one (`tensor.type(torch.cuda.FloatTensor)`)."""
    return {name: _LegacyType(f"torch.cuda.{name}", (), {"dtype": dtype}) for name, dtype in _DTYPES.items()}


_STATE_BYTES = 16
"""Seed and offset, 8 bytes each (torch 2.13, aten/src/ATen/cuda/CUDAGeneratorImpl.cpp)."""


class DeviceGenerator(torch.Generator):
    """Of one device. As an argument of an operator it is a generator like any other."""

    def __new__(cls, _index: int) -> DeviceGenerator:
        return super().__new__(cls)

    def __init__(self, index: int) -> None:
        self._device = torch.device("cuda", index)
        self._seed, self._offset = torch.default_generator.initial_seed(), 0

    @property
    def device(self) -> torch.device:  # type: ignore[override]
        return self._device

    def get_state(self) -> torch.Tensor:
        """On the host, as CUDA's."""
        return torch.tensor([self._seed, self._offset], dtype=torch.uint64, device="cpu").view(torch.uint8)

    def set_state(self, state: torch.Tensor) -> DeviceGenerator:
        """Raises RuntimeError for a state of another size, as CUDA's does."""
        if state.numel() * state.element_size() != _STATE_BYTES:
            raise RuntimeError("RNG state is wrong size")
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


# A build of torch without CUDA lacks the bindings below `torch.cuda`; with these in their places torch's own Python
# code above them runs as it is. Names are those of torch 2.13 (torch/_C/__init__.pyi). What has no meaning on paper,
# such as a captured graph, is a named error.
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
           for name, answer in answers(gpu, cuda, torch_version, memory, _refuse_setting).items()},
        **{f"torch._C:{name}": _refusing(name, why, "torch._C") for name, why in REFUSED.items()},
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
        "_compile_kernel": compile_kernel,
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


class SourceKernel:
    """As `_CudaKernel` of torch 2.13 (torch/cuda/_utils.py) is called."""

    def __call__(
        self, grid: Any = (1, 1, 1), block: Any = (1, 1, 1), args: Sequence[Any] | None = None, **_launch: Any
    ) -> None:
        """What a tensor holds is not known afterwards."""
        del grid, block
        for each in args or ():
            if isinstance(each, torch.Tensor) and each.is_cuda:
                torch.ops.paper.forget_value(each)

    def set_shared_memory_config(self, shared_mem_bytes: int) -> None: ...


def compile_kernel(_source: str, _name: str, *_settings: Any, **_named: Any) -> SourceKernel:
    """In place of `torch.cuda._compile_kernel`, which asks NVRTC."""
    return SourceKernel()
