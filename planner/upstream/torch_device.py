"""What the paper GPU relies on in torch's single-device code."""

from __future__ import annotations

from planner.upstream.entries import Change, Entry, Kind, entries

_ON_PAPER = "tests/traces/test_architectures.py"
_KERNELS = "tests/traces/test_kernels_attention.py"
_PROGRAMS = "tests/traces/test_recorded_programs.py"
_CPU_RUNS = "tests/traces/test_against_cpu_runs.py"

CUDA_FACE = (
    Entry(
        target="torch._dynamo.utils:common_constant_types", kind=Kind.PRIVATE, has_source=False, part="compiling",
        test="tests/running/test_compiled_programs.py", why="properties of a GPU are constants of what is compiled",
    ),
    *entries(
        "torch.cuda",
        "_lazy_init", "is_initialized", "is_available", "device_count", "current_device", "set_device",
        "_exchange_device", "_maybe_exchange_device", "get_device_name", "get_device_capability",
        "get_device_properties", "is_bf16_supported", "is_current_stream_capturing", "synchronize", "empty_cache",
        "Stream", "Event", "stream", "StreamContext", "current_stream", "default_stream", "set_stream", "manual_seed",
        "manual_seed_all", "get_rng_state", "set_rng_state", "mem_get_info", "memory_allocated",
        "max_memory_allocated", "memory_reserved", "max_memory_reserved", "reset_peak_memory_stats", "memory_stats",
        "_CudaDeviceProperties",
        kind=Kind.PATCH, group="cuda face", has_source=False, created=True, test=_ON_PAPER,
        why="asks the CUDA runtime, which a paper GPU does not have",
    ),
    *entries(
        "torch.cuda.nvtx", "range_push", "range_pop",
        kind=Kind.PATCH, group="cuda face", has_source=False, test="tests/traces/test_deepspeed_stage3.py",
        why="calls the profiler's library of CUDA, which is not there",
    ),
    Entry(
        target="torch:UntypedStorage.resize_", kind=Kind.PATCH, group="cuda face", has_source=False,
        test="tests/traces/test_sharded_cpu_runs.py",
        why="torch built without CUDA cannot resize a storage on a GPU (torch/csrc/StorageMethods.cpp), as FSDP2 does",
    ),
    Entry(
        target="torch:UntypedStorage.copy_", kind=Kind.PATCH, group="cuda face", has_source=False,
        test="tests/traces/test_checkpoint_cpu_runs.py",
        why="async_save copies storages, which have no dtype: as bytes they would be values that somebody reads",
    ),
    Entry(
        target="torch._tensor_str:_str", kind=Kind.PATCH, group="cuda face", change=Change.REPORTED,
        test="tests/house/test_upstream.py", why="prints the values of a tensor, and a tensor on paper has none",
    ),
    Entry(
        target="torch.cuda.amp.common:amp_definitely_not_available", kind=Kind.PATCH, group="cuda face",
        test=_PROGRAMS, why="turns autocast and GradScaler off with a mere warning where torch was built without CUDA",
    ),
    *entries(
        "torch.backends.cudnn", "is_available", "is_acceptable", "version",
        kind=Kind.PATCH, group="cuda face", has_source=False, test="tests/traces/test_kernels_convolution.py",
        why="asks cuDNN, which a CPU build lacks; the GPU that is planned for has it",
    ),
    Entry(
        target="torch.backends.cudnn.rnn:get_cudnn_mode", kind=Kind.PATCH, group="cuda face", test=_ON_PAPER,
        why="reads an enumeration that only builds with cuDNN have",
    ),
)  # fmt: skip

CPU_TARGET = (
    Entry(
        target="torch.optim.optimizer:_get_foreach_kernels_supported_devices", kind=Kind.PATCH, group="cpu target",
        has_source=False, test=_CPU_RUNS,
        why="optimizers loop over parameters on a CPU, and decide by the type of the device",
    ),
    Entry(
        target="torch.nn.functional:rms_norm", kind=Kind.PATCH, group="cpu target", test=_CPU_RUNS,
        why="a composite operator that chooses a fused kernel on CUDA",
    ),
)  # fmt: skip

_MEASURED = "tests/measuring/test_measured_programs.py"

