"""The rest of `torch._C` that a CUDA build has and a CPU build lacks: what has an answer on paper, and what has none.

Names are those of torch 2.13 (torch/_C/__init__.pyi and the Python code under torch/cuda), and three of older ones.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from planner.paper.outside.operators import told_as
from planner.paper.targets import target_of
from planner.running.live_memory import LiveMemory
from planner.running.order import Gpu

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