PRIVATE = (
    Entry(
        target="torch._C:_current_autograd_node", kind=Kind.PRIVATE, has_source=False,
        test="tests/traces/test_kernels_sized_by_data.py",
        why="which backward reads a value that a tensor on paper lacks",
    ),
    Entry(
        target="torch._C:DisableTorchFunction", kind=Kind.PRIVATE, has_source=False, test=_KERNELS,
        why="a kernel's own call of an operator is not the program's",
    ),
    Entry(
        target="torch.library:Library._destroy", kind=Kind.PRIVATE, test=_CPU_RUNS,
        why="gives the operators of the target `cpu` back to CUDA's kernels",
    ),
    Entry(
        target="torch.utils._pytree:tree_map", kind=Kind.PRIVATE, has_source=False, test=_KERNELS,
        why="arguments of kernels in lists and tuples",
    ),
    *entries(
        "torch.utils._device", "_device_constructors",
        kind=Kind.PRIVATE, test="tests/traces/test_deepspeed_stage3.py",
        why="remembers functions on its first call, which must not be while DeepSpeed has replaced them",
    ),
)  # fmt: skip

MEASURED_PROGRAMS = (
    *entries(
        "torch.cuda", "_lazy_call",
        kind=Kind.PRIVATE, has_source=False, change=Change.REPORTED, part="measuring", test=_MEASURED,
        why="a measured program's history begins when it first uses CUDA, not before",
    ),
    *entries(
        "torch.cuda.memory", "_record_memory_history", "_dump_snapshot",
        kind=Kind.PRIVATE, has_source=False, change=Change.REPORTED, part="measuring", test=_MEASURED,
        why="the allocator's history of a measured program",
    ),
    *(
        Entry(
            target=f"{module}:reset_peak_memory_stats", kind=Kind.WRAPPED, has_source=False, change=Change.REPORTED,
            part="measuring", optional=True, test=_MEASURED,
            why="a measured program that sets its counters back keeps the peaks from before",
        )
        for module in ("torch.cuda", "torch.cuda.memory", "torch.accelerator", "torch.accelerator.memory")
    ),
)  # fmt: skip

_RUN = "tests/running/test_programs.py"
_HOST = "tests/running/test_large_hosts.py"
_STORAGES = "tests/running/test_storages.py"
_FACE = "tests/running/test_cuda_face.py"

PROGRAMS = (
    *entries(
        "torch.cuda",
        "_is_compiled", "_initialized", "_lazy_init", "is_initialized", "_exchange_device",
        "_maybe_exchange_device", "current_device", "set_device",
        "cudart", "default_generators", "get_arch_list", "get_device_name", "get_device_properties",
        "device_memory_used", "memory_usage", "utilization", "temperature", "power_draw", "clock_rate",
        "list_gpu_processes", "_compile_kernel", "empty_cache", "get_per_process_memory_fraction",
        "max_memory_allocated", "max_memory_reserved", "mem_get_info",
        "memory_allocated", "memory_reserved", "memory_stats", "reset_peak_memory_stats", "get_rng_state",
        "manual_seed", "manual_seed_all", "set_rng_state", "CUDAGraph", "graph", "make_graphed_callables", "MemPool",
        "use_mem_pool", "CUDAPluggableAllocator", "change_current_allocator", "caching_allocator_alloc",
        "GreenContext", "graph_pool_handle", "ExternalStream", "get_stream_from_external", "caching_allocator_delete",
        "_cudart", "BFloat16Tensor", "BoolTensor", "ByteTensor", "CharTensor", "DoubleTensor", "FloatTensor",
        "HalfTensor", "IntTensor", "LongTensor", "ShortTensor",
        kind=Kind.PATCH, group="program's cuda face", has_source=False, optional=True, test=_FACE,
        why="a program asks more of CUDA than a step does: memory, clocks, several GPUs",
    ),
    *entries(
        "torch._C",
        "_cuda_memoryStats", "_cuda_resetPeakMemoryStats", "_cuda_resetAccumulatedMemoryStats", "_cuda_emptyCache",
        "_cuda_getMemoryFraction", "_cuda_setMemoryFraction", "_cuda_hostMemoryStats", "_cuda_resetPeakHostMemoryStats",
        "_cuda_resetAccumulatedHostMemoryStats", "_cuda_memorySnapshot", "_cuda_record_memory_history",
        "_cuda_record_memory_history_legacy", "_cuda_isHistoryEnabled", "_cuda_setMemoryMetadata",
        "_cuda_getMemoryMetadata", "_cuda_getAllocatorBackend", "_cuda_cudaCachingAllocator_is_enabled",
        "_cuda_cudaCachingAllocator_enable",
        "_cuda_getDevice", "_cuda_setDevice", "_cuda_exchangeDevice", "_cuda_maybeExchangeDevice",
        "_cuda_getDeviceCount", "_cuda_getArchFlags", "_cuda_canDeviceAccessPeer", "_cuda_ipc_collect", "_cuda_init",
        "_cuda_sleep", "_cuda_synchronize", "_cuda_clearCublasWorkspaces", "_cuda_getCurrentBlasHandle",
        "_cuda_getCurrentSolverHandle", "_cuda_getCurrentRawStream", "_cuda_get_sync_debug_mode",
        "_cuda_set_sync_debug_mode", "_cuda_get_cudnn_benchmark_limit", "_cuda_set_cudnn_benchmark_limit",
        "_nccl_version", "_nccl_version_suffix", "_accelerator_isAllocatorInitialized", "_accelerator_getDeviceStats",
        "_accelerator_getMemoryInfo", "_accelerator_resetPeakStats", "_accelerator_resetAccumulatedStats",
        "_accelerator_emptyCache", "_accelerator_setAllocatorSettings",
        kind=Kind.PATCH, group="program's cuda face", has_source=False, created=True, test=_FACE,
        why="bindings of a CUDA build, on which torch's own Python code under torch.cuda stands",
    ),
    *entries(
        "torch._C",
        "_cuda_beginAllocateCurrentStreamToPool", "_cuda_checkPoolLiveAllocations", "_cuda_getCheckpointState",
        "_cuda_setCheckpointPoolState", "_cuda_changeCurrentAllocator", "_cuda_customAllocator", "_cuda_getAllocator",
        "_cuda_cudaHostAllocator", "_cuda_cudaCachingAllocator_raw_alloc", "_cuda_cudaCachingAllocator_raw_delete",
        "_cuda_allocationTraceback", "_cuda_getStreamFromExternal", "_cuda_getCublasLtWorkspaceSize",
        "_cuda_setCublasLtWorkspaceSize", "_cuda_resetCublasLtWorkspaceSize", "_cuda_tunableop_read_file",
        "_broadcast", "_broadcast_coalesced", "_broadcast_out", "_gather", "_scatter", "_nccl_all_gather",
        "_nccl_all_reduce", "_nccl_broadcast", "_nccl_init_rank", "_nccl_reduce", "_nccl_reduce_scatter",
        "_nccl_unique_id", "_CUDAGreenContext", "_gds_register_buffer", "_gds_deregister_buffer",
        "_gds_register_handle", "_gds_deregister_handle", "_gds_load_storage", "_gds_save_storage",
        "_cuda_getCompiledVersion", "_cuda_getCublasWorkspaceSize", "_cuda_setCublasWorkspaceSize",
        "_cuda_resetCublasWorkspaceSize", "_cuda_getCurrentStream", "_cuda_getDefaultStream", "_cuda_setStream",
        "_cuda_hasPrimaryContext", "_cuda_isInBadFork", "_cuda_attach_out_of_memory_observer",
        "_cuda_get_conv_benchmark_empty_cache", "_cudnn_set_conv_benchmark_empty_cache",
        "_cuda_jiterator_compile_and_launch_kernel", "_cuda_lock_mutex", "_cuda_unlock_mutex",
        "_cuda_cudaCachingAllocator_set_allocator_settings", "_cuda_record_untuned_is_enabled",
        "_cuda_record_untuned_enable", "_CudaDeviceProperties",
        *(
            f"_cuda_tunableop_{name}"
            for name in (
                "enable", "is_enabled", "tuning_is_enabled", "get_filename", "get_max_tuning_duration",
                "get_max_tuning_iterations", "get_rotating_buffer_size", "get_rotation_buffer_size", "get_results",
                "get_validators", "set_filename", "set_max_tuning_duration", "set_max_tuning_iterations",
                "tuning_enable", "set_numerical_check_tolerances", "set_rotating_buffer_size",
            )
        ),
        kind=Kind.PATCH, group="program's cuda face", has_source=False, created=True, test=_FACE,
        why="the rest of a CUDA build's bindings: a setting that is off, or refused by name",
    ),
    *entries(
        "torch.cuda.nvtx", "mark", "range_start", "range_end", "_device_range_start", "_device_range_end",
        kind=Kind.PATCH, group="program's cuda face", has_source=False, test=_FACE,
        why="calls the profiler's library of CUDA, which is not there",
    ),
    Entry(
        target="torch.cuda.nccl:version", kind=Kind.PATCH, group="program's cuda face", has_source=False, test=_FACE,
        why="asks NCCL, which a CPU build lacks",
    ),
    Entry(
        target="torch.version:cuda", kind=Kind.PATCH, group="program's cuda face", has_source=False, test=_FACE,
        why="None in a CPU build, by which programs choose their way",
    ),
    Entry(
        target="torch.backends.cuda:is_built", kind=Kind.PATCH, group="program's cuda face", has_source=False,
        test=_FACE, why="False in a CPU build",
    ),
    Entry(
        target="torch.autograd.profiler:profile.__init__", kind=Kind.PATCH, group="program's cuda face", test=_FACE,
        why="a profiler of a GPU on which nothing runs warns at every operator",
    ),
    Entry(
        target="torch.nn.parallel.distributed:DistributedDataParallel._ddp_init_helper", kind=Kind.PATCH,
        group="program watched", has_source=False, change=Change.REPORTED,
        test="tests/running/test_programs_in_a_world.py", why="there DDP allocates its buckets, which are told as such",
    ),
    Entry(
        target="torch.autograd:_engine_run_backward", kind=Kind.PATCH, group="program watched", has_source=False,
        test=_RUN, why="a program's backwards begin there, those of torch.autograd.grad too (autograd/__init__.py)",
    ),
    Entry(
        target="torch.optim:Optimizer.__init__", kind=Kind.PATCH, group="program watched", has_source=False, test=_RUN,
        why="a program is watched until each of its optimizers has stepped, and for one that has not there is no hook",
    ),
    Entry(
        target="torch:UntypedStorage.__new__", kind=Kind.PATCH, group="program storages", has_source=False,
        test=_STORAGES, why="a build without CUDA makes no storage on a GPU (torch/csrc/Storage.cpp)",
    ),
    Entry(
        target="torch:UntypedStorage.cpu", kind=Kind.PATCH, group="program storages", has_source=False,
        test=_STORAGES, why="bytes that are not there would be read; they are on their way into a checkpoint",
    ),
    Entry(
        target="torch.serialization:_save", kind=Kind.PATCH, group="program storages", test=_STORAGES,
        why="what lies on the device is written as a hole, which torch can do for whole files only (skip_data)",
    ),
    *(
        Entry(
            target=target, kind=Kind.PATCH, group="program compiles", has_source=False,
            test="tests/running/test_compiled_programs.py",
            why="compiling for the paper GPU is switched on when a program first asks for it; collectives that torch "
            "2.13 has deprecated are not compiled",
        )
        for target in ("torch:compile", "torch._dynamo.convert_frame:_compile")
    ),
    Entry(
        target="torch.backends.cuda:is_built", kind=Kind.PATCH, group="inductor loaded", has_source=False,
        test="tests/running/test_compiled_programs.py",
        why="Inductor takes what a build with CUDA has in torch._C where it finds one",
    ),
    Entry(
        target="torch.serialization:_open_zipfile_writer_buffer.__init__", kind=Kind.PATCH, group="program storages",
        has_source=False, test=_HOST, why="a hole is seeked over, which streams of torch.distributed.checkpoint cannot",
    ),
    *entries(
        "torch.nn.init", "_no_grad_trunc_normal_", "orthogonal_",
        kind=Kind.PATCH, group="program initialises", has_source=False, test=_HOST,
        why="of large host tensors initial random numbers, with which these compute, are left out",
    ),
    Entry(
        target="torch:load", kind=Kind.PATCH, group="program checkpoints", has_source=False, test=_HOST,
        why="a large checkpoint is mapped: what is never read takes no memory",
    ),
    Entry(
        target="safetensors.torch:serialize_file", kind=Kind.PATCH, group="program checkpoints", has_source=False,
        test=_HOST, optional=True, why="what has no values is a hole in a file, where safetensors writes zeros",
    ),
    *entries(
        "torch", "save", "load",
        kind=Kind.PATCH, group="program watched", has_source=False, test=_RUN,
        why="that a program saves or loads a checkpoint is told in its report",
    ),
    *entries(
        "torch.nn.functional", "cross_entropy", "nll_loss",
        kind=Kind.PATCH, group="program losses", has_source=False, test=_RUN,
        why="the loss of a model that has learnt nothing follows from its number of classes",
    ),
    Entry(
        target="torch.nn.utils:clip_grad_norm_", kind=Kind.PATCH, group="program outline", has_source=False,
        test="tests/running/test_saved_specs.py", why="whether a program clips its gradients is told in its spec",
    ),
)  # fmt: skip
